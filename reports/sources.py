"""Sources of records: a store, or a published board in its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.errors import StoreError
from robustfl.records import CellResult

from .published.board import Board as PublishedBoard
from .published.files import name_of, sound_board
from .store import Loaded, Store, open_store


@dataclass(frozen=True)
class BoardStore:
    """A published board with the reading methods of a ``Store``; reports of it go beside the file."""

    file: Path
    board: PublishedBoard

    @property
    def folder(self) -> Path:
        """The folder that a store of this board would have: ``boards/d.json.gz`` is ``boards/d``."""
        return self.file.with_name(name_of(self.file) or self.file.name)

    def keys(self) -> set[str]:
        """The keys of all cells."""
        return {record.key for record in self.board.cells}

    def read(self, key: str) -> CellResult:
        """The record of a cell. Raises ``StoreError`` if there is none."""
        found = next((record for record in self.board.cells if record.key == key), None)
        if found is None:
            raise StoreError(f"{self.file}: no cell {key!r}")
        return found

    def load(self) -> Loaded:
        """All records; a board with anything wrong was not opened."""
        return Loaded(self.board.cells, ())

    def current(self) -> Loaded:
        """All records, which are of one grid."""
        return self.load()

    def description(self) -> dict[str, Any]:
        """The parts of a store's description that a board carries."""
        board = self.board
        return {
            "name": board.name,
            "description": board.description,
            **(board.protocol or {}),
            **({"defaults": board.defaults} if board.defaults else {}),
        }


def open_source(path: str | Path) -> Store | BoardStore:
    """The store, or the board file (.json, .json.gz), at ``path``.

    Raises ``UsageError`` for anything else and for an unsound board.
    """
    if Path(path).is_file() and Path(path).suffix in (".json", ".gz"):
        return BoardStore(Path(path), sound_board(path))
    return open_store(path)
