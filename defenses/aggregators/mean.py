"""The weighted mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..rows import Mixed, MixedRule, shares


@register("mean", version=1)
@dataclass(frozen=True)
class Mean(MixedRule):
    """The mean, weighted by ``context.weights`` if there are any.

        F(X) = Σ p_i x_i,   p_i = w_i / Σ w_j   (1/n without weights)

    A single Byzantine client moves it anywhere; it is the baseline.

    >>> import robustfl, torch
    >>> robustfl.defense("mean")(torch.tensor([[0.0], [4.0]]), f=0, weights=[3, 1])
    tensor([1.])

    Reference: the server step of FedAvg.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@mcmahan2017communication"
    cost: ClassVar[str] = "nd"
    by_columns: ClassVar[bool] = True
    isometric: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        return Aggregated(rows.combine(shares(rows, context, self.name)))

    def min_clients(self, f: int) -> int:
        del f
        return 1
