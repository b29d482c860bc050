"""Where data sets live on disk."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(explicit: str | Path | None = None) -> Path:
    """The data root: ``explicit`` (``--data-root``), else ``ROBUSTFL_DATA``, else the user's cache folder.

    The cache folder is ``$XDG_CACHE_HOME/robustfl`` or ``~/.cache/robustfl``. Nothing is created here.
    """
    chosen = explicit or os.environ.get("ROBUSTFL_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "robustfl"
