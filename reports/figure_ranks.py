"""Mean ranks over scenarios with Nemenyi's critical difference (Demšar, JMLR 2006), in the board's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .board import Board, metric_title, row_name
from .figure_layout import longest, roomy, wrapped
from .paired import LEVEL
from .rank_test import MIN_SCENARIOS, Ranking, rank_over_scenarios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMES = 40


def rank_figures(board: Board) -> Iterator[tuple[str, Figure]]:
    """For every metric with enough contestants and scenarios, a title and a figure; at most 40 names fit one."""
    for metric in board.metrics:
        ranked = rank_over_scenarios(board, metric)
        if ranked.names and len(ranked.names) <= MAX_NAMES:
            yield f"ranks {metric}", _figure(board, ranked)


def _figure(board: Board, ranked: Ranking) -> Figure:
    """One line per contestant, the board's first at the top: its mean rank, half the critical difference to each side.

    Contestants whose bars overlap do not differ.
    """
    from matplotlib.figure import Figure

    assert ranked.critical is not None
    assert ranked.p is not None
    k, n = len(ranked.names), len(ranked.scenarios)
    names = [wrapped(row_name(board.label_names, name), 40) for name in ranked.names]
    width = 4.6 + 0.075 * longest(names)
    lines = sum(name.count("\n") + 1 for name in names)
    figure = Figure(figsize=(width, 1.25 + 0.24 * lines), layout=roomy(width))
    axes = figure.subplots()
    for i, rank in enumerate(ranked.mean_ranks):
        ends = max(1.0, rank - ranked.critical / 2), min(float(k), rank + ranked.critical / 2)
        axes.plot(ends, [i, i], color="#9dbad5", linewidth=5, solid_capstyle="butt")
        axes.plot(rank, i, marker="o", markersize=5, color="#1a1f24")
        axes.annotate(f"{rank:.2f}", (rank, i), textcoords="offset points", xytext=(0, 5), ha="center", fontsize=7)
    axes.set_yticks(range(k), names)
    axes.set(ylim=(k - 0.4, -0.9), xlim=(0.7, k + 0.3), xlabel="mean rank (1 is best)")
    axes.grid(visible=False, axis="y")
    said = f"bars that overlap do not differ (difference {ranked.critical:.2f})"
    if n < MIN_SCENARIOS:
        said = f"fewer than {MIN_SCENARIOS} scenarios claim nothing"
    elif ranked.p > LEVEL:
        said = "no difference can be claimed"
    figure.suptitle(
        f"{metric_title(ranked.metric)}: ranks over {n} scenarios, in the board's order\n"
        f"Friedman p = {ranked.p:.2g}; {said}",
        fontsize=10,
    )
    return figure
