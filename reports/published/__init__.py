"""Boards and bundles that others can check: written, read, compared, merged."""

from __future__ import annotations

from .board import (
    TOLERANCE,
    Board,
    content_digest,
    json_schema,
    publish,
    publish_described,
    read_board,
    sound_board,
    write_board,
)

__all__ = [
    "TOLERANCE", "Board", "content_digest", "json_schema", "publish", "publish_described", "read_board", "sound_board",
    "write_board",
]  # fmt: skip
