"""Clean against robust accuracy: one point per row, the front that no row beats joined and named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..board import Board, row_name
from ..tradeoff import Pareto, pareto
from .layout import MARKERS, WIDTHS, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 12
_SPAN = 5.0
"""The least reach of an axis, in points: rows that differ by less than seeds do must not look far apart."""


def pareto_figures(board: Board, width: str = "page") -> Iterator[tuple[str, Figure]]:
    """A title and a figure, if at least two rows have both numbers.

    Norms, or what else the board has instead, differ in marker and colour; the front is numbered and its numbers named.
    """
    found = pareto(board)
    if len(found.points) >= 2:
        yield "pareto", _figure(board, found, width)


def _figure(board: Board, found: Pareto, width: str) -> Figure:
    from matplotlib.figure import Figure

    column = width == "column"
    letters = 6.5 if column else 8
    named = found.front[:_NAMED]
    names = [
        f"{k}  {wrapped(row_name(board.label_names, found.points[i][0]), 44 if column else 40)}"
        for k, i in enumerate(named, 1)
    ]
    lines = sum(name.count("\n") + 1 for name in names)
    figure = Figure(figsize=(WIDTHS[width], 2.6 + 0.115 * lines if column else 3.6), layout="constrained")
    axes = figure.subplots()
    _points(axes, board, found)
    line = [found.points[i][1:] for i in found.front]
    axes.plot(*zip(*line, strict=True), color="#777777", linewidth=1.0, linestyle=(0, (4, 2)), zorder=2)
    placed: list[tuple[float, float]] = []
    for k, i in enumerate(named, 1):
        _, x, y = found.points[i]
        _number(axes, str(k), (x, y), placed, letters)
    axes.set_xlabel(f"{found.x_label} (%)", fontsize=letters + 1)
    axes.set_ylabel(f"{found.y_label} (%)", fontsize=letters + 1)
    axes.tick_params(labelsize=letters)
    if found.left_out:
        rows = f"{found.left_out} row{'' if found.left_out == 1 else 's'}"
        axes.set_title(f"{rows} without both numbers for all seeds left out", fontsize=letters, loc="left")
    axes.margins(0.09)
    axes.set(xlim=_widened(*axes.get_xlim()), ylim=_widened(*axes.get_ylim()))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(title="norm", loc="best", fontsize=letters, title_fontsize=letters, framealpha=0.9)
    said = "\n".join(names)
    if column:
        figure.supxlabel(said, fontsize=letters, x=0.02, ha="left", linespacing=1.15)
    else:
        axes.annotate(
            f"not beaten by any row:\n{said}", (1.03, 1.0), xycoords="axes fraction", va="top", fontsize=letters,
            linespacing=1.5, annotation_clip=False,
        )  # fmt: skip
    return figure


def _widened(low: float, high: float) -> tuple[float, float]:
    more = max(0.0, _SPAN - (high - low)) / 2
    return low - more, high + more


def _points(axes: Any, board: Board, found: Pareto) -> None:
    """All rows; those on the front are larger and filled."""
    import seaborn

    colours = seaborn.color_palette("colorblind")
    at = board.label_names.index("norm") if "norm" in board.label_names else None
    norms = sorted({n[at] for n, _, _ in found.points}) if at is not None else [""]
    best = set(found.front)
    for k, norm in enumerate(norms):
        look: dict[str, Any] = {
            "marker": MARKERS[k % len(MARKERS)],
            "edgecolor": [colours[k % len(colours)]],
            "label": norm,
        }
        for first in (True, False):
            own = [
                (x, y) for i, (n, x, y) in enumerate(found.points)
                if (at is None or n[at] == norm) and (i in best) is first
            ]  # fmt: skip
            if own:
                face = {"facecolor": look["edgecolor"]} if first else {"facecolor": "none"}
                axes.scatter(*zip(*own, strict=True), s=34 if first else 20, zorder=4 - (not first), linewidth=1.0,
                             **look, **face)  # fmt: skip
                look["label"] = None


def _number(axes: Any, text: str, at: tuple[float, float], placed: list[tuple[float, float]], letters: float) -> None:
    """A number beside its point, above it where the last one is near."""
    near: Sequence[tuple[float, float]] = [p for p in placed if abs(p[0] - at[0]) < 2 and abs(p[1] - at[1]) < 2]
    offset = [(5, 4), (-9, -9), (5, -9), (-9, 5)][len(near) % 4]
    axes.annotate(text, at, textcoords="offset points", xytext=offset, fontsize=letters, fontweight="bold", zorder=5)
    placed.append(at)
