"""Robust federated averaging: a few smoothed Weiszfeld steps with sample weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import MajorityRule, Mixed, shares


@register("rfa", version=1)
@dataclass(frozen=True)
class RobustFederatedAveraging(MajorityRule):
    """The approximate geometric median of clients weighted by their samples: few steps from the weighted mean.

        z ← Σ β_i x_i / Σ β_i,   β_i = α_i / max(ν, ‖x_i - z‖),   α_i = w_i / Σ w_j   (1/n without weights)

    Few steps from the mean leave much of what a very long row has done to the mean; ``geometric-median`` converges.

    Args: ``steps`` ≥ 1 (3, the paper's budget of communication); ``nu`` > 0 smoothing (1e-6).

    >>> import robustfl, torch
    >>> robustfl.defense("rfa(steps=20)")(torch.tensor([[0.0], [0.0], [0.0], [90.0]]), f=1) < 1e-3
    tensor([True])

    Reference: Algorithm 2 (smoothed Weiszfeld) of the paper below, as RFA runs it in every round.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@pillutla2022robust"
    cost: ClassVar[str] = "n²d for the inner products, n² per step"
    isometric: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    steps: int = param(3, ge=1, doc="Weiszfeld steps")
    nu: float = param(1e-6, gt=0, doc="smallest distance a weight is computed from")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        products = rows.products()[:-1, :-1]
        place = share = shares(rows, context, self.name)
        for _ in range(self.steps):
            along = products @ place
            distances = (products.diagonal() - 2 * along + place @ along).clamp(min=0).sqrt()
            inverse = share / distances.clamp(min=self.nu)
            place = inverse / inverse.sum()
        return Aggregated(rows.combine(place))
