"""Clean against robust accuracy: one point per row, the front that no row beats joined and named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .board import Board, row_name
from .figure_layout import wrapped
from .tradeoff import pareto

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 12


def pareto_figures(board: Board) -> Iterator[tuple[str, Figure]]:
    """A title and a figure, if at least two rows have both numbers."""
    found = pareto(board)
    if len(found.points) < 2:
        return
    import seaborn
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    colours = seaborn.color_palette("colorblind")
    at = board.label_names.index("norm") if "norm" in board.label_names else None
    norms = sorted({n[at] for n, _, _ in found.points}) if at is not None else [""]
    for k, norm in enumerate(norms):
        own = [(x, y) for n, x, y in found.points if at is None or n[at] == norm]
        axes.scatter(
            [x for x, _ in own],
            [y for _, y in own],
            s=26,
            color=colours[k % len(colours)],
            label=norm,
            zorder=3,
            linewidth=0,
        )
    line = [found.points[i][1:] for i in found.front]
    axes.plot(*zip(*line, strict=True), color="#777777", linewidth=1.0, linestyle=(0, (4, 2)), zorder=2)
    for k, i in enumerate(found.front[:_NAMED], 1):
        _, x, y = found.points[i]
        axes.annotate(str(k), (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
    names = [
        f"{k}  {wrapped(row_name(board.label_names, found.points[i][0]), 60)}"
        for k, i in enumerate(found.front[:_NAMED], 1)
    ]
    axes.set(xlabel=f"{found.x_label} (%)", ylabel=f"{found.y_label} (%)", xlim=(-2, 102), ylim=(-2, 102))
    if norms != [""]:
        axes.legend(title="norm", frameon=False, loc="upper left", fontsize=8)
    figure.suptitle("No row beats these in one accuracy without losing in the other", fontsize=10)
    figure.supxlabel("\n".join(names), fontsize=8, x=0.01, ha="left")
    yield "pareto", figure
