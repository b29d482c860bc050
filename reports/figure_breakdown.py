"""Breakdown: worst-case accuracy against the number of Byzantine clients, or against heterogeneity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .board import Board, metric_title
from .figure_layout import wrapped
from .tradeoff import Breakdown, breakdowns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_LINES = 16


def breakdown_figures(board: Board) -> Iterator[tuple[str, Figure]]:
    """For every metric, and for ``f`` and each measure of heterogeneity that varies, a title and a figure."""
    labels = list(dict.fromkeys(r.labels for s in board.sections for r in s.rows))
    for found in breakdowns(board, labels):
        yield f"breakdown {found.metric} {_ASCII.get(found.against, found.against)}", _figure(found)


_ASCII = {"γ": "gamma", "α": "alpha"}


def _figure(found: Breakdown) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    lines = sorted(found.lines, key=lambda line: -_mean(line[1]))[:_LINES]
    columns = 2 if len(lines) > 6 else 1
    rows = math.ceil(len(lines) / columns)
    figure = Figure(figsize=(5.6 if columns == 1 else 7.2, 3.4 + 0.22 * rows), layout="constrained")
    axes = figure.subplots()
    palette = seaborn.color_palette("colorblind", 10)
    for i, (name, points) in enumerate(lines):
        xs, ys = zip(*points, strict=True)
        look = {"color": palette[i % 10], "linestyle": _DASHES[(i // 10 + i) % 4]}
        axes.plot(xs, ys, marker="o", markersize=3.5, linewidth=1.5, label=wrapped(name or "all", 44), **look)
    label = "Byzantine clients f" if found.against == "f" else f"heterogeneity {found.against}"
    title = f"{metric_title(found.metric)}, worst case (%)"
    axes.set(xlabel=label, ylabel=title, ylim=(-2, 102))
    axes.set_xticks(sorted({x for _, points in lines for x, _ in points}))
    left = len(found.lines) - len(lines)
    figure.suptitle(
        f"{title}; a divergence counts as zero" + (f"; the best {_LINES} of {len(lines) + left}" if left else "")
    )
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return math.fsum(y for _, y in points) / len(points)
