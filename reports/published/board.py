"""A published board: the cells themselves, the environment they ran in, the protocol, the tolerance that is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from robustfl.outside import shown
from robustfl.provenance import UNKNOWN
from robustfl.records import LATER, CellResult, Commit, completed, labels_of, misnamed

from ..record_faults import unlikely
from .faults import PROTOCOL, is_count, misdeclared, undeclared

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


@dataclass(frozen=True)
class Board:
    """A published board; ``cells`` are its records in the order of their keys, with what boards carry of a record.

    ``defaults`` are the labels of a cell that sets nothing, which captions leave out. ``protocol`` says which attacks
    count as AutoByz and, of a benchmark, its version and every search. ``digest`` is the one that a file claims.
    """

    name: str
    cells: tuple[CellResult, ...]
    environment: Environment
    tolerance: float = TOLERANCE
    description: str = ""
    protocol: dict[str, Any] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def has_curves(self) -> bool:
        """True if accuracies during training were published."""
        return any(record.curve for record in self.cells)

    def records(self) -> list[CellResult]:
        """The cells; with curves where they were published."""
        return list(self.cells)


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


def faults_of(board: Board) -> list[str]:
    """Faults of a board but for its digest, found without running anything."""
    wrong = [f"cell {r.key}: {words}" for r in board.cells if (words := misnamed(r) or unlikely(r) or undeclared(r))]
    commits = (commit for record in board.cells for commit in record.timing.commits)
    found = environment_of(board.cells).model_dump()
    wrong += misdeclared(board.environment.model_dump(), found, commits, board.protocol or {})
    wrong += [f"duplicate cell {key}: {n} times" for key, n in Counter(r.key for r in board.cells).items() if n > 1]
    return wrong


def derived_labels(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The labels of a cell with these settings, those of settings that came later included."""
    return labels_of(completed(settings, LATER))


def environment_of(results: Sequence[CellResult]) -> Environment:
    """The environment that records say they ran in."""
    versions: dict[str, set[str]] = {}
    for record in results:
        found = record.certificates.get("versions")
        for name, version in found.items() if isinstance(found, Mapping) else ():
            versions.setdefault(str(name), set()).add(str(version))
    told = any(r.timing.commits for r in results)
    commits = {c for r in results for c in r.timing.commits or [UNKNOWN]} if told else set[str]()
    return Environment(
        versions={n: sorted(v) for n, v in sorted(versions.items())},
        devices=sorted({str(d) for r in results if (d := r.certificates.get("device"))}),
        threads=sorted({t for r in results if is_count(t := r.certificates.get("threads"))}),
        commits=sorted(commits),
        processors=sorted({shown(r.timing.device) for r in results if r.timing.device}),
    )
