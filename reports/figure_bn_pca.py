"""Clients' batch-norm statistics in two principal components (the picture of Hong et al., AAAI 2023).

Read from ``certificates["bn_statistics"]``: ``{"rows": [[...], ...], "clients": [...], "groups": [...]}``, one row of
means and variances per client of the last round; ``clients`` are their numbers, ``groups`` what to colour them by, such
as the domain or ``AT``/``ST`` (both may be left out).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from .board import natural
from .figure_layout import wrapped
from .ranking import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = ("dataset", "domains", "partition", "model", "norm", "algorithm", "propagation", "defense", "attack")
_MARKERS = "oXsD^vP*"


def bn_pca_figures(results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """For every experiment that recorded its statistics (lowest seed), a title and a figure."""
    chosen: dict[tuple[str, ...], CellResult] = {}
    ordered = sorted(
        (r for r in results if statistics_of(r)), key=lambda r: (natural(text(r.labels.get("seed"))), r.key)
    )
    for record in ordered:
        chosen.setdefault(tuple(text(record.labels.get(n)) for n in _NAMES), record)
    told = [n for i, n in enumerate(_NAMES) if len({key[i] for key in chosen}) > 1 or n == "norm"]
    for key in sorted(chosen, key=lambda k: natural(" ".join(k))):
        name = " ".join(text(chosen[key].labels.get(n)) for n in told)
        yield f"bn-pca {name}", _figure(name, chosen[key])


def statistics_of(record: CellResult) -> list[list[float]]:
    """The rows of a record, equally long and finite; empty if it has none that can be drawn."""
    found = record.certificates.get("bn_statistics")
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or len(rows) < 2 or not all(isinstance(r, list) and r for r in rows):
        return []
    numbers = all(isinstance(v, (int, float)) and math.isfinite(v) for r in rows for v in r)
    return rows if numbers and len({len(r) for r in rows}) == 1 else []


def components(rows: Sequence[Sequence[float]]) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """The first two principal components of the rows, and their shares of the variance.

    The sign of a component is free; here its largest entry by magnitude is positive.
    """
    import numpy as np

    centred = np.asarray(rows, dtype=np.float64)
    centred = centred - centred.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    total = float((sizes**2).sum())
    if directions.shape[0] < 2:
        directions, sizes = np.vstack([directions, np.zeros_like(directions)]), np.append(sizes, 0.0)
    axes = directions[:2]
    axes = axes * np.where(axes[range(2), np.abs(axes).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    places = centred @ axes.T
    shares = (float(sizes[0] ** 2 / total), float(sizes[1] ** 2 / total)) if total else (0.0, 0.0)
    return [(float(x), float(y)) for x, y in places], shares


def _figure(name: str, record: CellResult) -> Figure:
    import seaborn
    from matplotlib.figure import Figure

    rows, known = statistics_of(record), record.certificates["bn_statistics"]
    places, shares = components(rows)
    clients = _as_long(known.get("clients"), [str(i) for i in range(len(rows))])
    groups = _as_long(known.get("groups"), [""] * len(rows))
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for k, group in enumerate(sorted(set(groups), key=natural)):
        own = [p for p, g in zip(places, groups, strict=True) if g == group]
        colour = seaborn.color_palette("colorblind", 10)[k % 10]
        axes.scatter(
            [x for x, _ in own],
            [y for _, y in own],
            s=36,
            color=colour,
            marker=_MARKERS[k % len(_MARKERS)],
            label=group or None,
        )
    if len(rows) <= 60:
        for place, client in zip(places, clients, strict=True):
            axes.annotate(client, place, textcoords="offset points", xytext=(4, 3), fontsize=7)
    axes.set(
        xlabel=f"component 1 ({100 * shares[0]:.0f} % of variance)", ylabel=f"component 2 ({100 * shares[1]:.0f} %)"
    )
    if any(groups):
        axes.legend(frameon=False, fontsize=8)
    seed = text(record.labels.get("seed"))
    figure.suptitle(f"{wrapped(name, 60)}\nclients' batch-norm statistics, seed {seed}", fontsize=10)
    return figure


def _as_long(found: Any, default: list[str]) -> list[str]:
    return [str(v) for v in found] if isinstance(found, list) and len(found) == len(default) else default
