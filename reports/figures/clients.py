"""Figures of the clients of one cell: their labels, what they forget, their statistics in two dimensions.

Principal components (Hong et al., AAAI 2023) are read from ``certificates["bn_statistics"]``, which a run makes of the
last round's means and variances, and from ``certificates["representations"]``, which it makes of test images where the
cell asks for it: ``points`` (two coordinates per row), ``shares`` of the variance, and per row ``clients``,
``branches`` and ``groups``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..board import in_words, natural, row_name
from ..grouping import text
from ..loading import by_labels, experiments, telling
from .layout import MARKERS, WIDTHS, across, heat_map, panel_title, roomy, wrapped

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
        yield f"labels {dataset} {clients} clients", _distribution_figure(dataset, panels, width)


def _distribution_figure(dataset: str, panels: dict[str, CellResult], width: str | None) -> Figure:
    """The samples of every class (down) that every client (across) has, on one scale of lightness."""
    from matplotlib.figure import Figure

    first = next(iter(panels.values()))
    clients, classes = len(first.label_counts), max(map(len, first.label_counts))
    cell = 0.3 if max(clients, classes) <= 20 else 6.0 / max(clients, classes)
    each = max(cell * clients, 2.0) + 0.4
    beside = across(min(_COLUMNS, len(panels)), width, each=each, edge=1.6)
    down = math.ceil(len(panels) / beside)
    size = 1.6 + beside * each, 1.2 + down * (cell * classes + 0.5)
    figure = Figure(figsize=size, layout=roomy(size[0]))
    axes = figure.subplots(down, beside, squeeze=False, sharex=True, sharey=True)
    largest = max(max(map(max, r.label_counts)) for r in panels.values())
    for axis, (partition, record) in zip(axes.flat, panels.items(), strict=False):
        by_class = [[float(count) for count in line] for line in zip(*record.label_counts, strict=True)]
        mesh = _map(axis, by_class, (0, largest), [*map(str, range(clients))], [*map(str, range(classes))])
        axis.set_title(panel_title("", in_words("partition", partition), each), fontsize=9)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.supxlabel("client", fontsize=9)
    figure.supylabel("class", fontsize=9)
    figure.colorbar(mesh, ax=axes, label="samples", shrink=0.8, aspect=18 * down)
    figure.suptitle(f"{wrapped(dataset, 12 * size[0])}, seed {text(first.labels.get('seed'))}", fontsize=10)
    return figure


def _map(
    axes: Any, values: Sequence[Sequence[float]], ends: tuple[float, float], across: Sequence[str],
    down: Sequence[str], *, numbers: float = 0.0,
) -> Any:  # fmt: skip
    """A heatmap of square cells, grey where there is no value; of letters so large if there are ``numbers``."""
    texts = [[("–" if math.isnan(v) else f"{v:.0f}", numbers) for v in row] for row in values if numbers]
    mesh = heat_map(axes, values, texts, cmap="cividis", low=ends[0], high=ends[1], linewidth=0.4)
    for ticks, names in ((axes.set_xticks, across), (axes.set_yticks, down)):
        every = max(1, -(-len(names) // 16))
        ticks([i + 0.5 for i in range(0, len(names), every)], names[::every])
    axes.set_aspect("equal")
    return mesh


_NAMES = ("dataset", "partition", "model", "norm", "algorithm", "objective", "defense", "attack")


def forgetting_maps(results: Sequence[CellResult], width: str = "page") -> Iterator[tuple[str, Figure]]:
    """For every experiment and round in which forgetting was measured (lowest seed), a title and two heatmaps.

    Over clients × data sets: left the loss of accuracy ``F = Acc(received) - Acc(local)``, right the accuracy after
    local training. Rounds are told where a cell lists them; otherwise it is the last.
    """
    chosen = experiments((r for r in results if _measured(r)), *_NAMES)
    told = telling(_NAMES, chosen)
    for record in chosen.values():
        values = [(n, value) for n in told if (value := text(record.labels.get(n))) != "–"]
        name, words = " ".join(v for _, v in values), " · ".join(in_words(n, v) for n, v in values)
        for round, facts in _measured(record).items():
            told_round = f", round {round}" if round else ""
            yield f"forgetting {name}{told_round}", _forgetting_figure(f"{words}{told_round}", record, facts, width)


def _measured(record: CellResult) -> dict[str, Mapping[str, Any]]:
    """The measurements of each listed round, in their order, or under ``""`` in the last one."""
    found = record.certificates.get("forgetting")
    if not isinstance(found, dict):
        return {}
    by_round = {"": found} if "matrix" in found else dict(sorted(found.items(), key=lambda item: natural(item[0])))
    return {round: facts for round, facts in by_round.items() if isinstance(facts, dict) and facts.get("matrix")}


def _forgetting_figure(name: str, record: CellResult, facts: Mapping[str, Any], width: str) -> Figure:
    from matplotlib.figure import Figure

    clients = [str(k) for k in facts["clients"]]
    wide, letters, few = (WIDTHS[width], 6.0, 6) if width == "column" else (WIDTHS[width], 8, 12)
    figure = Figure(figsize=(wide, 0.5 * wide + 0.35), layout="constrained")
    panels = {"matrix": "accuracy lost (points)", "after": "accuracy after (%)"}
    for axes, (fact, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        # of data that a client does not have accuracies are NaN, which files spell out
        values = [[100 * float(v) for v in row] for row in facts.get(fact) or []]
        known = [v for row in values for v in row if not math.isnan(v)] or [0.0]
        low, high = min(known), max(known)
        more = 0.5 if high - low < 1 else 0.0  # nothing is made of rounding
        numbers = letters - 1 if len(clients) <= few else 0
        mesh = _map(axes, values, (low - more, high + more), clients, clients, numbers=numbers)
        figure.colorbar(mesh, ax=axes, shrink=0.75, pad=0.03).ax.tick_params(labelsize=letters)
        axes.tick_params(labelsize=letters)
        axes.set_title(title, fontsize=letters + 1)
        axes.set_xlabel("data of client", fontsize=letters)
        axes.set_ylabel("model of client" if fact == "matrix" else "", fontsize=letters)
    mean = facts.get("mean")
    share = f"mean off the diagonal {100 * mean:.1f} points, " if isinstance(mean, float) else ""
    figure.suptitle(f"{wrapped(name, 60)}\n{share}seed {text(record.labels.get('seed'))}", fontsize=letters)
    return figure


_FIRST = (
    "dataset", "domains", "partition", "model", "norm", "algorithm", "objective", "propagation", "defense", "attack",
)  # fmt: skip
_MAX_NAMED = 24
"""With more points, clients' numbers would hide them."""
_FEW = 60
"""More points are drawn smaller."""


def bn_pca_figures(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment that recorded its statistics (lowest seed), a title and a figure."""
    return _pca_figures(results, "bn-pca", "bn_statistics")


def representation_figures(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment that recorded representations (lowest seed), a title and a figure."""
    return _pca_figures(results, "representations", "representations")


def _pca_figures(results: Sequence[CellResult], kind: str, fact: str) -> Iterator[tuple[str, Figure]]:
    drawn = [r for r in results if statistics_of(r, fact)]
    told_f = all(r.labels.get("f") == r.labels.get("f_declared") for r in drawn)
    others = sorted({n for r in drawn for n in r.labels} - {*_FIRST, "seed", *(["f_declared"] if told_f else [])})
    names = [*_FIRST, *others]
    chosen = experiments(drawn, *names)
    told = telling(names, chosen)
    for key in sorted(chosen, key=lambda k: natural(" ".join(k))):
        shown = [text(chosen[key].labels.get(n)) for n in told]
        yield f"{kind} {' '.join(shown)}", _pca_figure(row_name(told, shown), chosen[key], fact)


def statistics_of(record: CellResult, fact: str = "bn_statistics") -> Mapping[str, Any]:
    """The certificate of a record, if it is whole and can be drawn; else empty."""
    found = record.certificates.get(fact)
    if not isinstance(found, Mapping):
        return {}
    rows = [found.get(name) for name in ("points", "clients", "branches", "groups")]
    if not all(isinstance(r, list) and len(r) > 1 for r in rows) or len({len(r) for r in rows if r is not None}) != 1:
        return {}
    pairs = [*found["points"], found.get("shares")]
    pairs = [p if isinstance(p, list) else [] for p in pairs]
    finite = all(isinstance(v, (int, float)) and math.isfinite(v) for p in pairs for v in p)
    return found if finite and {len(p) for p in pairs} == {2} else {}


def _pca_figure(name: str, record: CellResult, fact: str) -> Figure:
    import seaborn
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    known = statistics_of(record, fact)
    points, shares = known["points"], known["shares"]
    groups, branches = ([str(value) for value in known[name]] for name in ("groups", "branches"))
    domains = {group: group.partition(" · ")[0] for group in groups}
    colours = _looks(set(domains.values()), seaborn.color_palette("colorblind", 10))
    markers, filled = _looks(set(groups), MARKERS), _looks(set(branches), (True, False), first="clean")
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colours[domains[group]], label=group)
        for group, marker in markers.items() if len(markers) > 1 and group
    ]  # fmt: skip
    for branch, full in filled.items() if len(filled) > 1 else ():
        look: dict[str, Any] = {"marker": "o", "color": "#555555", "markerfacecolor": "#555555" if full else "none"}
        handles.append(Line2D([], [], linestyle="", label=f"{branch} branch", **look))
    columns = 1 if len(handles) < 4 or max(len(str(h.get_label())) for h in handles) > 34 else 2
    lines = math.ceil(len(handles) / columns)
    figure = Figure(figsize=(5.6, 4.3 + 0.2 * lines), layout=roomy(5.6))
    axes = figure.subplots()
    for kind in sorted(set(zip(groups, branches, strict=True))):
        xs, ys = zip(*(p for p, *of in zip(points, groups, branches, strict=True) if tuple(of) == kind), strict=True)
        colour, size = colours[domains[kind[0]]], 34 if len(points) <= _FEW else 13
        face, edge, wide = (colour, "white", 0.5) if filled[kind[1]] else ("none", colour, 1.3)
        axes.scatter(xs, ys, s=size, marker=markers[kind[0]], zorder=3, facecolor=face, edgecolor=edge,
                     linewidth=wide)  # fmt: skip
    if len(points) <= _MAX_NAMED and fact == "bn_statistics":
        for place, client in zip(points, known["clients"], strict=True):
            axes.annotate(
                str(client), place, textcoords="offset points", xytext=(4, 3), fontsize=7, color="#444444", zorder=4
            )
    axes.margins(0.08)
    axes.set(
        xlabel=f"component 1 ({100 * shares[0]:.0f} % of variance)", ylabel=f"component 2 ({100 * shares[1]:.0f} %)"
    )
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    seed = text(record.labels.get("seed"))
    what = "means and variances per client" if fact == "bn_statistics" else "inputs of the last layer per image"
    rows = f"{known.get('entries')} {what}" if known.get("entries") else what
    figure.suptitle(f"{wrapped(name, 64)}\n{rows}, last round, seed {seed}", fontsize=10)
    return figure


def _looks(names: set[str], looks: Sequence[Any], *, first: str = "") -> dict[str, Any]:
    """A look for every name, in their natural order."""
    ordered = sorted(names, key=lambda n: (n != first, natural(n)))
    return {n: looks[i % len(looks)] for i, n in enumerate(ordered)}
