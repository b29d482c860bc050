"""Board files: written in format 2, read in formats 1 and 2, compressed where the name ends in ``.gz``."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robustfl.errors import OldFormatWarning, UsageError
from robustfl.records import canonical

from ..documents import first_fault, read_data
from ..key1 import converted
from ..store import write_atomic
from . import format1, format2
from .board import Board, faults_of

FORMAT = "robustfl-board"
_EDITED = "its content does not have the digest it claims: it was edited after it was written"


def write_board(board: Board, path: str | Path) -> Path:
    """Write a board as JSON, one cell a line; compressed if the name ends in ``.gz``. The same board, the same data."""
    data, target = format2.encoded(board), Path(path)
    lists = {name: data.pop(name) for name in ("methods", "traffic", "cells", "refused") if name in data}
    sign = data.pop("digest")
    head = "".join(f' "{k}": {json.dumps(v, sort_keys=True, ensure_ascii=False)},\n' for k, v in data.items())
    body = "".join(f' "{k}": [\n{_lines(rows)}\n ],\n' for k, rows in lists.items())
    text = f'{{\n{head}{body} "digest": "{sign}"\n}}\n'.encode()
    write_atomic(target, gzip.compress(text, 9, mtime=0) if target.suffix == ".gz" else text)
    return target


def name_of(path: str | Path) -> str:
    """The name of a board's file without its endings.

    >>> name_of("boards/d.json.gz")
    'd'
    """
    return Path(path).name.removesuffix(".gz").removesuffix(".json")


def _lines(rows: list[Any]) -> str:
    return ",\n".join("  " + canonical(row) for row in rows)


def read_board(path: str | Path) -> tuple[Board, list[str]]:
    """A board and what is wrong with it without running anything: edited content, keys that are not their cells'.

    A board of format 1 is read with an ``OldFormatWarning``; keys of version 1 are converted. Raises ``UsageError`` for
    a file that is no board and ``StoreError`` for one that cannot be read.
    """
    none = "not a published board; write one with `robustfl report STORE --board FILE`"
    try:
        data = read_data(Path(path), format=FORMAT, none=none, lines=_tells)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no file {str(path)!r}; write a board with `robustfl report STORE --board FILE`") from None
    except IsADirectoryError:
        raise UsageError(
            f"{str(path)!r} is a folder; write a board with `robustfl report {path} --board FILE`"
        ) from None
    decode = _FORMATS.get(data.get("schema_version"))
    if decode is None:
        raise UsageError(
            f"{path}: board format {data.get('schema_version')!r}; this robustfl reads formats "
            f"{' and '.join(map(str, _FORMATS))}, a later version may read more"
        )
    try:
        board, intact = decode(path, data)
    except ValidationError as error:  # of a record
        raise UsageError(f"{path}: {first_fault(error)}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    for record in board.cells:
        if not all(isinstance(record.cell.get(part), Mapping) for part in ("cell", "methods")):
            raise UsageError(f"{path}: cell {record.key} does not say how it ran: it lacks cell.cell or cell.methods")
    board = replace(board, cells=tuple(sorted(map(converted, board.cells), key=lambda record: record.key)))
    return board, [*([] if intact else [_EDITED]), *faults_of(board)]


def sound_board(path: str | Path) -> Board:
    """A board with nothing wrong. Raises ``UsageError`` with what is wrong first, else as ``read_board`` does."""
    board, wrong = read_board(path)
    if wrong:
        raise UsageError(f"{path}: {wrong[0]}")
    return board


def _first(path: str | Path, data: Any) -> tuple[Board, bool]:
    file = format1.BoardFile.model_validate(data)
    new = name_of(path)
    warnings.warn(
        f"{path} is a board of format 1; `robustfl merge {path} --out {new}-2.json.gz` converts it to format 2",
        OldFormatWarning,
        stacklevel=2,
    )
    return format1.decoded(file), format1.content_digest(file) == file.digest


def _second(_: str | Path, data: Any) -> tuple[Board, bool]:
    return format2.decoded(format2.BoardFile.model_validate(data)), format2.content_digest(data) == data["digest"]


_FORMATS: dict[Any, Callable[[str | Path, Any], tuple[Board, bool]]] = {1: _first, 2: _second}


def _tells(where: str) -> bool:
    """True if a text of a board may have several lines."""
    return where == "description" or where.endswith(".reason")
