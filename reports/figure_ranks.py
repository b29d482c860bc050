"""Mean ranks over scenarios with Nemenyi's critical difference (the diagram of Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .board import Board, metric_title
from .rank_test import Ranking, rank_over_scenarios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMES = 40


def rank_figures(board: Board) -> Iterator[tuple[str, Figure]]:
    """For every metric with enough contestants and scenarios, a title and a figure; at most 40 names fit one."""
    for metric in board.metrics:
        ranked = rank_over_scenarios(board, metric)
        if ranked.names and len(ranked.names) <= MAX_NAMES:
            yield f"ranks {metric}", _figure(ranked)


def _figure(ranked: Ranking) -> Figure:
    from matplotlib.figure import Figure

    k = len(ranked.names)
    half = (k + 1) // 2
    levels = _levels(ranked)
    floor = -0.45 * (max(levels, default=-1) + 2)
    bottom = floor - 0.9 * (half + 0.8)
    figure = Figure(figsize=(8.0, 0.5 + 0.24 * (2.4 - bottom)), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(k + 0.02 * k, 1 - 0.02 * k), ylim=(bottom, 2.4))
    axes.axis("off")
    axes.plot([1, k], [0, 0], color="black", linewidth=1.2)
    for tick in range(1, k + 1) if k <= 20 else range(1, k + 1, 5):
        axes.plot([tick, tick], [0, 0.25], color="black", linewidth=0.8)
        axes.text(tick, 0.4, str(tick), ha="center", va="bottom", fontsize=8)
    assert ranked.critical is not None
    start = k - min(ranked.critical, k - 1)
    axes.plot([k, start], [1.5, 1.5], color="black", linewidth=2)
    axes.text((k + start) / 2, 1.6, f"critical difference {ranked.critical:.2f}", ha="center", va="bottom", fontsize=8)
    for (first, last), level in zip(ranked.groups, levels, strict=True):
        y = -0.45 - 0.45 * level
        ends = [ranked.mean_ranks[first] - 0.04, ranked.mean_ranks[last] + 0.04]
        axes.plot(ends, [y, y], color="#444444", linewidth=3, solid_capstyle="butt")
    for i, (name, rank) in enumerate(zip(ranked.names, ranked.mean_ranks, strict=True)):
        _name(axes, i, half, k, rank, f"{' · '.join(name)}  {rank:.2f}", floor)
    n = len(ranked.scenarios)
    figure.suptitle(
        f"{metric_title(ranked.metric)}: mean rank over {n} scenarios (1, at the right, is best)", fontsize=10
    )
    return figure


def _name(axes: Any, i: int, half: int, k: int, rank: float, text: str, floor: float) -> None:
    """A line from the rank down to the contestant's name: the better half at the right, the others at the left."""
    right = i < half
    y = floor - 0.9 * (i + 1 if right else k - i)
    edge = 1 if right else k
    axes.plot([rank, rank, edge], [0, y, y], color="#999999", linewidth=0.8)
    axes.text(edge, y, (" " if right else "") + text + ("" if right else " "), ha="left" if right else "right",
              va="center", fontsize=8, clip_on=False)  # fmt: skip


def _levels(ranked: Ranking) -> list[int]:
    """For every group the height of its bar, so that bars that overlap are drawn apart."""
    levels: list[int] = []
    for i, (first, _) in enumerate(ranked.groups):
        taken = {levels[j] for j in range(i) if ranked.groups[j][1] >= first}
        levels.append(next(v for v in range(len(ranked.groups)) if v not in taken))
    return levels
