"""Format 2 of board files: what cells share stands once, methods in a table, refused cells once per contestant.

A file is JSON, compressed if its name ends in ``.gz``. Its form is published as ``board.schema.json``:

* ``common`` holds the settings that all cells share, and the facts that most of the trained cells share;
* a cell's methods are places in the table ``methods``, its traffic a place in ``traffic``;
* labels are left out: they follow from the settings. So do the keys of refused cells.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from robustfl.errors import UsageError
from robustfl.records import CellResult, Commit, CurvePoint, Metrics, Seconds, Status, Timing, canonical, digest, plain

from ..validation import first_fault
from .board import Board, Environment, Published, derived_labels

SCHEMA: Literal[2] = 2
CONSTANT_METRICS = ("evaluation", "samples")
_NO_VALUES: tuple[Any, ...] = (None, {}, [], "")


class Common(Published):
    """The entries that cells share. A cell's own entries go on top; its ``null`` means that it has no such entry."""

    scenario: str
    cell: dict[str, Any] = Field(description="settings, methods and versions that all cells share")
    certificates: dict[str, Any] = Field(description="facts that most of the trained cells share")
    metrics: dict[str, Any] = Field(description="what was evaluated, on how many images, in most of them")


class Cell(Published):
    """One cell that was trained; what it lacks stands in ``common``."""

    key: str = Field(description="digest of the whole resolved cell", pattern=r"^[0-9a-f]{32}$")
    status: Status = "done"
    scenario: str | None = None
    reason: str | None = Field(default=None, description="first line of why a cell diverged or failed")
    round: int | None = Field(default=None, description="where training diverged")
    cell: dict[str, Any] = Field(description="settings of its own; methods as places in the board's table")
    metrics: dict[str, Any] | None = Field(default=None, description="accuracies in [0, 1]")
    curve: list[CurvePoint] = Field(default_factory=list, description="accuracies in [0, 1] during training")
    seconds: Seconds = 0.0
    seconds_per_round: Seconds | None = None
    peak_memory_bytes: int = 0
    commits: list[Commit] = Field(default_factory=list, description="by which it was computed, if not all by the same")
    certificates: dict[str, Any] = Field(default_factory=dict, description="shifts, doubts, and what is not in common")


class Refused(Published):
    """Cells of one contestant that were refused for one reason: what they share, and what is each cell's own."""

    reason: str | None
    scenario: str | None = None
    cell: dict[str, Any]
    certificates: dict[str, Any] = Field(default_factory=dict)
    commits: list[Commit] = Field(default_factory=list)
    cells: list[dict[str, Any]] = Field(description="settings of each cell; its key is the digest of all of them")


class BoardFile(Published):
    """The content of a board file."""

    format: Literal["robustfl-board"] = "robustfl-board"
    schema_version: Literal[2] = SCHEMA
    name: str
    description: str = ""
    tolerance: float = Field(
        ge=0, le=1, allow_inf_nan=False, description="by how much an accuracy may differ when a cell is run again"
    )
    environment: Environment
    protocol: dict[str, Any] | None = Field(
        default=None, description="the attacks counted as AutoByz; of a benchmark, its version and every search"
    )
    defaults: dict[str, Any] = Field(default_factory=dict, description="labels of a cell that sets nothing")
    common: Common
    methods: list[dict[str, Any]] = Field(description="name, parameters and version of every method of the cells")
    traffic: list[dict[str, Any]] = Field(default_factory=list, description="numbers exchanged in a cell")
    cells: list[Cell]
    refused: list[Refused] = Field(default_factory=list)
    digest: str = Field(description="SHA-256 of the canonical JSON of everything else", pattern=r"^[0-9a-f]{64}$")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the form; the file ``reports/board.schema.json`` holds it."""
    names = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:robustfl:board:{SCHEMA}"}
    return {**names, **BoardFile.model_json_schema()}


def content_digest(data: Mapping[str, Any]) -> str:
    """The digest of a file's data, the digest itself left out."""
    return hashlib.sha256(canonical({k: v for k, v in data.items() if k != "digest"}).encode()).hexdigest()


# --- writing ---------------------------------------------------------------------------------------------------------


def encoded(board: Board) -> dict[str, Any]:
    """The data of a board's file, with its digest."""
    methods, traffic = _Table(), _Table()
    cells = [_with_methods(r.cell, methods.place) for r in board.cells]
    told = [
        {name: traffic.place(value) if name == "traffic" else value for name, value in r.certificates.items()}
        for r in board.cells
    ]
    pairs = list(zip(board.cells, cells, told, strict=True))
    trained = [(record, facts) for record, _, facts in pairs if record.status != "refused"]
    metrics = [r.metrics.model_dump(include={*CONSTANT_METRICS}) for r, _ in trained if r.metrics is not None]
    common = {
        "scenario": Counter(r.scenario for r in board.cells).most_common(1)[0][0],
        "cell": shared(cells),
        "certificates": usual([facts for _, facts in trained]),
        "metrics": usual(metrics),
    }
    several = len(board.environment.commits) > 1
    data: dict[str, Any] = {
        "format": "robustfl-board", "schema_version": SCHEMA, "name": board.name, "description": board.description,
        "tolerance": board.tolerance, "environment": board.environment.model_dump(),
        **({"protocol": board.protocol} if board.protocol else {}),
        **({"defaults": board.defaults} if board.defaults else {}),
        "common": common, "methods": methods.rows, **({"traffic": traffic.rows} if traffic.rows else {}),
        "cells": [_cell(*one, common, several) for one in pairs if one[0].status != "refused"],
        "refused": _refused([one for one in pairs if one[0].status == "refused"], common, several),
    }  # fmt: skip
    data = plain(data)
    return {**data, "digest": content_digest(data)}


class _Table:
    """Distinct values in the order of their first use."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        found = self._places.setdefault(canonical(value), len(self.rows))
        if found == len(self.rows):
            self.rows.append(value)
        return found


def _with_methods(cell: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A cell whose methods, single or in lists, went through ``change``."""
    found = cell.get("methods")
    if not isinstance(found, Mapping):
        return dict(cell)
    changed = {
        name: [*map(change, one)] if isinstance(one, list | tuple) else change(one) for name, one in found.items()
    }
    return {**cell, "methods": changed}


def _cell(
    record: CellResult, cell: Mapping[str, Any], facts: Mapping[str, Any], common: Mapping[str, Any], several: bool
) -> dict[str, Any]:
    own: dict[str, Any] = {
        "status": record.status if record.status != "done" else None,
        "scenario": record.scenario if record.scenario != common["scenario"] else None,
        "reason": record.reason,
        "round": record.round,
        "curve": [p.model_dump(mode="json") for p in record.curve],
        "seconds": record.timing.seconds,
        "seconds_per_round": record.timing.seconds_per_round,
        "peak_memory_bytes": record.timing.peak_memory_bytes,
        "commits": record.timing.commits if several else [],
        "certificates": unusual(facts, common["certificates"]),
    }
    if record.metrics is not None:
        metrics = record.metrics.model_dump(mode="json", exclude_defaults=True)
        rest = {name: value for name, value in metrics.items() if name not in CONSTANT_METRICS and value is not None}
        constant = {name: getattr(record.metrics, name) for name in CONSTANT_METRICS}
        own["metrics"] = rest | unusual(constant, common["metrics"])
    return {"key": record.key, "cell": without(cell, common["cell"])} | {
        name: value for name, value in own.items() if value not in _NO_VALUES or name == "metrics"
    }


def _refused(
    pairs: Iterable[tuple[CellResult, dict[str, Any], dict[str, Any]]], common: Mapping[str, Any], several: bool
) -> list[dict[str, Any]]:
    groups: dict[str, list[tuple[CellResult, dict[str, Any], dict[str, Any]]]] = {}
    for record, cell, facts in pairs:
        contestant = {axis: cell.get("methods", {}).get(axis) for axis in ("defense", "statistics_defense", "norm")}
        same = [record.reason, record.scenario, facts, record.timing.commits, contestant]
        groups.setdefault(canonical(same), []).append((record, cell, facts))
    rows = []
    for found in groups.values():
        record, _, facts = found[0]
        own = [without(cell, common["cell"]) for _, cell, _ in found]
        alike = shared(own)
        row: dict[str, Any] = {
            "scenario": record.scenario if record.scenario != common["scenario"] else None,
            "certificates": unusual(facts, common["certificates"]),
            "commits": record.timing.commits if several else [],
        }
        rows.append(
            {"reason": record.reason, "cell": alike, "cells": [without(one, alike) for one in own]}
            | {name: value for name, value in row.items() if value not in _NO_VALUES}
        )
    return rows


# --- reading ---------------------------------------------------------------------------------------------------------


def decoded(file: BoardFile) -> Board:
    """The board of a file. Raises ``UsageError`` for a place beyond a table, ``ValidationError`` for a wrong record."""
    common = file.common
    cells = [_record(cell, file, f"cells[{i}]") for i, cell in enumerate(file.cells)]
    for i, group in enumerate(file.refused):
        shared_cell = merged(common.cell, group.cell)
        facts = _facts(group.certificates, file, f"refused[{i}]")
        timing = Timing(commits=group.commits or file.environment.commits)
        for own in group.cells:
            cell = _named_methods(merged(shared_cell, own), file, f"refused[{i}]")
            cells.append(
                CellResult(
                    key=digest(cell), scenario=group.scenario or common.scenario, status="refused",
                    reason=group.reason, cell=cell, labels=_labels(cell), certificates=facts, timing=timing,
                )
            )  # fmt: skip
    return Board(
        name=file.name, cells=tuple(sorted(cells, key=lambda r: r.key)), environment=file.environment,
        tolerance=file.tolerance, description=file.description, protocol=file.protocol, defaults=file.defaults,
        digest=file.digest,
    )  # fmt: skip


def _record(own: Cell, file: BoardFile, where: str) -> CellResult:
    cell = _named_methods(merged(file.common.cell, own.cell), file, where)
    metrics = None
    if own.metrics is not None:
        try:
            metrics = Metrics.model_validate(filled(file.common.metrics, own.metrics))
        except ValidationError as error:
            raise UsageError(f"{where}.metrics.{first_fault(error)}") from None
    return CellResult(
        key=own.key, scenario=own.scenario or file.common.scenario, status=own.status, reason=own.reason,
        round=own.round, cell=cell, labels=_labels(cell),
        metrics=metrics, curve=own.curve,
        certificates=_facts(own.certificates, file, where),
        timing=Timing(
            seconds=own.seconds, seconds_per_round=own.seconds_per_round, peak_memory_bytes=own.peak_memory_bytes,
            commits=own.commits or file.environment.commits,
        ),
    )  # fmt: skip


def _labels(cell: Mapping[str, Any]) -> dict[str, Any]:
    settings = cell.get("cell")
    return derived_labels(settings) if isinstance(settings, Mapping) else {}


def _named_methods(cell: Mapping[str, Any], file: BoardFile, where: str) -> dict[str, Any]:
    return _with_methods(cell, lambda place: _at(file.methods, place, "methods", where))


def _facts(own: Mapping[str, Any], file: BoardFile, where: str) -> dict[str, Any]:
    facts = filled(file.common.certificates, own)
    return facts | {"traffic": _at(file.traffic, facts["traffic"], "traffic", where)} if "traffic" in facts else facts


def _at(rows: Sequence[Any], place: Any, table: str, where: str) -> Any:
    if type(place) is not int or not 0 <= place < len(rows):
        raise UsageError(f"{where} names {table}[{place!r}], and the table has {len(rows)} entries")
    return rows[place]


# --- what cells share ------------------------------------------------------------------------------------------------


def usual(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that more than half of the ``tables`` have alike.

    >>> usual([{"a": 1, "b": 2}, {"a": 1}, {"a": 3}])
    {'a': 1}
    """
    counts = Counter((name, canonical(value)) for table in tables for name, value in table.items())
    values = {(name, canonical(value)): value for table in tables for name, value in table.items()}
    return {key[0]: values[key] for key in sorted(counts) if 2 * counts[key] > len(tables)}


def unusual(table: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``table`` that ``common`` lacks or has otherwise, and ``None`` for those that only it has.

    >>> unusual({"a": 1, "c": 2}, {"a": 1, "b": 3})
    {'c': 2, 'b': None}
    """
    own = {name: value for name, value in table.items() if not _alike(value, common.get(name, _ABSENT))}
    return own | {name: None for name in common if name not in table}


def filled(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``common`` with ``own`` on top; ``filled(common, unusual(table, common))`` is ``table``."""
    return {name: value for name, value in {**common, **own}.items() if value is not None}


def shared(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries all ``values`` have alike, at every depth.

    >>> shared([{"a": 1, "b": {"c": 1, "d": 2}}, {"a": 2, "b": {"c": 1, "d": 3}}])
    {'b': {'c': 1}}
    """
    first = values[0]
    found: dict[str, Any] = {}
    for key, value in first.items():
        others = [v.get(key, _ABSENT) for v in values[1:]]
        if isinstance(value, Mapping) and all(isinstance(o, Mapping) for o in others):
            inner = shared([value, *others])
            if inner or all(not o for o in (value, *others)):
                found[key] = inner
        elif all(_alike(value, o) for o in others):
            found[key] = value
    return found


def without(value: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that ``value`` has beside ``common``; ``merged(common, without(value, common))`` is ``value``."""
    left: dict[str, Any] = {}
    for key, own in value.items():
        if key not in common:
            left[key] = own
        elif isinstance(own, Mapping):
            inner = without(own, common[key])
            if inner:
                left[key] = inner
    return left


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``common`` with ``own`` on top, at every depth.

    >>> merged({"b": {"c": 1}}, {"a": 2, "b": {"d": 3}})
    {'b': {'c': 1, 'd': 3}, 'a': 2}
    """
    both = dict(common)
    for key, value in own.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


_ABSENT = object()


def _alike(a: Any, b: Any) -> bool:
    """Equal in value and type, so that 1, 1.0 and True stay apart."""
    return b is not _ABSENT and canonical(a) == canonical(b)
