"""Local client forgetting: what each participant's training costs on the others' data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from .board import natural
from .figure_layout import wrapped
from .ranking import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = ("dataset", "partition", "model", "norm", "algorithm", "objective", "defense", "attack")


def forgetting_maps(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment and round in which forgetting was measured (lowest seed), a title and two heatmaps.

    Over clients × data sets: left the loss of accuracy ``F = Acc(received) - Acc(local)``, right the accuracy after
    local training. Rounds are told where a cell lists them; otherwise it is the last.
    """
    chosen: dict[tuple[str, ...], CellResult] = {}
    for record in sorted((r for r in results if _measured(r)), key=_order):
        chosen.setdefault(tuple(text(record.labels.get(n)) for n in _NAMES), record)
    told = [n for i, n in enumerate(_NAMES) if len({key[i] for key in chosen}) > 1 or n in ("norm", "objective")]
    for record in chosen.values():
        name = " ".join(text(record.labels.get(n)) for n in told)
        for round, facts in _measured(record).items():
            told_round = f", round {round}" if round else ""
            yield f"forgetting {name}{told_round}", _figure(f"{name}{told_round}", record, facts)


def _order(record: CellResult) -> tuple[Any, ...]:
    return (*(natural(text(record.labels.get(n))) for n in (*_NAMES, "seed")), record.key)


def _measured(record: CellResult) -> dict[str, Mapping[str, Any]]:
    """What was measured in each listed round, in their order, or under ``""`` in the last one."""
    found = record.certificates.get("forgetting")
    if not isinstance(found, dict):
        return {}
    by_round = {"": found} if "matrix" in found else dict(sorted(found.items(), key=lambda item: natural(item[0])))
    return {round: facts for round, facts in by_round.items() if isinstance(facts, dict) and _matrix(facts, "matrix")}


def _matrix(facts: Mapping[str, Any], name: str) -> list[list[float]]:
    matrix = facts.get(name)
    return matrix if isinstance(matrix, list) else []


def _figure(name: str, record: CellResult, facts: Mapping[str, Any]) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    clients = [str(k) for k in facts["clients"]]
    size = max(2.6, 0.36 * len(clients))
    figure = Figure(figsize=(2 * size + 2.2, size + 1.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    numbers = {"annot": len(clients) <= 10, "fmt": ".0f", "annot_kws": {"size": 7}, "square": True}
    axes = {"xticklabels": clients, "yticklabels": clients, "linewidths": 0.4}
    lost = [[100 * v for v in row] for row in _matrix(facts, "matrix")]
    after = [[100 * v for v in row] for row in _matrix(facts, "after")]
    seaborn.heatmap(lost, ax=left, cmap="vlag", center=0, vmin=-100, vmax=100, **numbers, **axes)
    seaborn.heatmap(after, ax=right, cmap="crest", vmin=0, vmax=100, **numbers, **axes)
    left.set_title("accuracy lost (points)")
    right.set_title("accuracy after local training (%)")
    for axis in (left, right):
        axis.set_xlabel("data of client")
        axis.set_ylabel("model of client")
    mean = facts.get("mean")
    share = f"mean off the diagonal {100 * mean:.1f} points, " if isinstance(mean, float) else ""
    figure.suptitle(f"{wrapped(name, 60)}\n{share}seed {text(record.labels.get('seed'))}", fontsize=10)
    return figure
