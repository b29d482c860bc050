"""Attack × defense heatmaps: one figure per metric, one panel per block and norm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..board import Board, Row, Section, natural
from ..table_cell import TableCell
from .layout import heat_map, in_rows, longest, panel_title, roomy, simple_first, tallest, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heatmaps(board: Board, width: str | None = None) -> Iterator[tuple[str, Figure]]:
    """For every metric, and every setting of the other labels, a title and a figure; values in percent.

    A row of panels is a task; where a ``width`` for print has no room for all norms of a task, it goes on below.
    """
    for metric in board.metrics:
        blocks = [s for s in board.tasks if s.metric == metric]
        for setting in _settings(board, blocks):
            note = ", ".join(f"{n}={v}" for n, v in setting)
            yield f"heatmap {metric} {note}", _figure(board, blocks, setting, note, width)


def _others(board: Board, row: Row) -> tuple[tuple[str, str], ...]:
    named = zip(board.label_names, row.labels, strict=True)
    return tuple((n, v) for n, v in named if n not in ("defense", "norm"))


def _settings(board: Board, sections: Sequence[Section]) -> list[tuple[tuple[str, str], ...]]:
    found = {_others(board, row) for s in sections for row in s.rows}
    return sorted(found, key=lambda setting: natural(str(setting)))


def _figure(
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
