"""Who holds which labels: one bubble per client and class, its area proportional to the number of samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..axes import text
from ..board import in_words
from ..loading import by_labels
from .layout import WIDTHS, across, panel_title, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4


def distributions(results: Sequence[CellResult], width: str | None = None) -> Iterator[tuple[str, Figure]]:
    """For every dataset and number of clients, a title and a figure with one panel per partition (lowest seed)."""
    chosen: dict[tuple[str, str], dict[str, CellResult]] = {}
    for record in by_labels((r for r in results if r.label_counts), "dataset", "partition", "seed"):
        group = text(record.labels.get("dataset")), str(len(record.label_counts))
        chosen.setdefault(group, {}).setdefault(text(record.labels.get("partition")), record)
    for (dataset, clients), panels in chosen.items():
        yield f"labels {dataset} {clients} clients", _figure(dataset, panels, width)


def _figure(dataset: str, panels: dict[str, CellResult], width: str | None) -> Figure:
    from matplotlib.figure import Figure

    first = next(iter(panels.values())).label_counts
    clients, classes = len(first), max(map(len, first))
    pitch = 0.3 if max(clients, classes) <= 20 else 6.0 / max(clients, classes)
    columns = across(min(_COLUMNS, len(panels)), width, each=pitch * clients + 0.55, edge=0.9)
    if width is not None:  # drawn at its size, since areas of bubbles do not shrink with a figure
        pitch = min(pitch, ((WIDTHS[width] - 0.9) / columns - 0.55) / clients)
    rows = math.ceil(len(panels) / columns)
    letters = 6.5 if width == "column" else 9
    size = 0.9 + columns * (pitch * clients + 0.55), 1.2 + rows * (pitch * classes + 0.75)
    figure = Figure(figsize=(WIDTHS[width] if width else max(size[0], 4.0), max(size[1], 3.2)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    largest = max(max(map(max, r.label_counts)) for r in panels.values())
    for axis, (partition, record) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, record.label_counts, largest, pitch)
        title = panel_title("", in_words("partition", partition), max(pitch * clients, 3.0))
        axis.set_title(title, fontsize=letters + 1)
        axis.tick_params(labelsize=letters)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.supxlabel("client", fontsize=letters + 1)
    figure.supylabel("class", fontsize=letters + 1)
    seed = text(next(iter(panels.values())).labels.get("seed"))
    broad = figure.get_size_inches()[0] * 72 / (0.55 * (letters + 1))  # letters that fit beside each other
    words = f"{wrapped(dataset, broad)}\nsamples per client and class\n(seed {seed}, largest bubble: {largest})"
    figure.suptitle(words, fontsize=letters + 1)
    return figure


def _panel(axis: Any, counts: Sequence[Sequence[int]], largest: int, pitch: float) -> None:
    import seaborn

    places = [(i, c, k) for i, row in enumerate(counts) for c, k in enumerate(row) if k]
    colour = seaborn.color_palette("colorblind")[0]
    biggest = (0.88 * 72 * pitch) ** 2
    areas = [biggest * k / max(largest, 1) for _, _, k in places]
    axis.scatter([p[0] for p in places], [p[1] for p in places], s=areas, color=colour, alpha=0.85, linewidth=0)
    axis.set_xlim(-0.7, len(counts) - 0.3)
    axis.set_ylim(-0.7, max(map(len, counts)) - 0.3)
    for which, count in ((axis.set_xticks, len(counts)), (axis.set_yticks, max(map(len, counts)))):
        which(range(0, count, max(1, math.ceil(count / 12))))
    axis.set_aspect("equal")
    axis.grid(visible=True, color="#efefef")
    axis.set_axisbelow(True)
