"""Clients' batch-norm statistics in two principal components (the picture of Hong et al., AAAI 2023).

Read from ``certificates["bn_statistics"]``, which a run makes of the last round's means and variances: ``points`` (two
coordinates per row), ``shares`` of the variance, and per row ``clients``, ``branches`` and ``groups``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from .board import natural
from .figure_layout import wrapped
from .ranking import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIRST = (
    "dataset",
    "domains",
    "partition",
    "model",
    "norm",
    "algorithm",
    "objective",
    "propagation",
    "defense",
    "attack",
)
_MARKERS = "oXsD^vP*"
_MAX_NAMED = 40
"""With more points, clients' numbers would hide them."""


def bn_pca_figures(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment that recorded its statistics (lowest seed), a title and a figure."""
    chosen: dict[tuple[str, ...], CellResult] = {}
    ordered = sorted(
        (r for r in results if statistics_of(r)), key=lambda r: (natural(text(r.labels.get("seed"))), r.key)
    )
    others = sorted({n for r in ordered for n in r.labels} - {*_FIRST, "seed"})
    names = [*_FIRST, *others]
    for record in ordered:
        chosen.setdefault(tuple(text(record.labels.get(n)) for n in names), record)
    told = [n for i, n in enumerate(names) if len({key[i] for key in chosen}) > 1 or n == "norm"]
    for key in sorted(chosen, key=lambda k: natural(" ".join(k))):
        shown = [text(chosen[key].labels.get(n)) for n in told]
        name = " · ".join(v if n in _FIRST else f"{n} = {v}" for n, v in zip(told, shown, strict=True))
        yield f"bn-pca {' '.join(shown)}", _figure(name, chosen[key])


def statistics_of(record: CellResult) -> Mapping[str, Any]:
    """The certificate of a record, if it is whole and can be drawn; else empty."""
    found = record.certificates.get("bn_statistics")
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


def _figure(name: str, record: CellResult) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    known = statistics_of(record)
    points, shares = known["points"], known["shares"]
    keys = list(zip(map(str, known["groups"]), map(str, known["branches"]), strict=True))
    groups = sorted({g for g, _ in keys}, key=natural)
    branches = sorted({b for _, b in keys}, key=lambda b: (b != "clean", b))
    palette = seaborn.color_palette("colorblind", 10)
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.subplots()
    for group, branch in sorted(set(keys), key=lambda key: (groups.index(key[0]), branches.index(key[1]))):
        own = [p for p, key in zip(points, keys, strict=True) if key == (group, branch)]
        label = ", ".join(v for v in (group, f"{branch} branch" if len(branches) > 1 else "") if v)
        colour = palette[groups.index(group) % 10]
        hollow = branches.index(branch) > 0
        axes.scatter(
            [x for x, _ in own],
            [y for _, y in own],
            s=38,
            marker=_MARKERS[groups.index(group) % len(_MARKERS)],
            facecolor="none" if hollow else colour,
            edgecolor=colour if hollow else "white",
            linewidth=1.3 if hollow else 0.5,
            label=label or None,
            zorder=3,
        )
    if len(points) <= _MAX_NAMED:
        for place, client in zip(points, known["clients"], strict=True):
            axes.annotate(
                str(client), place, textcoords="offset points", xytext=(4, 3), fontsize=7, color="#444444", zorder=4
            )
    axes.margins(0.08)
    axes.set(
        xlabel=f"component 1 ({100 * shares[0]:.0f} % of variance)", ylabel=f"component 2 ({100 * shares[1]:.0f} %)"
    )
    drawn = [label for label in axes.get_legend_handles_labels()[1] if label]
    if drawn:
        columns = 2 if len(drawn) > 3 and max(map(len, drawn)) < 36 else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    seed = text(record.labels.get("seed"))
    rows = f"{known.get('entries')} means and variances per client" if known.get("entries") else "means and variances"
    figure.suptitle(f"{wrapped(name, 64)}\n{rows}, last round, seed {seed}", fontsize=10)
    return figure
