"""Breakdown: worst-case accuracy against the number of Byzantine clients, or against heterogeneity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..board import Board, metric_title
from ..tradeoff import Breakdown, best_first, breakdowns, looks
from .layout import DASHES, MARKERS, WIDTHS, spread_out, tallest, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 6
"""So many lines are told apart at a glance; the others stay in the background."""


def breakdown_figures(board: Board, width: str = "page") -> Iterator[tuple[str, Figure]]:
    """For every metric, and for ``f`` and each measure of heterogeneity that varies, a title and a figure.

    The best lines on average are named at their ends; the others are grey.
    """
    known: dict[str, dict[str, int]] = defaultdict(dict)
    for found in breakdowns(board):
        own = looks([name for name, _ in best_first(found)[:_NAMED]], known[found.against], len(MARKERS))
        yield f"breakdown {found.metric} {_ASCII.get(found.against, found.against)}", _figure(found, width, own)


_ASCII = {"γ": "gamma", "α": "alpha"}


def _figure(found: Breakdown, width: str, own: Sequence[int]) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    column = width == "column"
    lines = best_first(found)
    ticks = sorted({x for _, points in lines for x, _ in points})
    names = [
        wrapped(
            (name or "all") + ("" if points[-1][0] == ticks[-1] else f" (to {points[-1][0]:g})"), 24 if column else 34
        )
        for name, points in lines[:_NAMED]
    ]
    size = (WIDTHS[width], 2.5 if column else 3.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for _, points in lines[_NAMED:]:
        axes.plot(*zip(*points, strict=True), color="#c8c8c8", linewidth=0.8, zorder=1)
    palette = seaborn.color_palette("colorblind", len(MARKERS))
    for i, (_, points) in zip(own, lines, strict=False):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=palette[i], linestyle=DASHES[i % 4], linewidth=1.4, zorder=3)
        look: dict[str, Any] = {"markersize": 4.5, "markerfacecolor": "white", "markeredgewidth": 1.1}
        axes.plot(xs, ys, color=palette[i], linestyle="", marker=MARKERS[i], zorder=4, **look)
    low, high = _limits([y for _, points in lines for _, y in points])
    letters = 6.5 if column else 8
    tall = letters * 1.25 / 72 / (size[1] - 0.75) * (high - low)
    gap = tall * tallest(names)
    lasts = [points[-1] for _, points in lines[:_NAMED]]
    for i, y in enumerate(spread_out([y for _, y in lasts], gap, low + gap / 2, high - gap / 2)):
        _named(axes, names[i], y, lasts[i][1], {"color": palette[own[i]], "marker": MARKERS[own[i]]}, letters)
    axes.set(xlim=axes.get_xlim(), ylim=(low, high))
    for x, y in lasts:  # of a rule that more attackers are refused to, the name stands beyond its line
        axes.plot([x, axes.get_xlim()[1]], [y, y], color="#9a9a9a", linewidth=0.5, linestyle=":", zorder=1)
    axes.set_xticks(ticks)
    axes.tick_params(labelsize=letters)
    axes.set_xlabel(found.label, fontsize=letters + 1)
    axes.set_ylabel(f"{metric_title(found.metric)}, worst case (%)", fontsize=letters + 1)
    others = len(lines) - _NAMED
    told = [f"grey: {others} others, lower on average over their own points"] if others > 0 else []
    told += [f"without a line: {found.single} with one point"] if found.single else []
    if told:
        axes.set_title("\n".join(told), fontsize=letters, loc="left")
    return figure


def _named(axes: Any, name: str, at: float, end: float, look: dict[str, Any], letters: float) -> None:
    """The name of a line beside its end, with its marker, and a hair line between them."""
    across = axes.get_yaxis_transform()
    room = 1.0 if letters > 7 else 1.6  # a column's axes are narrower
    hair = {"color": "#9a9a9a", "linewidth": 0.5, "clip_on": False, "transform": across}
    axes.plot([1.0, 1.0 + 0.03 * room], [end, at], **hair)
    marked = {"markersize": 4, "markerfacecolor": "white", "markeredgewidth": 1.0, "clip_on": False}
    axes.plot(1.0 + 0.045 * room, at, transform=across, **marked, **look)
    beside = {"xycoords": across, "annotation_clip": False, "va": "center", "linespacing": 1.0}
    axes.annotate(name, (1.0 + 0.075 * room, at), fontsize=letters, **beside)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From zero to just above the highest value: accuracies are compared with zero, not with each other alone."""
    return -2.0, min(102.0, max(20.0, max(values) * 1.06 + 1))
