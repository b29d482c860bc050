"""Accuracy during training: one figure per attack, one panel per partition and norm, one line per defense."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..board import in_words, natural
from ..frame import frame, label_columns
from ..grouping import bare, cells_of, label_tuples, texts_of, varied
from .layout import DASHES, in_rows, longest, panel_title, roomy, simple_first, tallest, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 2.5
LINES = ("defense", "norm", "objective", "attack")
"""Labels that can be the lines of a panel."""
_METRICS = {"sa": "accuracy on clean inputs (%)", "ra": "accuracy on adversarial inputs (%)"}

Runs = Mapping[tuple[str, ...], Sequence[CellResult]]
"""The seeds of each (row of panels, column of panels, line)."""
Looks = Mapping[str, Mapping[str, Any]]
"""How matplotlib is to draw every line."""


def curves(
    results: Sequence[CellResult],
    metrics: Sequence[str] = ("sa", "ra"),
    *,
    lines: str = "defense",
    width: str | None = None,
) -> Iterator[tuple[str, Figure]]:
    """For every metric, attack and setting of the other labels, a title and a figure.

    Rows of panels are partitions, columns are norms, ``lines`` is the label that each panel overlays: with ``norm``,
    columns are defenses; with ``attack``, one figure shows all attacks.

    Lines are means over seeds, bands reach from the lowest to the highest seed. Where a seed diverged, every seed is
    its own line and a cross marks the last evaluation before the divergence.
    """
    panel = ("partition", "defense" if lines == "norm" else "norm", lines)
    groups = _groups([r for r in results if len(r.curve) > 1], panel)
    looks = _looks({line for runs in groups.values() for _, _, line in runs})
    for metric in metrics:
        for (attack, setting), runs in sorted(groups.items(), key=lambda item: natural(" ".join(item[0]))):
            if any(len(_points(r, metric)) > 1 for records in runs.values() for r in records):
                yield f"curves {metric} {attack} {setting}", _figure(runs, metric, attack, setting, looks, width)


def _groups(
    results: Sequence[CellResult], panel_of: tuple[str, ...]
) -> dict[tuple[str, str], dict[tuple[str, ...], list[CellResult]]]:
    table = frame(results)
    if not len(results) or "attack" not in table:
        return {}
    records = {r.key: r for r in results}
    cells = cells_of(table)
    texts = texts_of(cells, label_columns(cells))
    others = varied(texts.drop(columns=[*panel_of], errors="ignore"))
    panels = label_tuples(texts_of(cells, panel_of), panel_of)
    groups: dict[tuple[str, str], dict[tuple[str, ...], list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for key, attack, panel, values in zip(
        cells["key"], texts["attack"], panels, label_tuples(texts, others), strict=True
    ):
        setting = ", ".join(f"{bare(c)}={value}" for c, value in zip(others, values, strict=True))
        groups["" if "attack" in panel_of else attack, setting][panel].append(records[str(key)])
    return groups


def _looks(lines: Collection[str]) -> Looks:
    """Colour and dashes of every line, the same in all figures."""
    import seaborn

    palette = seaborn.color_palette("colorblind", len(lines))
    return {
        line: {"color": palette[i], "linestyle": DASHES[i % 4]}
        for i, line in enumerate(sorted(lines, key=simple_first))
    }


def _figure(runs: Runs, metric: str, attack: str, setting: str, looks: Looks, print_width: str | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    partitions = sorted({p for p, _, _ in runs}, key=natural)
    norms = sorted({n for _, n, _ in runs}, key=natural)
    defenses = sorted({d for _, _, d in runs}, key=simple_first)
    panels = [(p, norm) for p in partitions for norm in norms]
    titles = [panel_title(norm, in_words("partition", p), _WIDTH) for p, norm in panels]
    heading = 0.17 * tallest(titles)
    beside = in_rows(len(panels), len(norms), print_width, each=_WIDTH + 0.25, edge=1.0)
    down = len(panels) // beside
    labels = [wrapped(f"{d}{_seeds_of(runs, d)}") for d in defenses]
    width = max(1.0 + (_WIDTH + 0.25) * beside, 5.0)
    columns = max(1, min(len(labels), int((width - 0.4) / (0.85 + 0.08 * longest(labels)))))
    above = _title(runs, attack, setting)
    lines = sum(t.count("\n") + 1 for t in labels) / columns
    height = 1.15 + (1.75 + heading) * down + 0.19 * (math.ceil(lines) + above.count("\n"))
    figure = Figure(figsize=(width, height), layout=roomy(width, between=0.04))
    axes = figure.subplots(down, beside, squeeze=False)
    last = max(p.round for records in runs.values() for r in records for p in r.curve)
    for axis, panel, title in zip(axes.flat, panels, titles, strict=True):
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.set_yticks(range(0, 101, 20))
        axis.set(xlim=(0, last), ylim=(-2, 102))  # set, not shared: shared axes cost seconds per figure
        for defense in defenses:
            _line(axis, runs.get((*panel, defense), ()), metric, looks[defense])
        axis.set_title(title)
        axis.label_outer()
    for axis in axes[-1]:
        axis.set_xlabel("round")
    figure.supylabel(_METRICS[metric], fontsize=10)
    figure.suptitle(above)
    handles = [Line2D([], [], linewidth=1.8, label=n, **looks[d]) for n, d in zip(labels, defenses, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.6)
    return figure


def _title(runs: Runs, attack: str, setting: str) -> str:
    bands = "bands: lowest to highest seed" if max(map(len, runs.values())) > 1 else "one seed"
    lost = any(r.status == "diverged" for records in runs.values() for r in records)
    crosses = "✕: then it diverged; each seed is a line" if lost else ""
    return "\n".join(filter(None, [f"attack: {attack}; {bands}" if attack else bands, crosses, setting]))


def _seeds_of(runs: Runs, defense: str) -> str:
    """The seeds of a defense where it has fewer than others, in words."""
    most = max(map(len, runs.values()))
    least = min(len(records) for name, records in runs.items() if name[2] == defense)
    return "" if least == most else f" ({least}/{most} seeds)"


def _line(axes: Any, records: Sequence[CellResult], metric: str, look: Mapping[str, Any]) -> None:
    if any(r.status != "done" for r in records):
        for record in records:
            points = _points(record, metric)
            axes.plot(*zip(*points, strict=True), linewidth=1.0, **look) if points else None
            if points and record.status == "diverged":
                axes.plot(*points[-1], marker="X", markersize=7, color=look["color"], markeredgecolor="white")
        return
    by_round: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for at, value in _points(record, metric):
            by_round[at].append(value)
    rounds = sorted(at for at, values in by_round.items() if len(values) == len(records))
    if not rounds:
        return
    axes.plot(rounds, [fmean(by_round[t]) for t in rounds], linewidth=1.6, **look)
    if len(records) > 1:
        low, high = [min(by_round[t]) for t in rounds], [max(by_round[t]) for t in rounds]
        axes.fill_between(rounds, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _points(record: CellResult, metric: str) -> list[tuple[int, float]]:
    found = [(p.round, getattr(p, metric)) for p in record.curve]
    return [(at, 100 * value) for at, value in found if value is not None and math.isfinite(value)]
