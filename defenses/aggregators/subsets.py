"""Rules that try all subsets of n - f rows: MDA and SMEA."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from math import comb
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..reference import squared_distances
from ..rows import MajorityRule, Mixed, nearest_row, products_about

LARGEST = 1_000_000


def too_many(n: int, f: int) -> str | None:
    """The refusal of a search over more than ``LARGEST`` subsets, or ``None``."""
    count = comb(n, f) if 0 <= f <= n else 0
    if count <= LARGEST:
        return None
    return f"f={f} of n={n} clients leaves binom({n}, {f}) = {count} subsets to search, more than {LARGEST}."


def without(n: int, f: int) -> Tensor:
    """Which rows every subset of ``n - f`` keeps, ``[binom(n,f) n]`` as booleans, in lexicographic order."""
    count = comb(n, f)
    flat = np.fromiter(chain.from_iterable(combinations(range(n), f)), dtype=np.int64, count=count * f)
    # Leaving out the later rows first means keeping the earlier ones first.
    gone = torch.from_numpy(flat.reshape(count, f)[::-1].copy())
    return torch.ones((count, n), dtype=torch.bool).scatter_(1, gone, False)


@register("mda", version=2)
@dataclass(frozen=True)
class MinimumDiameterAveraging(MajorityRule):
    """The mean of the ``n - f`` rows that lie closest together.

        F(X) = 1/(n-f) Σ_{i ∈ S} x_i,   S = argmin over |S| = n-f of max_{i,j ∈ S} ‖x_i - x_j‖

    Attackers no farther out than honest clients are kept. The problem is hard: at most 10⁶ subsets are accepted.

    >>> import robustfl
    >>> robustfl.defense("mda")(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.])

    Reference: the rule MDA of the paper below. Notes: of several such subsets the first in lexicographic order, where
    diameters that are equal but for rounding are equal. Instead of trying all subsets, the least diameter is found by
    bisection over the distances: one works if removing ``f`` rows parts all pairs farther apart (a vertex cover).
    """

    paper: ClassVar[str] = "@elmhamdi2020genuinely"
    cost: ClassVar[str] = "n²d for the inner products; the search is exponential in f"
    on_host: ClassVar[str] = "searches subsets of rows"
    isometric: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        kept = without(len(X), f)
        widths = [float(squared_distances(X[rows]).max()) for rows in kept]
        return X[kept[widths.index(min(widths))]].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        subset, diameter = _closest(rows.squared_distances(), rows.slack(), f)
        weights = rows.mean_of(torch.tensor(subset))
        return Aggregated(rows.combine(weights), facts={"subset": subset, "diameter": diameter**0.5})

    def refuses(self, n: int, f: int) -> str | None:
        return too_many(n, f)


def _closest(distances: Tensor, slack: Tensor, f: int) -> tuple[list[int], float]:
    """The first ``n - f`` rows of least diameter but for rounding, and its square."""
    n = len(distances)
    levels = sorted({0.0, *distances.flatten().tolist()})
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if _separable(_far_pairs(distances, levels[middle]), (1 << n) - 1, f):
            high = middle
        else:
            low = middle + 1
    # Pairs no farther apart than the least diameter, as far as rounding can tell, part no subset from the best.
    least = levels[low]
    blur = max([0.0, *slack[distances == least].tolist()])
    far = _far_pairs(distances - slack, least + blur)
    left, budget, kept = (1 << n) - 1, f, 0
    for i in range(n):
        if not left >> i & 1:
            continue
        # Keeping row i costs the rows far from it; the rest must still be separable with what is left of f.
        gone = far[i] & left
        if gone.bit_count() <= budget:
            rest = left & ~gone
            if _separable(far, rest & ~(1 << i), budget - gone.bit_count()):
                kept, left, budget = kept | 1 << i, rest, budget - gone.bit_count()
                continue
        left, budget = left & ~(1 << i), budget - 1
    subset = [i for i in range(n) if kept >> i & 1][: n - f]
    return subset, float(distances[subset][:, subset].max())


def _far_pairs(distances: Tensor, level: float) -> list[int]:
    """For every row the rows farther away than ``level``, as bits."""
    return [sum(1 << j for j, far in enumerate(row) if far) for row in (distances > level).tolist()]


def _separable(far: list[int], rows: int, budget: int) -> bool:
    """True if leaving out at most ``budget`` of the ``rows`` leaves no two that are far apart."""
    degrees = {i: (far[i] & rows).bit_count() for i in range(len(far)) if rows >> i & 1}
    pairs = sum(degrees.values()) // 2
    if pairs == 0:
        return True
    worst = max(degrees, key=lambda i: degrees[i])
    if pairs > budget * degrees[worst]:
        return False
    if _separable(far, rows & ~(1 << worst), budget - 1):
        return True
    return degrees[worst] <= budget and _separable(far, rows & ~far[worst] & ~(1 << worst), budget - degrees[worst])


_BATCH = 512
_DIRECTIONS = 8
# What an eigenvalue problem adds to the error of its eigenvalues, relative to the least.
_ROUNDING = 1e-10


@register("smea", version=3)
@dataclass(frozen=True)
class SmallestMaximumEigenvalue(MajorityRule):
    """The mean of the ``n - f`` rows whose covariance has the smallest greatest eigenvalue.

        F(X) = 1/(n-f) Σ_{i ∈ S} x_i,   S = argmin over |S| = n-f of λ_max(Cov(x_i, i ∈ S))

    Attackers spread over many directions enlarge no single one and are kept. At most 10⁶ subsets are accepted.

    >>> import robustfl
    >>> robustfl.defense("smea")(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.])

    Reference: the rule SMEA of the paper below. Notes: the exact minimum; of several subsets, equal but for rounding,
    the first in lexicographic order. The variance along any direction bounds the greatest eigenvalue from below, which
    spares most subsets.
    """

    paper: ClassVar[str] = "@allouah2023privacy"
    cost: ClassVar[str] = "n²d for the inner products; binom(n, f) largest eigenvalues of (n-f)² matrices"
    on_host: ClassVar[str] = "searches subsets of rows"
    isometric: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        kept = without(len(X), f)
        spreads = [float(torch.linalg.matrix_norm(X[rows] - X[rows].mean(0), 2)) for rows in kept]
        return X[kept[spreads.index(min(spreads))]].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        # About a near row: the mean of all would be as far away as one attacker wants, and cost the others' digits.
        products = products_about(rows.products()[:-1, :-1], nearest_row(rows.squared_distances()))
        kept = without(rows.count, f)
        best, value = _search(products, rows.slack(), kept)
        weights = kept[best].double() / (rows.count - f)
        facts = {"subset": kept[best].nonzero().flatten().tolist(), "lambda": value}
        return Aggregated(rows.combine(weights), facts=facts)

    def refuses(self, n: int, f: int) -> str | None:
        return too_many(n, f)


def _centred(products: Tensor) -> Tensor:
    """Inner products ``[… k k]`` about the mean of the points."""
    rows = products.mean(-1, keepdim=True)
    return products - rows - rows.transpose(-1, -2) + rows.mean(-2, keepdim=True)


def _search(products: Tensor, slack: Tensor, kept: Tensor) -> tuple[int, float]:
    """The first of the subsets ``kept [B n]`` of least λ_max but for rounding, and that value.

    Most promising subsets come first. A variance along any direction, half the mean square over pairs of rows, is off
    by at most half their mean slack.
    """
    n, k = products.shape[0], int(kept[0].sum())
    eigenvalues = torch.full((len(kept),), torch.inf, dtype=torch.float64)
    waiting = torch.arange(len(kept))
    bound = _variance_along(products, kept, torch.linalg.eigh(products).eigenvectors[:, -_DIRECTIONS:])
    chosen = kept.double()
    off = ((chosen @ slack) * chosen).sum(1) / (2 * k**2)
    best, blur = torch.inf, 0.0
    while len(waiting):
        order = bound.argsort(stable=True)
        batch, rest = order[:_BATCH], order[_BATCH:]
        rows = kept[waiting[batch]].nonzero()[:, 1].view(-1, k)
        values, vectors = torch.linalg.eigh(_centred(products[rows[:, :, None], rows[:, None, :]]) / k)
        eigenvalues[waiting[batch]] = values[:, -1]
        least = int(values[:, -1].argmin())
        if float(values[least, -1]) < best:
            best, blur = float(values[least, -1]), float(off[waiting[batch][least]])
        if not len(rest):
            break
        # The worst directions of the best subsets so far are bad for others, too.
        good = values[:, -1].argsort()[:_DIRECTIONS]
        directions = torch.zeros((n, len(good)), dtype=torch.float64)
        directions.scatter_(0, rows[good].T, vectors[good, :, -1].T)
        waiting, bound = waiting[rest], bound[rest]
        bound = torch.maximum(bound, _variance_along(products, kept[waiting], directions))
        open_ = bound <= best * (1 + _ROUNDING) + blur + off[waiting]
        waiting, bound = waiting[open_], bound[open_]
    tied = eigenvalues <= best * (1 + _ROUNDING) + blur + off
    first = int(tied.nonzero()[0])
    return first, float(eigenvalues[first])


def _variance_along(products: Tensor, kept: Tensor, directions: Tensor) -> Tensor:
    """For every subset ``[B n]`` the greatest variance along the directions ``Σ_i w_i x_i``, ``w [n m]``."""
    along = products @ directions
    length = (directions * along).sum(0).clamp(min=0)
    usable = length > length.max() * 1e-12
    along = along[:, usable] / length[usable].sqrt()
    if not along.shape[1]:
        return torch.zeros(len(kept), dtype=torch.float64)
    chosen = kept.double()
    k = chosen[0].sum()
    variance = chosen @ along.square() / k - (chosen @ along / k).square()
    return variance.max(dim=1).values * (1 - _ROUNDING)
