"""Boards and submissions that others can check: written, read, compared, merged."""

from __future__ import annotations

from .board import TOLERANCE, Board
from .files import publish, publish_described, read_board, sound_board, write_board
from .format2 import json_schema

__all__ = [
    "TOLERANCE", "Board", "json_schema", "publish", "publish_described", "read_board", "sound_board", "write_board",
]  # fmt: skip
