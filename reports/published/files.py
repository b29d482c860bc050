"""Board files: published of records in format 2, read in formats 1 and 2, compressed where the name ends in ``.gz``."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robustfl.errors import OldFormatWarning, StoreError, UsageError, reason
from robustfl.file_io import read_json, shown, unsafe, unsafe_texts
from robustfl.provenance import UNKNOWN
from robustfl.records import CellResult, Commit, Timing, canonical, misnamed

from ..key1 import converted
from ..store import write_atomic
from ..validation import first_fault
from . import format1, format2
from .board import (
    LEFT_IN_THE_STORE,
    TOLERANCE,
    Board,
    Certificates,
    Forgetting,
    carried,
    derived_labels,
    described_cells,
    environment_of,
    faults_of,
    forgotten,
)
from .format2 import encoded

FORMAT = "robustfl-board"
_EDITED = "its content does not have the digest it claims: it was edited after it was written"


def write_board(board: Board, path: str | Path) -> Path:
    """Write a board as JSON, one cell a line; compressed if the name ends in ``.gz``. The same board, the same data."""
    data, target = format2.encoded(board), Path(path)
    lists = {name: ",\n".join(f"  {canonical(row)}" for row in data.pop(name))
             for name in ("methods", "traffic", "cells", "refused") if name in data}  # fmt: skip
    sign = data.pop("digest")
    head = "".join(f' "{k}": {json.dumps(v, sort_keys=True, ensure_ascii=False)},\n' for k, v in data.items())
    body = "".join(f' "{k}": [\n{lines}\n ],\n' for k, lines in lists.items())
    text = f'{{\n{head}{body} "digest": "{sign}"\n}}\n'.encode()
    write_atomic(target, gzip.compress(text, 9, mtime=0) if target.suffix == ".gz" else text)
    return target


def name_of(path: str | Path) -> str:
    """The name of a board's file without its endings.

    >>> name_of("boards/d.json.gz")
    'd'
    """
    return Path(path).name.removesuffix(".gz").removesuffix(".json")


def _document(path: Path) -> dict[str, Any]:
    """The JSON table of a board file. Raises ``UsageError`` for anything else, ``StoreError`` if it is unreadable."""
    try:
        data = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no file {str(path)!r}; write a board with `robustfl report STORE --board FILE`") from None
    except IsADirectoryError:
        raise UsageError(
            f"{str(path)!r} is a folder; write a board with `robustfl report {path} --board FILE`"
        ) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    for where, text in unsafe_texts(data):
        if unsafe(text, lines=where == "description" or where.endswith(".reason")):
            raise UsageError(f"{path}: {shown(where)} holds control characters")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path}: not a published board; write one with `robustfl report STORE --board FILE`")
    return data


def read_board(path: str | Path) -> tuple[Board, list[str]]:
    """A board and what is wrong with it without running anything: edited content, keys that are not their cells'.

    A board of format 1 is read with an ``OldFormatWarning``; keys of version 1 are converted. Raises ``UsageError`` for
    a file that is no board and ``StoreError`` for one that cannot be read.
    """
    data = _document(Path(path))
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
    words = f"{path} is a board of format 1; `robustfl merge {path} --out {name_of(path)}-2.json.gz` converts it to"
    warnings.warn(f"{words} format 2", OldFormatWarning, stacklevel=2)
    return format1.decoded(file), format1.content_digest(file) == file.digest


def _second(_: str | Path, data: Any) -> tuple[Board, bool]:
    return format2.decoded(format2.BoardFile.model_validate(data)), format2.content_digest(data) == data["digest"]


_FORMATS: dict[Any, Callable[[str | Path, Any], tuple[Board, bool]]] = {1: _first, 2: _second}


def publish(
    results: Sequence[CellResult],
    *,
    name: str,
    description: str = "",
    tolerance: float = TOLERANCE,
    curves: bool = False,
    protocol: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Board:
    """The board of some records, with their ``curves`` during training if wanted, and the ``protocol`` they follow.

    Raises ``UsageError`` for a tolerance outside [0, 1] and for no records.
    """
    if not results:
        raise UsageError("board: there is no finished cell to publish")
    if not 0 <= tolerance <= 1:
        raise UsageError(f"board: tolerance={tolerance:g} must be in [0, 1], a difference of accuracies")
    environment = environment_of(results)
    several = len(environment.commits) > 1
    board = Board(
        name=shown(name),
        cells=tuple(
            _published(r, curves=curves, commits=(r.timing.commits or [UNKNOWN]) if several else environment.commits)
            for r in sorted(results, key=lambda r: r.key)
        ),
        environment=environment,
        tolerance=float(tolerance),
        description=shown(description),
        protocol=dict(protocol) if protocol else None,
        defaults=dict(defaults or {}),
    )
    return replace(board, digest=str(encoded(board)["digest"]))


def publish_described(
    results: Sequence[CellResult],
    described: Mapping[str, Any],
    *,
    name: str,
    tolerance: float = TOLERANCE,
    curves: bool = False,
) -> Board:
    """The board of a store's records, with the text, the protocol and the defaults of its description.

    Raises ``UsageError`` for records that ``read_board`` would find fault with.
    """
    about, cells = str(described.get("description") or ""), described_cells(results, described)
    defaults = described.get("defaults")
    board = publish(
        cells, name=name, description=about, tolerance=tolerance, curves=curves, protocol=carried(described),
        defaults=defaults if isinstance(defaults, Mapping) else None,
    )  # fmt: skip
    named = (f"cell {r.key}: {words}" for r in cells if (words := misnamed(r)))  # a board's labels follow from settings
    if first := next(named, None) or next(iter(faults_of(board)), None):
        raise UsageError(f"board: {first}; `robustfl verify` would reject it")
    return board


def _published(record: CellResult, *, curves: bool, commits: list[Commit]) -> CellResult:
    """What a board carries of a record. A refused cell ran for no time, whatever the clock said."""
    timing, ran = record.timing, record.status != "refused"
    settings = record.cell.get("cell")
    return CellResult(
        key=record.key,
        scenario=record.scenario,
        status=record.status,
        reason=(record.reason or "").strip().splitlines()[0] if (record.reason or "").strip() else None,
        round=record.round,
        cell=record.cell,
        labels=derived_labels(settings) if isinstance(settings, Mapping) else record.labels,
        metrics=record.metrics and record.metrics.model_copy(update={name: {} for name in LEFT_IN_THE_STORE}),
        curve=record.curve if curves else [],
        certificates={
            name: value
            for name in Certificates.model_fields
            if name != "forgetting"
            and ((value := record.certificates.get(name)) or type(value) in (int, float))  # 0 says something, too
        }
        | _forgetting(record),
        timing=Timing(
            seconds=timing.seconds if ran else 0.0,
            seconds_per_round=timing.seconds_per_round if ran else None,
            peak_memory_bytes=timing.peak_memory_bytes if ran else 0,
            commits=commits,
        ),
    )


def _forgetting(record: CellResult) -> dict[str, Any]:
    """The means of forgetting, without the matrices over clients."""
    certificate: Mapping[str, Any] = record.certificates.get("forgetting") or {}
    rounds = {r: certificate[r] if r else certificate for r in forgotten(certificate)}
    means = {r: {name: found[name] for name in Forgetting.model_fields if name in found} for r, found in rounds.items()}
    return {"forgetting": means.get("", means)} if means else {}
