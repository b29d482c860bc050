"""The mean of the medians of groups of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..draws import generator_of, permutation
from ..reference import middle
from ..rows import Mixed, MixedRule


@register("mean-of-medians", version=1)
@dataclass(frozen=True)
class MeanOfMedians(MixedRule):
    """Clients are put in ``g`` random groups too large for attackers to rule; the groups' medians are averaged.

        F(X) = 1/g Σ_j median{x_i : i ∈ G_j},   |G_j| ≥ 2f + 1, sizes differ by at most one

    Every median lies among honest values even if all attackers meet in one group, so averaging them only removes
    noise. With few clients there is one group, which is the plain median.

    Args: ``groups`` ≥ 1; ``None`` (default) for ``⌊n / (2f + 1)⌋``, which for f = 0 gives the mean.

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> robustfl.defense("mean-of-medians")(torch.tensor([[1.0]] * 5 + [[90.0]]), f=1, generator=stream(0, "defense"))
    tensor([1.])

    Reference: the grouping of Algorithm 2 of the paper below, a median of means. Notes: the order is turned round, for
    which we know no definition in the literature: medians within groups, coordinate-wise, then their mean.
    """

    paper: ClassVar[str] = "after @chen2017distributed"
    cost: ClassVar[str] = "O(n log² n) comparisons per entry"
    on_host: ClassVar[str] = "draws which rows make a group"

    groups: int | None = param(None, ge=1, doc="number of groups; None means as many as have 2f + 1 clients each")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        groups = self.groups or len(X) // (2 * f + 1)
        order = permutation(len(X), generator_of(context, "mean-of-medians"))
        return torch.stack([middle(X[group]) for group in order.tensor_split(groups)]).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        groups = n // (2 * f + 1) if self.groups is None else self.groups
        if groups == n:
            return Aggregated(rows.combine(rows.even()))
        if groups == 1:
            return Aggregated(rows.median())
        order = permutation(n, generator_of(context, "mean-of-medians"))
        first, *others = (rows.chosen(group).median() for group in torch.tensor_split(order, groups))
        for other in others:
            first += other
        return Aggregated(first.div_(groups))

    def min_clients(self, f: int) -> int:
        return (self.groups or 1) * (2 * f + 1)
