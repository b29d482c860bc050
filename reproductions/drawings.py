"""The papers' plots, with their axes, of the cells of one table or figure."""

from __future__ import annotations

import pkgutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from robustfl.records import CellResult
from robustfl.reports.board import natural
from robustfl.reports.figures.layout import DASHES, MARKERS, longest, wrapped
from robustfl.reports.reproduction import Evidence, Item, Part, Selector, number
from robustfl.specs import split_outside

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ran = Sequence[tuple[CellResult, Mapping[str, Any]]]
"""Records with the labels of their cells."""
_TITLE = 44  # letters across a panel
_LETTERS, _HANDLE = 15, 7  # of a legend to an inch, and those that a line's picture takes
_NAMES = {
    "loss": "loss on test images",
    "sa": "accuracy on clean inputs (%)",
    "ra_worst": "accuracy on adversarial inputs (%)",
}


class Plot(Part):
    """A plot of a protocol: ``lines`` over rounds in one panel per ``panels``, or ``bars`` or ``lines`` over ``x``.

    ``lines`` may name two labels. With ``per_round`` curves go over what rounds cost, in the unit that ``x`` names: a
    number per line, or that of its first rounds, how many they are, and that of all later ones. ``draw`` names the
    function of this package that draws it from ``arguments`` instead of cells.
    """

    kind: Literal["curves", "bars", "lines"] = "curves"
    draw: str = ""
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    panels: str = ""
    lines: str = "norm"
    x: str = "round"
    per_round: Mapping[str, tuple[float, ...]] = Field(default_factory=dict)
    metric: str = "sa"
    statistic: Literal["final", "best", "mean", "tail", "selected"] = "final"
    where: Selector = Field(default_factory=dict)


def drawings(item: Item, evidence: Evidence) -> list[tuple[str, Figure]]:
    """A title and a figure for every plot of an item that needs no cells, or whose cells have all run.

    Half of a picture would be laid beside the paper's whole one.
    """
    found = []
    for place, plot in enumerate(map(Plot.model_validate, item.plots), 1):
        title = f"{item.id}-{place}" if len(item.plots) > 1 else item.id
        if plot.draw:
            found.append((title, pkgutil.resolve_name(f"{__package__}.{plot.draw}")(**plot.arguments)))
            continue
        cells = evidence.of(plot.where)
        ran = [(evidence.records[c.key], c.labels) for c in cells if c.key in evidence.records]
        if ran and len(ran) == len(cells):
            found.append((title, _figure(plot, ran)))
    return found


def _figure(plot: Plot, ran: Ran) -> Figure:
    """Means over seeds with the range of the seeds: a panel per ``plot.panels``, a look per ``plot.lines``."""
    from matplotlib.figure import Figure

    table = _points(plot, ran)
    panels, lines = (sorted(table[name].unique(), key=natural) for name in ("panel", "line"))
    figure = Figure(figsize=(3.3 * len(panels) + 0.6, 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel, title in zip(axes, panels, briefly(panels), strict=True):
        axis.set_title(wrapped(title, _TITLE), fontsize=9)
        _draw(axis, plot, table[table["panel"] == panel].dropna(subset="y"), lines)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(_NAMES.get(plot.metric, plot.metric))
    handles = {str(h.get_label()): h for axis in axes for h in axis.get_legend_handles_labels()[0]}
    columns = _columns(list(handles), figure.get_figwidth())
    figure.set_figheight(3.0 + 0.2 * -(-len(handles) // columns))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )
    return figure


def _points(plot: Plot, ran: Ran) -> pd.DataFrame:
    """The numbers to draw, one a line: its panel, its line, where it stands (``x``), how high (``y``)."""
    import pandas as pd

    found: list[tuple[str, str, Any, float | None]] = []
    for record, labels in ran:
        line = ", ".join(str(labels.get(name, "")) for name in plot.lines.split())
        where = str(labels.get(plot.panels, "")) if plot.panels else "", line
        if plot.kind == "curves":
            cost = plot.per_round[line] if plot.per_round else (1,)
            name, unit = ("ra" if plot.metric == "ra_worst" else plot.metric), 1 if plot.metric == "loss" else 100
            values = [(spent(p.round, *cost), getattr(p, name)) for p in record.curve]
            found += [(*where, at, None if value is None else unit * value) for at, value in values]
        else:
            found.append((*where, str(labels.get(plot.x)), number(record, plot.metric, plot.statistic)))
    return pd.DataFrame(found, columns=["panel", "line", "x", "y"]).astype({"y": "float64"})


def spent(round: int, first: float, until: int | float = 0, later: float | None = None) -> float:
    """Cost of ``round`` rounds at ``first`` each, or at ``later`` after the ``until``-th.

    >>> spent(10, 6.5), spent(50, 58, 30, 1)
    (65.0, 1760)
    """
    return round * first if later is None else min(round, until) * first + max(0, round - until) * later


def _draw(axis: Axes, plot: Plot, points: pd.DataFrame, lines: Sequence[str]) -> None:
    """One panel; lines and bars stand at the names of ``plot.x``, curves at their rounds."""
    common, names = plot.x, list[str]()
    if plot.kind != "curves":
        names = sorted(points["x"].unique(), key=natural)
        points = points.assign(x=points["x"].map({name: i for i, name in enumerate(names)}))
    width = 0.8 / max(1, len(lines))
    for place, line in enumerate(lines):
        own = points[points["line"] == line]
        if own.empty:
            continue
        style, seeds = look(place), own.groupby("x")["y"].agg(["mean", "min", "max"])
        if plot.kind == "bars":
            reach = [seeds["mean"] - seeds["min"], seeds["max"] - seeds["mean"]]
            at = seeds.index + (place - (len(lines) - 1) / 2) * width
            axis.bar(at, seeds["mean"], width, yerr=reach, label=line, color=style["color"], capsize=2)
            continue
        marker = MARKERS[place % len(MARKERS)] if plot.kind == "lines" else ""
        axis.plot(seeds.index, seeds["mean"], label=line, marker=marker, **style)
        axis.fill_between(seeds.index, seeds["min"], seeds["max"], color=style["color"], alpha=0.15, linewidth=0)
    if names:
        short, common = apart(names)
        axis.set_xticks(range(len(names)), short, rotation=30, ha="right", fontsize=7)
    axis.set_xlabel({"curves": plot.x, "lines": f"{plot.x} {common}".strip(), "bars": common}[plot.kind])


def _columns(names: Sequence[str], width: float) -> int:
    """The number of columns in which a legend with these names fits a figure so many inches wide."""
    return max(1, min(4, len(names), int(width * _LETTERS / (longest(names) + _HANDLE))))


def look(place: int) -> dict[str, Any]:
    """The color and dashes of a line by its place in the legend."""
    import seaborn

    colours = seaborn.color_palette("colorblind", 10)
    return {"color": colours[place % 10], "linestyle": DASHES[place % len(DASHES)]}


def briefly(names: Sequence[str]) -> list[str]:
    """Methods without the parameters that all of them share.

    >>> briefly(["fedavg(local_steps=5, momentum=0.9)", "fedavg(local_steps=5)"])
    ['fedavg(momentum=0.9)', 'fedavg']
    """
    if len(names) < 2:
        return list(names)
    heads, own = _own(names)
    return [f"{head}({', '.join(parts)})" if parts else head for head, parts in zip(heads, own, strict=True)]


def apart(names: Sequence[str]) -> tuple[list[str], str]:
    """Methods as short as still tells them apart, and the words for what all of them are.

    >>> apart(["dirichlet(alpha=0.1, mode=equal)", "dirichlet(alpha=1, mode=equal)"])
    (['0.1', '1'], 'dirichlet alpha')
    >>> apart(["iid", "fedprox(clip=10, mu=1)", "fedsam(clip=10)", "fedsam(clip=10, rho=0.01)"])
    (['iid', 'fedprox(mu=1)', 'fedsam', 'fedsam(rho=0.01)'], '')
    """
    heads, own = _own(names)
    if len(set(heads)) > 1:
        return _mixed(names, heads, own), ""
    if len(names) < 2 or not all(own):
        return list(names), ""
    keys = {part.partition("=")[0] for parts in own for part in parts}
    if len(keys) == 1 and all(len(parts) == 1 for parts in own):
        return [parts[0].partition("=")[2] for parts in own], f"{heads[0]} {keys.pop()}"
    return [", ".join(parts) for parts in own], heads[0]


def _mixed(names: Sequence[str], heads: Sequence[str], own: Sequence[list[str]]) -> list[str]:
    """Several methods without what is the same wherever two or more have it; as given where that makes two alike."""
    values: dict[str, list[str]] = defaultdict(list)
    for part in (part for parts in own for part in parts):
        values[part.partition("=")[0]].append(part)
    common = {found[0] for found in values.values() if len(found) > 1 and len(set(found)) == 1}
    kept = [", ".join(part for part in parts if part not in common) for parts in own]
    told = [f"{head}({rest})" if rest else head for head, rest in zip(heads, kept, strict=True)]
    return told if len(set(told)) == len(names) else list(names)


def _own(names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The methods' names, and of each the parameters that not all of them share."""
    split = [name.removesuffix(")").partition("(") for name in names]
    given = [[part.strip() for part in split_outside(text, ",") if part] for _, _, text in split]
    shared = set(given[0]).intersection(*given[1:]) if given else set()
    return [head for head, _, _ in split], [[part for part in parts if part not in shared] for parts in given]
