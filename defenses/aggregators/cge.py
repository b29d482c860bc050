"""Comparative gradient elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..reference import least, lengths
from ..rows import MajorityRule, Mixed
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
        del context
        return X[least(lengths(X), len(X) - f)].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        norms, slack = rows.exact_norms()
        shortest = smallest(norms, rows.count - f, slack)
        return Aggregated(rows.combine(rows.mean_of(shortest)), facts={"selected": shortest})
