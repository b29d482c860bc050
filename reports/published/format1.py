"""Format 1 of board files, which is read and no longer written: one entry per cell with its labels and every fact."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import Field

from robustfl.records import CellResult, Commit, CurvePoint, Metrics, Seconds, Status, canonical

from .board import Board, Environment, Published
from .format2 import merged

SCHEMA: Literal[1] = 1


class Cell(Published):
    """One cell; ``cell`` and ``labels`` together with the board's ``common`` are those of the record."""

    key: str = Field(pattern=r"^[0-9a-f]{32}$")
    scenario: str
    status: Status
    reason: str | None = None
    round: int | None = None
    cell: dict[str, Any]
    labels: dict[str, Any]
    metrics: Metrics | None = None
    curve: list[CurvePoint] = Field(default_factory=list)
    seconds: Seconds = Field(...)  # ...: pydantic 2.7 has a default else
    seconds_per_round: Seconds | None = None
    peak_memory_bytes: int = 0
    commits: list[Commit] = Field(default_factory=list)
    certificates: dict[str, Any] = Field(default_factory=dict)


class Common(Published):
    """The entries that all cells share; the cells' own entries go on top, at every depth."""

    cell: dict[str, Any]
    labels: dict[str, Any]


class BoardFile(Published):
    """The content of a board file of format 1."""

    format: Literal["robustfl-board"] = "robustfl-board"
    schema_version: Literal[1] = SCHEMA
    name: str
    description: str = ""
    tolerance: float = Field(ge=0, le=1, allow_inf_nan=False)
    environment: Environment
    common: Common
    protocol: dict[str, Any] | None = None
    cells: list[Cell]
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")


def content_digest(file: BoardFile) -> str:
    """The digest of a file's content, the digest itself left out; what is not set counts as absent."""
    data = file.model_dump(mode="json", exclude={"digest", "protocol"} if file.protocol is None else {"digest"})
    data["environment"] = {k: v for k, v in data["environment"].items() if v or k not in ("commits", "processors")}
    data["cells"] = [_sparse(c) for c in data["cells"]]
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def _sparse(cell: dict[str, Any]) -> dict[str, Any]:
    if cell["metrics"] is not None:
        cell["metrics"] = {k: v for k, v in cell["metrics"].items() if v not in ({}, None)}
    return {k: v for k, v in cell.items() if v is not None and (v or k not in ("curve", "commits"))}


def decoded(file: BoardFile) -> Board:
    """The board of a file. Raises ``ValidationError`` for a wrong record."""
    return Board(
        name=file.name, cells=tuple(_record(cell, file) for cell in file.cells), environment=file.environment,
        tolerance=file.tolerance, description=file.description, protocol=file.protocol, digest=file.digest,
    )  # fmt: skip


def _record(own: Cell, file: BoardFile) -> CellResult:
    return CellResult.model_validate(
        {
            "key": own.key, "scenario": own.scenario, "status": own.status, "reason": own.reason, "round": own.round,
            "metrics": own.metrics, "curve": own.curve, "certificates": own.certificates,
            "cell": merged(file.common.cell, own.cell),
            "labels": merged(file.common.labels, own.labels),
            "timing": {
                "seconds": own.seconds,
                "seconds_per_round": own.seconds_per_round,
                "peak_memory_bytes": own.peak_memory_bytes,
                "commits": own.commits or file.environment.commits,
            },
        }
    )  # fmt: skip
