"""Minimum-diameter averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..rows import MajorityRule, Mixed
from ..subsets import too_many


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

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
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
