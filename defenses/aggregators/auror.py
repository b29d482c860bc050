"""Auror."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.kernels.blocks import blocks, width
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import MajorityRule, Mixed

# Splits whose sums of squares differ by less are equally good: the one with fewer low values is taken.
_ROUNDING = 1e-9


@register("auror", version=1)
@dataclass(frozen=True)
class Auror(MajorityRule):
    """The mean of the clients that are seldom in the smaller of two clusters of an indicative coordinate's values.

        F(X) = 1/|S| Σ_{i ∈ S} x_i,   S = {i: |{j ∈ J: i in the smaller cluster of column j}| ≤ τ |J|}

    Every column's values are split by 2-means; ``J`` are the columns whose two centres are more than ``α`` apart. Where
    both clusters are equally large nobody is suspected. Attackers that stay within ``α`` of the honest values, or in a
    minority of columns, are averaged; where clients differ by their data, those with rare classes are suspected.

    Args: ``alpha`` ≥ 0, distance of centres beyond which a column is indicative (0.02): a length of its own, to be
    chosen with the network; ``tau`` in (0, 1], share of the indicative columns beyond which a client is left out (0.5).

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0, 0.1], [1.1, 0.0, 0.0], [0.9, 0.0, 0.1], [-4.0, 3.0, 0.0]])
    >>> robustfl.defense("auror(alpha=1)")(X, f=1).round(decimals=2)
    tensor([1.0000, 0.0000, 0.0700])

    Reference: Auror's identification of indicative features and of malicious users in the paper below. Notes: the paper
    fixes ``J`` by the first rounds of training; here every round finds its own. 2-means on a line is solved exactly. If
    everybody is suspected, as can be for ``τ < 1/2``, all are averaged, which the fact ``all_suspected`` says.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@shen2016auror"
    cost: ClassVar[str] = "a sort of n values and n splits of them for every entry, one sum"
    on_host: ClassVar[str] = "leaves clients out by votes"

    alpha: float = param(0.02, ge=0, doc="distance of two centres that makes a column indicative")
    tau: float = param(0.5, gt=0, le=1, doc="share of the indicative columns that a client may be suspected in")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        votes, indicative = torch.zeros(len(X)), 0
        for column in X.T:
            splits = [(column <= value, column > value) for value in column.sort().values[:-1]]
            spread = [
                sum((column[side] - column[side].mean()).square().sum() for side in s if any(side)) for s in splits
            ]
            low, high = splits[min(range(len(splits)), key=lambda k: float(spread[k]))] if splits else (column > 0,) * 2
            if low.any() and high.any() and float(column[high].mean() - column[low].mean()) > self.alpha:
                indicative += 1
                votes += low * (low.sum() < high.sum()) + high * (high.sum() < low.sum())
        kept = votes <= self.tau * indicative
        return X[kept | ~kept.any()].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        X = rows.materialise()
        votes, indicative = X.new_zeros(len(X), dtype=torch.int64), 0
        for block in blocks(X.shape[1], width(4 * len(X), X.shape[1], X, itemsize=8)):
            suspected, found = _suspected(X[:, block], self.alpha)
            votes, indicative = votes + suspected, indicative + found
        kept = votes.cpu() <= self.tau * indicative * (1 + _ROUNDING)
        nobody = not bool(kept.any())
        chosen = (kept | nobody).nonzero().flatten()
        facts = {"kept": chosen.tolist(), "indicative": indicative, "all_suspected": nobody}
        return Aggregated(rows.combine(rows.mean_of(chosen)), facts=facts)


def _suspected(X: Tensor, alpha: float) -> tuple[Tensor, int]:
    """In how many indicative columns of ``X [n w]`` each row is suspected ``[n]``, and how many there are."""
    n = len(X)
    if n < 2:
        return X.new_zeros(n, dtype=torch.int64), 0
    values, order = X.double().sort(dim=0, stable=True)
    low = torch.arange(1, n, device=X.device)
    sums = values.cumsum(0)
    apart = (sums[-1] - sums[:-1]) / (n - low)[:, None] - sums[:-1] / low[:, None]
    between = apart.square() * (low * (n - low))[:, None]
    best = (between >= between.amax(0) * (1 - _ROUNDING)).to(torch.int8).argmax(0)
    indicative = apart.gather(0, best[None])[0] > alpha
    below = torch.arange(n, device=X.device)[:, None] <= best
    size = best + 1
    smaller = torch.where(2 * size < n, below, ~below & (2 * size > n)) & indicative
    votes = torch.zeros_like(smaller).scatter_(0, order, smaller).sum(1)
    return votes, int(indicative.sum())
