"""The smallest maximum eigenvalue averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..rows import MajorityRule, Mixed, nearest_row, products_about
from ..subsets import too_many, without

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

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
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
