"""Board files whose data was changed, with the digest they had or with the one that a careful cheat would give them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustfl.reports.published.format2 import content_digest


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The board file, uncompressed, after ``change`` of its data."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def resigned(path: Path, change: Callable[[dict[str, Any]], object] = lambda data: None) -> Path:
    """The board file after ``change``, under the digest of what it then holds."""
    return edited(edited(path, change), lambda data: data.update(digest=content_digest(data)))
