"""Figures of a whole board: clean against robust accuracy, worst case against f or heterogeneity, ranks, heatmaps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..board import Board, Row, Section, metric_title, natural, row_name
from ..paired import LEVEL, Ranking, rank_over_scenarios
from ..table_cell import TableCell
from ..tradeoff import Breakdown, Line, Pareto, breakdowns, pareto
from .layout import (
    DASHES,
    MARKERS,
    WIDTHS,
    heat_map,
    in_rows,
    longest,
    panel_title,
    roomy,
    simple_first,
    tallest,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBERED = 12
_SPAN = 5.0
"""The least reach of an axis, in points: rows that differ by less than seeds do must not look far apart."""


def pareto_figures(board: Board, width: str = "page") -> Iterator[tuple[str, Figure]]:
    """A title and a figure, if at least two rows have both numbers.

    Norms, or what else the board has instead, differ in marker and colour; the front is numbered and its numbers named.
    """
    found = pareto(board)
    if len(found.points) >= 2:
        yield "pareto", _pareto_figure(board, found, width)


def _pareto_figure(board: Board, found: Pareto, width: str) -> Figure:
    from matplotlib.figure import Figure

    column = width == "column"
    letters = 6.5 if column else 8
    named = found.front[:_NUMBERED]
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
    by_norm: dict[str, list[int]] = {}
    for i, (labels, _, _) in enumerate(found.points):
        by_norm.setdefault("" if at is None else labels[at], []).append(i)
    for k, norm in enumerate(sorted(by_norm)):
        xs, ys = zip(*(found.points[i][1:] for i in by_norm[norm]), strict=True)
        best, colour = [i in found.front for i in by_norm[norm]], colours[k % len(colours)]
        axes.scatter(
            xs, ys, s=[34 if first else 20 for first in best], marker=MARKERS[k % len(MARKERS)], edgecolor=[colour],
            facecolor=[colour if first else "none" for first in best], label=norm, linewidth=1.0, zorder=3,
        )  # fmt: skip


def _number(axes: Any, text: str, at: tuple[float, float], placed: list[tuple[float, float]], letters: float) -> None:
    """A number beside its point, above it where the last one is near."""
    near: Sequence[tuple[float, float]] = [p for p in placed if abs(p[0] - at[0]) < 2 and abs(p[1] - at[1]) < 2]
    offset = [(5, 4), (-9, -9), (5, -9), (-9, 5)][len(near) % 4]
    axes.annotate(text, at, textcoords="offset points", xytext=offset, fontsize=letters, fontweight="bold", zorder=5)
    placed.append(at)


_NAMED = 6
"""So many lines are told apart at a glance; the others stay in the background."""


def breakdown_figures(
    board: Board, width: str = "page", labels: tuple[str, ...] | None = None
) -> Iterator[tuple[str, Figure]]:
    """For every metric, and for ``f`` and each measure of heterogeneity that varies, a title and a figure.

    The best lines on average are named; the others are grey, without intervals. ``labels`` keep the rows with these.
    """
    for found in breakdowns(board, labels):
        yield f"breakdown {found.metric} {_ASCII.get(found.against, found.against)}", _breakdown_figure(found, width)


_ASCII = {"γ": "gamma", "α": "alpha"}


def _breakdown_figure(found: Breakdown, width: str) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    column = width == "column"
    letters = 6.5 if column else 8
    ticks = sorted({x for _, line in found.lines for x, _ in line})
    names = [(name or "all", line[-1][0]) for name, line in found.lines[:_NAMED]]
    labels = [
        wrapped(name + ("" if last == ticks[-1] else f" (to {last:g})"), 24 if column else 34) for name, last in names
    ]
    legend = sum(label.count("\n") + 1.5 for label in labels) * 1.2 * letters / 72  # inches
    figure = Figure(figsize=(WIDTHS[width], max(2.5 if column else 3.6, legend + 0.5)), layout="constrained")
    axes = figure.subplots()
    for _, line in found.lines[_NAMED:]:
        axes.plot(*_drawn(line), color="#c8c8c8", linewidth=0.8, zorder=1)
    palette = seaborn.color_palette("colorblind", len(MARKERS))
    for i, ((_, line), label) in enumerate(zip(found.lines, labels, strict=False)):
        _line(axes, line, label, color=palette[i], linestyle=DASHES[i % 4], marker=MARKERS[i])
    axes.set_ylim(_limits([100 * place.mean for _, line in found.lines for _, place in line if place.mean is not None]))
    axes.set_xticks(ticks)
    axes.tick_params(labelsize=letters)
    axes.set_xlabel(found.label, fontsize=letters + 1)
    axes.set_ylabel(f"{metric_title(found.metric)}, worst case (%)", fontsize=letters + 1)
    others = len(found.lines) - _NAMED
    told = [f"grey: {others} others, lower on average over their own points"] if others > 0 else []
    told += [f"without a line: {found.single} with one point"] if found.single else []
    if told:
        axes.set_title("\n".join(told), fontsize=letters, loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=letters, frameon=False, borderaxespad=0)
    return figure


def _drawn(line: Line) -> tuple[list[float], list[float]]:
    """The numbers of a line in percent; NaN, at which matplotlib breaks it, where training diverged."""
    return [x for x, _ in line], [math.nan if place.mean is None else 100 * place.mean for _, place in line]


def _line(axes: Any, line: Line, label: str, **look: Any) -> None:
    """A named line with bars from end to end of the interval, or of the seeds; a cross at zero for a divergence."""
    xs, ys = _drawn(line)
    axes.plot(xs, ys, label=label, zorder=3, markersize=4.5, markerfacecolor="white", markeredgewidth=1.1,
              linewidth=1.4, **look)  # fmt: skip
    for x, place in line:
        ends = place.interval or place.seeds
        if ends is not None:
            axes.plot([x, x], [100 * end for end in ends], color=look["color"], alpha=0.35, linewidth=3, zorder=2,
                      solid_capstyle="butt")  # fmt: skip
        if place.mean is None:
            axes.plot([x], [0.0], color=look["color"], marker="X", markersize=6, markeredgecolor="white", zorder=4)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From zero to just above the highest value: accuracies are compared with zero, not with each other alone."""
    return -2.0, min(102.0, max(20.0, max(values, default=0.0) * 1.06 + 1))


MAX_NAMES = 40


def rank_figures(board: Board, width: str = "page") -> Iterator[tuple[str, Figure]]:
    """For every metric with enough contestants and scenarios, a title and a figure; at most 40 names fit one."""
    for metric in board.metrics:
        ranked = rank_over_scenarios(board, metric)
        if ranked.names and len(ranked.names) <= MAX_NAMES:
            yield f"ranks {metric}", _ranks_figure(board, ranked, width)


def _ranks_figure(board: Board, ranked: Ranking, width: str) -> Figure:
    """One line per contestant, the best at the top: its mean rank, half the critical difference to each side.

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


# --- heatmaps --------------------------------------------------------------------------------------------------------


def heatmaps(board: Board, width: str | None = None) -> Iterator[tuple[str, Figure]]:
    """For every metric, and every setting of the other labels, a title and a figure; values in percent.

    A row of panels is a task; where a ``width`` for print has no room for all norms of a task, it goes on below.
    """
    for metric in board.metrics:
        blocks = [s for s in board.tasks if s.metric == metric]
        settings = {_others(board, row) for s in blocks for row in s.rows}
        for setting in sorted(settings, key=lambda setting: natural(str(setting))):
            note = ", ".join(f"{n}={v}" for n, v in setting)
            yield f"heatmap {metric} {note}", _heatmap_figure(board, blocks, setting, note, width)


def _others(board: Board, row: Row) -> tuple[tuple[str, str], ...]:
    named = zip(board.label_names, row.labels, strict=True)
    return tuple((n, v) for n, v in named if n not in ("defense", "norm"))


def _heatmap_figure(
    board: Board, sections: Sequence[Section], setting: tuple[tuple[str, str], ...], note: str, width: str | None
) -> Figure:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    rows = [r for s in sections for r in s.rows if _others(board, r) == setting]
    norms = sorted({board.label(r, "norm") for r in rows}, key=natural)
    defenses = sorted({board.label(r, "defense") for r in rows}, key=simple_first)
    columns = [wrapped(a) for a in (*board.attacks, "worst case")]
    column = width == "column"
    names = [wrapped(d, 14 if column else 24) for d in defenses]
    panel = max((0.52 if column else 0.62) * len(columns), 1.8)
    panels = [(section, norm) for section in sections for norm in norms]
    titles = [panel_title(norm, section.block if board.task_names else "", panel) for section, norm in panels]
    heading = 0.17 * tallest(titles)
    tall = 0.2 + 0.15 * tallest(names)
    edge = (1.3 if column else 1.6) + 0.085 * longest(names)
    beside = in_rows(len(panels), len(norms), width, each=panel + 0.2, edge=edge)
    down = len(panels) // beside
    size = (
        edge + beside * (panel + 0.2),
        0.9 + down * (tall * len(defenses) + heading + 0.15) + 0.065 * longest(columns),
    )
    figure = Figure(figsize=size, layout=roomy(size[0]))
    axes = figure.subplots(down, beside, squeeze=False)
    for k, (section, norm) in enumerate(panels):
        by_defense = {
            board.label(r, "defense"): r
            for r in section.rows
            if _others(board, r) == setting and board.label(r, "norm") == norm
        }
        places = [by_defense[d].places if d in by_defense else [TableCell()] * len(columns) for d in defenses]
        i, j = divmod(k, beside)
        _panel(axes[i, j], places, columns if i == down - 1 else (), names if j == 0 else ())
        axes[i, j].set_title(titles[k])
    figure.colorbar(
        ScalarMappable(Normalize(0, 100), "viridis"),
        ax=axes,
        label=f"{sections[0].metric_title} (%)",
        shrink=0.9,
        aspect=15 * max(2, down),
        pad=0.015,
    )
    figure.suptitle(f"{sections[0].metric_title}, mean over seeds" + (f" ({note})" if note else ""))
    return figure


def _panel(axes: Any, places: Sequence[Sequence[TableCell]], columns: Sequence[str], names: Sequence[str]) -> None:
    values = [[math.nan if e.shown is None else 100 * e.shown for e in line] for line in places]
    texts = [[_short(e) for e in line] for line in places]
    heat_map(axes, values, texts, cmap="viridis", low=0, high=100, linewidth=1.2)
    last = len(values[0]) - 1
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks([i + 0.5 for i in range(len(names))], names)
    for side in axes.spines.values():
        side.set_visible(False)
    for line, text in zip(values, axes.texts[last :: last + 1], strict=True):
        text.set_fontweight("normal" if math.isnan(line[last]) else "bold")
    axes.axvline(last, color="white", linewidth=5)


def _short(place: TableCell) -> tuple[str, float]:
    if place.states:
        return place.state_words[0].replace(" ", "\n"), 6.0
    if place.idle:
        return place.status.replace(" ", "\n"), 6.0
    whole = len(place.values) == place.expected
    return place.text(spread=False) if whole else place.text(spread=False).replace(" ", "\n"), 8.0 if whole else 7.0
