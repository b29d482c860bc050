"""Krum, Multi-Krum and Bulyan: rows with near neighbours."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import NearestMean
from ..reference import krum_scores, least, middle
from ..rows import Mixed, MixedRule
from ..ties import smallest

Variant = Literal["blanchard", "nf"]
_DOC = "neighbors in a score: blanchard n-f-2 (the paper), nf n-f-1 (defined up to f < n/2)"


def closest(distances: Tensor, slack: Tensor, neighbors: int, m: int) -> Tensor:
    """The ``m`` rows of least score, the sum of squared distances ``[… n n]`` to the nearest others; see ``ties``."""
    near = distances.sort(dim=-1)
    # The first of a sorted row of distances is the row itself, at 0.
    taken = slice(1, 1 + neighbors)
    scores, off = near.values[..., taken].sum(dim=-1), slack.gather(-1, near.indices)[..., taken].sum(dim=-1)
    return smallest(scores, m, off)


def _neighbors(distances: Tensor, f: int, variant: Variant) -> int:
    return distances.shape[-1] - f - (2 if variant == "blanchard" else 1)


def _least_clients(f: int, variant: Variant) -> int:
    return 2 * f + (3 if variant == "blanchard" else 1)


class Choosing(MixedRule):
    """A rule that averages rows which it chooses by the distances between all."""

    isometric: ClassVar[bool] = True

    @abstractmethod
    def chosen(self, distances: Tensor, slack: Tensor, f: int) -> Tensor:
        """The numbers ``[… m]`` of the chosen rows, by squared distances and the rounding of each, ``[… n n]``."""

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        chosen = self.chosen(rows.squared_distances(), rows.slack(), f)
        return Aggregated(rows.combine(rows.mean_of(chosen)), facts={"selected": chosen})


@register("krum", version=2)
@dataclass(frozen=True)
class Krum(Choosing):
    """The row that is closest to its nearest others.

        F(X) = x_i,  i = argmin Σ_{j ∈ N_i} ‖x_i - x_j‖²,   N_i = the n-f-2 others nearest to x_i

    It returns one client's vector, so under heterogeneity it discards what the others know.

    Args: ``variant`` ``"blanchard"`` (default, the paper's n-f-2 neighbors) or ``"nf"`` (n-f-1, for f up to n/2).

    >>> import robustfl, torch
    >>> robustfl.defense("krum")(torch.tensor([[0.0], [1.0], [1.5], [3.0], [90.0]]), f=1)
    tensor([1.])

    Reference: Section 4 of the paper below. Notes: scores that are equal but for rounding go to the lowest index.
    """

    paper: ClassVar[str] = "@blanchard2017machine"
    cost: ClassVar[str] = "n²d for the inner products, n² log n for the scores"

    variant: Literal["blanchard", "nf"] = param("blanchard", choices=("blanchard", "nf"), doc=_DOC)

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X[krum_scores(X, len(X) - f - (2 if self.variant == "blanchard" else 1)).argmin()]

    def chosen(self, distances: Tensor, slack: Tensor, f: int) -> Tensor:
        return closest(distances, slack, _neighbors(distances, f, self.variant), 1)

    def min_clients(self, f: int) -> int:
        return _least_clients(f, self.variant)


@register("multi-krum", version=2)
@dataclass(frozen=True)
class MultiKrum(Choosing):
    """The mean of the ``m`` rows with the best Krum scores.

        F(X) = 1/m Σ_{i ∈ S} x_i,   S = the m rows of least score

    Colluders close to each other share low scores, so with ``m`` large some of them are averaged in.

    Args: ``variant`` as in ``krum``; ``m`` ≥ 1 rows to average, ``None`` (default) for ``n - f``.

    >>> import robustfl, torch
    >>> robustfl.defense("multi-krum", m=2)(torch.tensor([[0.0], [1.0], [2.0], [4.0], [90.0]]), f=1)
    tensor([0.5000])

    Reference: Section 4 of the paper below (m-Krum); the default ``m`` is ours, as is that scores
    equal but for rounding go to the lowest index.
    """

    paper: ClassVar[str] = "@blanchard2017machine"
    cost: ClassVar[str] = "n²d for the inner products, n² log n for the scores, one sum of m rows"

    variant: Literal["blanchard", "nf"] = param("blanchard", choices=("blanchard", "nf"), doc=_DOC)
    m: int | None = param(None, ge=1, doc="rows to average; None means n - f")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        scores = krum_scores(X, len(X) - f - (2 if self.variant == "blanchard" else 1))
        return X[least(scores, self.m or len(X) - f)].mean(0)

    def chosen(self, distances: Tensor, slack: Tensor, f: int) -> Tensor:
        m = distances.shape[-1] - f if self.m is None else self.m
        return closest(distances, slack, _neighbors(distances, f, self.variant), m)

    def min_clients(self, f: int) -> int:
        return max(_least_clients(f, self.variant), self.m or 1)


@register("bulyan", version=2)
@dataclass(frozen=True)
class Bulyan(MixedRule):
    """Krum again and again chooses ``n - 2f`` rows; then the mean around their median.

        F(X)_k = 1/(n-4f) Σ_{i ∈ N_k} x_ik,   N_k = the n-4f of the chosen rows with least |x_ik - median_k|

    It needs ``n ≥ 4f + 3`` and throws most clients away, so heterogeneity costs it more than other rules.

    >>> import torch, robustfl
    >>> robustfl.defense("bulyan")(torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]]), f=1)
    tensor([2.])

    Reference: Section 4 of the paper below. Notes: a Krum score among the rows left sums squared distances to the
    ``max(1, left - f - 2)`` nearest; scores, and then distances from the median, that are equal but for
    rounding go to the lowest index and, of the distances, to the row chosen first.
    """

    paper: ClassVar[str] = "@elmhamdi2018hidden"
    cost: ClassVar[str] = "n²d for the inner products, (n-2f) n² log n for the choice, sorted columns"
    on_host: ClassVar[str] = "picks rows one after another"

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        left, chosen = X, []
        for _ in range(len(X) - 2 * f):
            best = int(krum_scores(left, max(1, len(left) - f - 2)).argmin())
            chosen.append(left[best])
            left = torch.cat([left[:best], left[best + 1 :]])
        rows = torch.stack(chosen)
        return rows.gather(0, least((rows - middle(rows)).abs(), len(X) - 4 * f)).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        chosen = _choose(rows.squared_distances(), rows.slack(), f)
        left = len(chosen)
        rule = NearestMean(left, (left - 1) // 2, left // 2 + 1, n - 4 * f)
        vector = rows.chosen(torch.tensor(chosen)).columns(rule)
        return Aggregated(vector, facts={"selected": sorted(chosen), "selected_in_order": chosen})

    def min_clients(self, f: int) -> int:
        return 4 * f + 3


def _choose(distances: Tensor, slack: Tensor, f: int) -> list[int]:
    """The ``n - 2f`` rows Krum picks one after another, each from the rows that are left."""
    left, chosen = list(range(len(distances))), []
    for _ in range(len(distances) - 2 * f):
        neighbors = max(1, len(left) - f - 2)
        best = closest(distances[left][:, left], slack[left][:, left], neighbors, 1)
        chosen.append(left.pop(int(best)))
    return chosen
