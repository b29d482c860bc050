"""A published board: the cells themselves, the environment they ran in, the protocol, the tolerance that is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from robustfl.errors import UsageError
from robustfl.outside import shown
from robustfl.provenance import UNKNOWN
from robustfl.records import LATER, CellResult, Commit, Metrics, Timing, completed, labels_of, misnamed

from ..record_faults import unlikely
from .faults import CERTIFICATES, LEFT_IN_THE_STORE, PROTOCOL, forgotten, is_count, misdeclared, undeclared

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
    count as AutoByz and, of a benchmark, its version and every search. ``claimed`` is the digest that a file claims.
    """

    name: str
    cells: tuple[CellResult, ...]
    environment: Environment
    tolerance: float = TOLERANCE
    description: str = ""
    protocol: dict[str, Any] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    claimed: str = ""

    @property
    def digest(self) -> str:
        """The digest that the file claims; of a board that was not read, the one its file will have."""
        from .format2 import encoded

        return self.claimed or str(encoded(self)["digest"])

    @property
    def has_curves(self) -> bool:
        """True if accuracies during training were published."""
        return any(record.curve for record in self.cells)

    def records(self) -> list[CellResult]:
        """The cells; with curves where they were published."""
        return list(self.cells)


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
    environment = _environment(results)
    several = len(environment.commits) > 1
    return Board(
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


def faults_of(board: Board) -> list[str]:
    """What is wrong with a board but for its digest, without running anything."""
    wrong = [f"cell {r.key}: {words}" for r in board.cells if (words := misnamed(r) or unlikely(r) or undeclared(r))]
    commits = (commit for record in board.cells for commit in record.timing.commits)
    found = _environment(board.cells).model_dump()
    wrong += misdeclared(board.environment.model_dump(), found, commits, board.protocol or {})
    wrong += [f"duplicate cell {key}: {n} times" for key, n in Counter(r.key for r in board.cells).items() if n > 1]
    return wrong


def derived_labels(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The labels of a cell with these settings, those of settings that came later included."""
    return labels_of(completed(settings, LATER))


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
        metrics=record.metrics and _metrics(record.metrics),
        curve=record.curve if curves else [],
        certificates={
            name: value
            for name in CERTIFICATES
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


def _metrics(metrics: Metrics) -> Metrics:
    return metrics.model_copy(update={name: {} for name in LEFT_IN_THE_STORE})


def _forgetting(record: CellResult) -> dict[str, Any]:
    """The means of forgetting, without the matrices over clients."""
    means = {r: {"mean": mean} for r, mean in forgotten(record.certificates.get("forgetting")).items()}
    return {"forgetting": means.get("", means)} if means else {}


def _environment(results: Sequence[CellResult]) -> Environment:
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
