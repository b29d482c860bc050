"""Clients' batch-norm statistics, or representations of images, in two principal components (Hong et al., AAAI 2023).

Read from ``certificates["bn_statistics"]``, which a run makes of the last round's means and variances, and from
``certificates["representations"]``, which it makes of test images where the cell asks for it: ``points`` (two
coordinates per row), ``shares`` of the variance, and per row ``clients``, ``branches`` and ``groups``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..axes import text
from ..board import natural, row_name
from ..loading import experiments, telling
from .layout import MARKERS, roomy, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIRST = (
    "dataset", "domains", "partition", "model", "norm", "algorithm", "objective", "propagation", "defense", "attack",
)  # fmt: skip
_MAX_NAMED = 24
"""With more points, clients' numbers would hide them."""
_FEW = 60
"""More points are drawn smaller."""


def bn_pca_figures(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment that recorded its statistics (lowest seed), a title and a figure."""
    return _figures(results, "bn-pca", "bn_statistics")


def representation_figures(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment that recorded representations (lowest seed), a title and a figure."""
    return _figures(results, "representations", "representations")


def _figures(results: Sequence[CellResult], kind: str, fact: str) -> Iterator[tuple[str, Figure]]:
    drawn = [r for r in results if statistics_of(r, fact)]
    told_f = all(r.labels.get("f") == r.labels.get("f_declared") for r in drawn)
    others = sorted({n for r in drawn for n in r.labels} - {*_FIRST, "seed", *(["f_declared"] if told_f else [])})
    names = [*_FIRST, *others]
    chosen = experiments(drawn, *names)
    told = telling(names, chosen)
    for key in sorted(chosen, key=lambda k: natural(" ".join(k))):
        shown = [text(chosen[key].labels.get(n)) for n in told]
        yield f"{kind} {' '.join(shown)}", _figure(row_name(told, shown), chosen[key], fact)


def statistics_of(record: CellResult, fact: str = "bn_statistics") -> Mapping[str, Any]:
    """The certificate of a record, if it is whole and can be drawn; else empty."""
    found = record.certificates.get(fact)
    if not isinstance(found, Mapping):
        return {}
    rows = [found.get(name) for name in ("points", "clients", "branches", "groups")]
    if not all(isinstance(r, list) and len(r) > 1 for r in rows) or len({len(r) for r in rows if r is not None}) != 1:
        return {}
    pairs = [*found["points"], found.get("shares")]
    whole = all(isinstance(p, list) and len(p) == 2 and all(_finite(v) for v in p) for p in pairs)
    return found if whole else {}


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _figure(name: str, record: CellResult, fact: str) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    known = statistics_of(record, fact)
    points, shares = known["points"], known["shares"]
    groups = [str(g).partition(" · ") for g in known["groups"]]
    keys = [(g[0], g[2], str(b)) for g, b in zip(groups, known["branches"], strict=True)]
    colours = _looks({d for d, _, _ in keys}, seaborn.color_palette("colorblind", 10))
    markers = _looks({" · ".join(filter(None, (d, r))) for d, r, _ in keys}, MARKERS)
    filled = _looks({b for _, _, b in keys}, (True, False), first="clean")
    handles = _legend({name: colours[name.partition(" · ")[0]] for name in markers}, markers, filled)
    columns = 1 if len(handles) < 4 or max(len(h.get_label()) for h in handles) > 34 else 2
    lines = math.ceil(len(handles) / columns)
    figure = Figure(figsize=(5.6, 4.3 + 0.2 * lines), layout=roomy(5.6))
    axes = figure.subplots()
    for domain, role, branch in sorted(set(keys)):
        own = [p for p, key in zip(points, keys, strict=True) if key == (domain, role, branch)]
        look = _look(colours[domain], filled=filled[branch])
        marker = markers[" · ".join(filter(None, (domain, role)))]
        xs, ys = zip(*own, strict=True)
        axes.scatter(xs, ys, s=34 if len(points) <= _FEW else 13, marker=marker, zorder=3, **look)
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


def _look(colour: Any, *, filled: bool) -> dict[str, Any]:
    if filled:
        return {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5}
    return {"facecolor": "none", "edgecolor": colour, "linewidth": 1.3}


def _legend(colours: Mapping[str, Any], markers: Mapping[str, Any], filled: Mapping[str, Any]) -> list[Any]:
    """The legend of markers in their colours, and of filling; nothing for a kind of which there is one."""
    from matplotlib.lines import Line2D

    def handle(label: str, *, colour: Any = "#555555", marker: str = "o", full: bool = True) -> Any:
        face = colour if full else "none"
        return Line2D([], [], linestyle="", marker=marker, color=colour, markerfacecolor=face, label=label)

    found = [handle(n, colour=colours[n], marker=m) for n, m in markers.items() if len(markers) > 1 and n]
    return found + [handle(f"{n} branch", full=f) for n, f in filled.items() if len(filled) > 1]
