"""Local client forgetting: what each participant's training costs on the others' data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..axes import text
from ..board import in_words, natural
from ..loading import experiments, telling
from .layout import WIDTHS, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = ("dataset", "partition", "model", "norm", "algorithm", "objective", "defense", "attack")


def forgetting_maps(results: Sequence[CellResult], width: str = "page") -> Iterator[tuple[str, Figure]]:
    """For every experiment and round in which forgetting was measured (lowest seed), a title and two heatmaps.

    Over clients × data sets: left the loss of accuracy ``F = Acc(received) - Acc(local)``, right the accuracy after
    local training. Rounds are told where a cell lists them; otherwise it is the last.
    """
    chosen = experiments((r for r in results if _measured(r)), *_NAMES)
    told = telling(_NAMES, chosen)
    for record in chosen.values():
        values = [(n, value) for n in told if (value := text(record.labels.get(n))) != "–"]
        name, words = " ".join(v for _, v in values), " · ".join(in_words(n, v) for n, v in values)
        for round, facts in _measured(record).items():
            told_round = f", round {round}" if round else ""
            yield f"forgetting {name}{told_round}", _figure(f"{words}{told_round}", record, facts, width)


def _measured(record: CellResult) -> dict[str, Mapping[str, Any]]:
    """The measurements of each listed round, in their order, or under ``""`` in the last one."""
    found = record.certificates.get("forgetting")
    if not isinstance(found, dict):
        return {}
    by_round = {"": found} if "matrix" in found else dict(sorted(found.items(), key=lambda item: natural(item[0])))
    return {round: facts for round, facts in by_round.items() if isinstance(facts, dict) and _matrix(facts, "matrix")}


def _matrix(facts: Mapping[str, Any], name: str) -> list[list[float]]:
    """Rows of accuracies; of data that a client does not have they are NaN, which files spell out."""
    matrix = facts.get(name)
    return [[float(value) for value in row] for row in matrix] if isinstance(matrix, list) else []


def _figure(name: str, record: CellResult, facts: Mapping[str, Any], width: str) -> Figure:
    from matplotlib.figure import Figure

    clients = [str(k) for k in facts["clients"]]
    wide = WIDTHS[width]
    figure = Figure(figsize=(wide, 0.5 * wide + 0.35), layout="constrained")
    left, right = figure.subplots(1, 2)
    letters = 6.0 if width == "column" else 8
    few = len(clients) <= (6 if width == "column" else 12)
    lost = [[100 * v for v in row] for row in _matrix(facts, "matrix")]
    after = [[100 * v for v in row] for row in _matrix(facts, "after")]
    for axes, values, title in ((left, lost, "accuracy lost (points)"), (right, after, "accuracy after (%)")):
        _map(axes, values, clients, letters, numbers=few)
        axes.set_title(title, fontsize=letters + 1)
        axes.set_xlabel("data of client", fontsize=letters)
    left.set_ylabel("model of client", fontsize=letters)
    mean = facts.get("mean")
    share = f"mean off the diagonal {100 * mean:.1f} points, " if isinstance(mean, float) else ""
    figure.suptitle(f"{wrapped(name, 60)}\n{share}seed {text(record.labels.get('seed'))}", fontsize=letters)
    return figure


def _map(axes: Any, values: list[list[float]], clients: Sequence[str], letters: float, *, numbers: bool) -> None:
    """A heatmap over the values that there are, grey where there is none; its lightness rises with them."""
    flat = [v for row in values for v in row if not math.isnan(v)] or [0.0]
    low, high = min(flat), max(flat)
    if high - low < 1:  # nothing is made of rounding
        low, high = low - 0.5, high + 0.5
    mesh = axes.pcolormesh(values, cmap="cividis", vmin=low, vmax=high, edgecolors="white", linewidth=0.4)
    axes.set(aspect="equal", ylim=(len(values), 0))
    axes.set_facecolor("lightgrey")
    axes.grid(visible=False)
    every = max(1, -(-len(clients) // 16))
    places = [i + 0.5 for i in range(0, len(clients), every)]
    axes.set_xticks(places, clients[::every])
    axes.set_yticks(places, clients[::every])
    axes.tick_params(labelsize=letters, length=0)
    bar = axes.figure.colorbar(mesh, ax=axes, shrink=0.75, pad=0.03)
    bar.ax.tick_params(labelsize=letters)
    for y, row in enumerate(values if numbers else ()):
        for x, value in enumerate(row):
            dark, number = value < low + 0.55 * (high - low), "–" if math.isnan(value) else f"{value:.0f}"
            axes.text(x + 0.5, y + 0.5, number, ha="center", va="center", fontsize=letters - 1,
                      color="white" if dark else "black")  # fmt: skip
