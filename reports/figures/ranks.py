"""Mean ranks over scenarios with Nemenyi's critical difference (Demšar, JMLR 2006), in the board's order."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..board import Board, metric_title, row_name
from ..paired import LEVEL
from ..rank_test import Ranking, rank_over_scenarios
from .layout import WIDTHS, roomy, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMES = 40


def rank_figures(board: Board, width: str = "page") -> Iterator[tuple[str, Figure]]:
    """For every metric with enough contestants and scenarios, a title and a figure; at most 40 names fit one."""
    for metric in board.metrics:
        ranked = rank_over_scenarios(board, metric)
        if ranked.names and len(ranked.names) <= MAX_NAMES:
            yield f"ranks {metric}", _figure(board, ranked, width)


def _figure(board: Board, ranked: Ranking, width: str) -> Figure:
    """One line per contestant, the board's first at the top: its mean rank, half the critical difference to each side.

    Contestants whose bars overlap do not differ.
    """
    from matplotlib.figure import Figure

    assert ranked.critical is not None
    assert ranked.p is not None
    column = width == "column"
    letters = 6.5 if column else 8
    k, n = len(ranked.names), len(ranked.scenarios)
    names = [wrapped(row_name(board.label_names, name), 30 if column else 46) for name in ranked.names]
    heights = [0.0175 * letters * max(1.35, 0.6 + name.count("\n") + 1) for name in names]
    places = [sum(heights[:i]) + heights[i] / 2 for i in range(k)]
    figure = Figure(figsize=(WIDTHS[width], 0.95 + sum(heights)), layout=roomy(WIDTHS[width]))
    axes = figure.subplots()
    for place, rank in zip(places, ranked.mean_ranks, strict=True):
        ends = max(1.0, rank - ranked.critical / 2), min(float(k), rank + ranked.critical / 2)
        axes.plot(ends, [place, place], color="#b8c9d9", linewidth=4, solid_capstyle="butt")
        axes.plot(rank, place, marker="o", markersize=4, color="#1a1f24")
        axes.annotate(
            f"{rank:.2f}", (1.015, place), xycoords=("axes fraction", "data"), va="center", fontsize=letters,
            annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(places, names)
    axes.set(ylim=(sum(heights), 0), xlim=(0.7, k + 0.3))
    axes.set_xlabel("mean rank (1 is best)", fontsize=letters + 1)
    axes.tick_params(labelsize=letters)
    axes.grid(visible=False, axis="y")
    said = f"bars that overlap do not differ (difference {ranked.critical:.2f})"
    if ranked.too_few:
        said = f"nothing can be claimed: {ranked.too_few.partition(',')[0]}"
    elif ranked.p > LEVEL:
        said = "no difference can be claimed"
    words = f"{metric_title(ranked.metric)}, {n} scenarios. Friedman p = {ranked.p:.2g}; {said}"
    figure.suptitle("\n".join(textwrap.wrap(words, 60 if column else 100)), fontsize=letters)
    return figure
