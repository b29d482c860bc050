"""Where data sets live on disk, and data sets by the text a scenario holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from robustfl.contracts import Dataset
from robustfl.errors import FileMissing, UsageError
from robustfl.registry import create, lookup
from robustfl.specs import parse


def data_root(explicit: str | Path | None = None) -> Path:
    """The data root: ``explicit`` (``--data-root``), else ``ROBUSTFL_DATA``, else the user's cache folder.

    The cache folder is ``$XDG_CACHE_HOME/robustfl`` or ``~/.cache/robustfl``. Nothing is created here. Raises
    ``UsageError`` for a file, and where the user has no home.
    """
    chosen = explicit or os.environ.get("ROBUSTFL_DATA")
    if chosen:
        root = _expanded(chosen)
        if root.exists() and not root.is_dir():
            raise UsageError(f"data root {root}: a file, where a folder is needed (--data-root or $ROBUSTFL_DATA)")
        return root
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else _expanded("~/.cache")) / "robustfl"


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"data root {path}: there is no such home; give --data-root or set $ROBUSTFL_DATA") from None


OWN = ("hf", "imagefolder", "npz")
"""Data sets of one's own, read from ``path``; ``npz:PATH`` is short for ``npz(path=PATH)``."""
_ADVICE = "images of your own: imagefolder(path=FOLDER), npz(path=FILE) or hf(path=FOLDER)"


def find_path(name: str, path: str, root: Path, holds: str) -> Path:
    """``path`` in the working directory, else below ``root``; raises ``FileMissing`` of the data set ``name``."""
    given = Path(os.path.expanduser(path))
    for place in (places := [given.absolute()] if given.is_absolute() else [given.absolute(), root / given]):
        if place.exists():
            return place
    raise FileMissing(f"{name}: there is no {' or '.join(map(str, places))}; {holds}")


def dataset_from_spec(text: str) -> Dataset:
    """The data set of ``"mnist"``, ``"mnist(limit=1000)"``, ``"npz(path=my.npz)"`` or ``"npz:my.npz"``.

    >>> dataset_from_spec("npz:my.npz").path
    'my.npz'
    """
    head, colon, path = text.partition(":")
    if colon and head.strip() in OWN:
        if not path.strip():
            raise UsageError(f"data set {text!r}: a path is missing; write {head.strip()}:PATH")
        return cast(Dataset, create("dataset", head.strip(), path=path.strip()))
    name = parse(text)[0]
    try:
        lookup("dataset", name)
    except UsageError as error:
        if name.endswith(".npz") or os.path.isdir(name):
            kind = "npz" if name.endswith(".npz") else "imagefolder"
            raise UsageError(f"unknown dataset {name!r}; to read it write {kind}:{name}") from None
        raise UsageError(f"{error} ({_ADVICE})") from None
    return cast(Dataset, create("dataset", text))
