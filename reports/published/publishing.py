"""From records to the board that is published of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from robustfl.errors import UsageError
from robustfl.outside import shown
from robustfl.provenance import UNKNOWN
from robustfl.records import CellResult, Commit, Metrics, Timing, misnamed

from .board import (
    LEFT_IN_THE_STORE,
    TOLERANCE,
    Board,
    Certificates,
    carried,
    derived_labels,
    described_cells,
    environment_of,
    faults_of,
    forgotten,
)
from .format2 import encoded


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
        metrics=record.metrics and _metrics(record.metrics),
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


def _metrics(metrics: Metrics) -> Metrics:
    return metrics.model_copy(update={name: {} for name in LEFT_IN_THE_STORE})


def _forgetting(record: CellResult) -> dict[str, Any]:
    """The means of forgetting, without the matrices over clients."""
    means = {r: {"mean": mean} for r, mean in forgotten(record.certificates.get("forgetting")).items()}
    return {"forgetting": means.get("", means)} if means else {}
