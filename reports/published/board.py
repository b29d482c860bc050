"""A board that others can check: the cells themselves, the environment they ran in, the tolerance that is claimed.

The form is versioned and published as ``board.schema.json``. Settings that all cells share stand once under
``common``; each cell holds what is its own.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from robustfl.errors import UsageError
from robustfl.outside import shown
from robustfl.provenance import UNKNOWN
from robustfl.records import CellResult, Commit, CurvePoint, Metrics, Seconds, Status, canonical, misnamed, plain

from ..documents import first_fault, read_document
from ..record_faults import unlikely
from ..store import write_atomic
from .faults import CERTIFICATES, LEFT_IN_THE_STORE, PROTOCOL, forgotten, is_count, misdeclared, undeclared

FORMAT = "robustfl-board"
SCHEMA: Literal[1] = 1
TOLERANCE = 0.01
"""One percentage point: what another machine may change in an accuracy after hundreds of rounds."""


class Published(BaseModel):
    """Base of what a board file holds; unknown fields and values of another type are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Environment(Published):
    """Software and machine that the cells ran with; several values where cells differ."""

    versions: dict[str, list[str]] = Field(description="software and its versions")
    devices: list[str] = Field(description="cpu or cuda")
    threads: list[int] = Field(description="threads per cell")
    commits: list[Commit] = Field(default_factory=list, description="of robustfl's own code; none: not written down")
    processors: list[str] = Field(default_factory=list, description="names of processors or GPUs")


class PublishedCell(Published):
    """One cell; ``cell`` and ``labels`` together with the board's ``common`` are those of the record."""

    key: str = Field(description="digest of the whole resolved cell", pattern=r"^[0-9a-f]{32}$")
    scenario: str
    status: Status
    reason: str | None = Field(default=None, description="first line of why a cell was refused, diverged or failed")
    round: int | None = Field(default=None, description="where training diverged")
    cell: dict[str, Any] = Field(description="settings, methods and versions that not all cells share")
    labels: dict[str, Any]
    metrics: Metrics | None = Field(default=None, description="accuracies in [0, 1]")
    curve: list[CurvePoint] = Field(default_factory=list, description="accuracies in [0, 1] during training")
    seconds: Seconds = Field(..., description="how long the cell took")  # ...: pydantic 2.7 has a default else
    seconds_per_round: Seconds | None = None
    peak_memory_bytes: int = 0
    commits: list[Commit] = Field(default_factory=list, description="by which it was computed, if not all by the same")
    certificates: dict[str, Any] = Field(default_factory=dict, description="device, threads, versions, source, doubts")


class Common(Published):
    """The entries that all cells share; the cells' own entries go on top, at every depth."""

    cell: dict[str, Any]
    labels: dict[str, Any]


class Board(Published):
    """A published board."""

    format: Literal["robustfl-board"] = "robustfl-board"
    schema_version: Literal[1] = SCHEMA
    name: str
    description: str = ""
    tolerance: float = Field(
        ge=0, le=1, allow_inf_nan=False, description="by how much an accuracy may differ when a cell is run again"
    )
    environment: Environment
    common: Common
    protocol: dict[str, Any] | None = Field(
        default=None, description="the attacks counted as AutoByz; of a benchmark, its version and every search"
    )
    cells: list[PublishedCell]
    digest: str = Field(description="SHA-256 of the canonical JSON of everything else", pattern=r"^[0-9a-f]{64}$")

    def records(self) -> list[CellResult]:
        """The cells as records; with curves where they were published."""
        return [self.record(c) for c in self.cells]

    def record(self, cell: PublishedCell) -> CellResult:
        """One cell as a record."""
        return CellResult.model_validate(
            {
                "key": cell.key, "scenario": cell.scenario, "status": cell.status, "reason": cell.reason,
                "round": cell.round, "metrics": cell.metrics, "curve": cell.curve, "certificates": cell.certificates,
                "cell": merged(self.common.cell, cell.cell),
                "labels": merged(self.common.labels, cell.labels),
                "timing": {
                    "seconds": cell.seconds,
                    "seconds_per_round": cell.seconds_per_round,
                    "peak_memory_bytes": cell.peak_memory_bytes,
                    "commits": cell.commits or self.environment.commits,
                },
            }
        )  # fmt: skip


def publish(
    results: Sequence[CellResult],
    *,
    name: str,
    description: str = "",
    tolerance: float = TOLERANCE,
    curves: bool = False,
    protocol: Mapping[str, Any] | None = None,
) -> Board:
    """The board of some records, with their ``curves`` during training if wanted, and the ``protocol`` they follow.

    Raises ``UsageError`` for a tolerance outside [0, 1] and for no records.
    """
    if not results:
        raise UsageError("board: there is no finished cell to publish")
    if not 0 <= tolerance <= 1:
        raise UsageError(f"board: tolerance={tolerance:g} must be in [0, 1], a difference of accuracies")
    common = {"cell": shared([r.cell for r in results]), "labels": shared([r.labels for r in results])}
    environment = _environment(results)
    several = len(environment["commits"]) > 1
    cells = [
        _cell(r, common, curves=curves) | ({"commits": r.timing.commits or [UNKNOWN]} if several else {})
        for r in sorted(results, key=lambda r: r.key)
    ]
    known = {
        "format": FORMAT, "schema_version": SCHEMA, "name": shown(name), "description": shown(description),
        "tolerance": tolerance,
        "environment": environment, "common": common, "cells": cells,
        "protocol": dict(protocol) if protocol else None,
    }  # fmt: skip
    board = Board.model_validate({**plain(known), "digest": "0" * 64})
    return board.model_copy(update={"digest": content_digest(board)})


def carried(description: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol that boards of a store with this description carry; empty if it follows none."""
    return {name: description[name] for name in PROTOCOL if isinstance(description.get(name), Mapping)}


def described_cells(results: Sequence[CellResult], described: Mapping[str, Any]) -> Sequence[CellResult]:
    """The records of a store that its description speaks of: of a benchmark's store the cells of its last run.

    What earlier runs left belongs to searches that are not said. A store that was merged has no last run.
    """
    planned = described.get("cells")
    if "benchmark" in carried(described) and "scenario" in described and isinstance(planned, Mapping):
        return [r for r in results if r.key in planned]
    return results


def publish_described(
    results: Sequence[CellResult], described: Mapping[str, Any], *, name: str, tolerance: float = TOLERANCE
) -> Board:
    """The board of a store's records, with the text and the protocol of its description.

    Raises ``UsageError`` for records that ``read_board`` would find fault with.
    """
    about, cells = str(described.get("description") or ""), described_cells(results, described)
    board = publish(cells, name=name, description=about, tolerance=tolerance, protocol=carried(described))
    if wrong := _wrong(board, board.records()):
        raise UsageError(f"board: {wrong[0]}; nobody would take it")
    return board


def _cell(record: CellResult, common: Mapping[str, Any], *, curves: bool) -> dict[str, Any]:
    left_out = set(LEFT_IN_THE_STORE)
    return {
        "key": record.key,
        "scenario": record.scenario,
        "status": record.status,
        "reason": (record.reason or "").strip().splitlines()[0] if (record.reason or "").strip() else None,
        "round": record.round,
        "cell": without(record.cell, common["cell"]),
        "labels": without(record.labels, common["labels"]),
        "curve": [p.model_dump(mode="json") for p in record.curve] if curves else [],
        "metrics": record.metrics and record.metrics.model_dump(mode="json", exclude=left_out, exclude_defaults=True),
        "seconds": record.timing.seconds,
        "seconds_per_round": record.timing.seconds_per_round,
        "peak_memory_bytes": record.timing.peak_memory_bytes,
        "certificates": {
            name: value
            for name in CERTIFICATES
            if name != "forgetting"
            and ((value := record.certificates.get(name)) or type(value) in (int, float))  # 0 says something, too
        }
        | _forgetting(record),
    }


def _forgetting(record: CellResult) -> dict[str, Any]:
    """The means of forgetting, without the matrices over clients."""
    means = {r: {"mean": mean} for r, mean in forgotten(record.certificates.get("forgetting")).items()}
    return {"forgetting": means.get("", means)} if means else {}


def _environment(results: Sequence[CellResult]) -> dict[str, Any]:
    versions: dict[str, set[str]] = {}
    for record in results:
        found = record.certificates.get("versions")
        for name, version in found.items() if isinstance(found, Mapping) else ():
            versions.setdefault(str(name), set()).add(str(version))
    devices = {str(d) for r in results if (d := r.certificates.get("device"))}
    threads = {t for r in results if is_count(t := r.certificates.get("threads"))}
    told = any(r.timing.commits for r in results)
    commits = {c for r in results for c in r.timing.commits or [UNKNOWN]} if told else set[str]()
    return {
        "versions": {n: sorted(v) for n, v in sorted(versions.items())},
        "devices": sorted(devices),
        "threads": sorted(threads),
        "commits": sorted(commits),
        "processors": sorted({shown(r.timing.device) for r in results if r.timing.device}),
    }


def content_digest(board: Board) -> str:
    """The digest of a board's content, the digest itself left out; what is not set counts as absent."""
    data = _dumped(board)
    del data["digest"]
    data["cells"] = [_sparse(c) for c in data["cells"]]
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def _dumped(board: Board) -> dict[str, Any]:
    """A board as JSON data; what boards from before could not say is left out where there is nothing to say."""
    data = board.model_dump(mode="json", exclude={"protocol"} if board.protocol is None else None)
    data["environment"] = {k: v for k, v in data["environment"].items() if v or k not in ("commits", "processors")}
    return data


def write_board(board: Board, path: str | Path) -> Path:
    """Write a board as JSON, one cell a line."""
    data = _dumped(board)
    cells = ",\n".join("  " + canonical(_sparse(c)) for c in data.pop("cells"))
    sign = data.pop("digest")
    head = "".join(f' "{k}": {json.dumps(plain(v), sort_keys=True, ensure_ascii=False)},\n' for k, v in data.items())
    text = f'{{\n{head} "cells": [\n{cells}\n ],\n "digest": "{sign}"\n}}\n'
    write_atomic(Path(path), text)
    return Path(path)


def _sparse(cell: Mapping[str, Any]) -> dict[str, Any]:
    metrics = cell.get("metrics")
    slim = dict(cell)
    if metrics is not None:
        slim["metrics"] = {k: v for k, v in metrics.items() if v not in ({}, None)}
    return {k: v for k, v in slim.items() if v is not None and (v or k not in ("curve", "commits"))}


def read_board(path: str | Path) -> tuple[Board, list[str]]:
    """A board and what is wrong with it without running anything: edited content, keys that are not their cells'.

    Raises ``UsageError`` for a file that is no board and ``StoreError`` for one that cannot be read.
    """
    none = "not a published board; write one with `robustfl report STORE --board FILE`"
    try:
        board = read_document(Path(path), Board, schema=(FORMAT, SCHEMA), none=none, lines=_tells)
        records = board.records()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no file {str(path)!r}; write a board with `robustfl report STORE --board FILE`") from None
    except IsADirectoryError:
        raise UsageError(
            f"{str(path)!r} is a folder; write a board with `robustfl report {path} --board FILE`"
        ) from None
    except ValidationError as error:  # of a record
        raise UsageError(f"{path}: {first_fault(error)}") from None
    for record in records:
        if not all(isinstance(record.cell.get(part), Mapping) for part in ("cell", "methods")):
            raise UsageError(f"{path}: cell {record.key} does not say how it ran: it lacks cell.cell or cell.methods")
    edited = "its content does not have the digest it claims: it was edited after it was written"
    return board, [*([] if content_digest(board) == board.digest else [edited]), *_wrong(board, records)]


def _wrong(board: Board, records: Sequence[CellResult]) -> list[str]:
    """What is wrong with a board of these records but for its digest, without running anything."""
    wrong = [f"cell {r.key}: {words}" for r in records if (words := misnamed(r) or unlikely(r) or undeclared(r))]
    commits = (commit for cell in board.cells for commit in cell.commits)
    wrong += misdeclared(board.environment.model_dump(), _environment(records), commits, board.protocol or {})
    wrong += [f"cell {key} is there {n} times" for key, n in Counter(c.key for c in board.cells).items() if n > 1]
    return wrong


def sound_board(path: str | Path) -> Board:
    """A board with nothing wrong. Raises ``UsageError`` with what is wrong first, else as ``read_board`` does."""
    board, wrong = read_board(path)
    if wrong:
        raise UsageError(f"{path}: {wrong[0]}")
    return board


def _tells(where: str) -> bool:
    """True if a text of a board may have several lines."""
    return where == "description" or where.endswith(".reason")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the form; the file ``reports/board.schema.json`` holds it."""
    names = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:robustfl:board:{SCHEMA}"}
    return {**names, **Board.model_json_schema()}


# --- what cells share ------------------------------------------------------------------------------------------------


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
