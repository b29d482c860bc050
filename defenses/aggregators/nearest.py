"""Means of the rows of least length, or nearest to one client's: CGE and MoNNA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..reference import least, lengths
from ..rows import MajorityRule, Mixed, MixedRule
from ..ties import smallest


@register("cge", version=2)
@dataclass(frozen=True)
class ComparativeElimination(MajorityRule):
    """The mean of the ``n - f`` shortest rows.

        F(X) = 1/(n-f) Σ_{i ∈ S} x_i,   S = the n-f rows of least length, ties (but for rounding) to the lowest index

    Attackers that are no longer than honest clients (sign flipping) are all kept.

    >>> import robustfl, torch
    >>> robustfl.defense("cge")(torch.tensor([[1.0], [-2.0], [4.0], [90.0]]), f=1)
    tensor([1.])

    Reference: the gradient filter CGE of the paper below. Notes: the mean instead of the sum, so that the length of a
    step does not depend on ``n``.
    """

    paper: ClassVar[str] = "@gupta2020byzantine"
    cost: ClassVar[str] = "2nd: lengths of the rows, then one sum"
    isometric: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X[least(lengths(X), len(X) - f)].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        norms, slack = rows.exact_norms()
        shortest = smallest(norms, rows.count - f, slack)
        return Aggregated(rows.combine(rows.mean_of(shortest)), facts={"selected": shortest})


@register("monna", version=2)
@dataclass(frozen=True)
class NearestNeighborAveraging(MixedRule):
    """The mean of the ``n - f`` rows nearest to one trusted row.

        F(X) = 1/(n-f) Σ_{i ∈ N} x_i,   N = the n-f rows nearest to x_p, itself included, ties to the lowest index

    Everything hangs on the trusted row ``p``: with an attacker in its place the result follows the attacker.

    Args: ``pivot`` ≥ 0, the number of the trusted row (0).

    >>> import robustfl, torch
    >>> robustfl.defense("monna")(torch.tensor([[1.0], [0.0], [2.0], [90.0]]), f=1)
    tensor([1.])

    Reference: the aggregation of Algorithm 1 of the paper below, where every client is its own pivot. Notes: a server
    has no row of its own and must name one; in a cell honest rows come first, so the default trusts an honest client.
    Rows dropped for not being finite leave a gap that later rows close. Distances that are equal but for rounding tie.
    """

    paper: ClassVar[str] = "@farhadkhani2023robust"
    cost: ClassVar[str] = "3nd: lengths, distances from one row, then one sum"
    isometric: ClassVar[bool] = True
    trusts_client: ClassVar[bool] = True

    pivot: int = param(0, ge=0, doc="number of the trusted row")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X[least(lengths(X - X[self.pivot]), len(X) - f)].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        distances = rows.distances_from(self.pivot)
        nearest = smallest(distances, rows.count - f, rows.slack_from(self.pivot, distances))
        return Aggregated(rows.combine(rows.mean_of(nearest)), facts={"selected": nearest})

    def min_clients(self, f: int) -> int:
        return max(2 * f + 1, self.pivot + 1)
