"""Centered clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..reference import clipped
from ..rows import MajorityRule, Mixed


@register("centered-clipping", version=1)
@dataclass(frozen=True)
class CenteredClipping(MajorityRule):
    """Clip every row's difference to the last aggregate, and move by the mean of what is left.

        v ← v + 1/n Σ (x_i - v) min(1, τ / ‖x_i - v‖),   L times; v persists between rounds

    A ``tau`` far above the honest spread is a plain mean, one far below stalls; attackers that drift slowly drag ``v``.

    Args: ``tau`` > 0 clipping radius (100, or 10/(1 - momentum) in the paper); ``L`` ≥ 1 iterations (1). State:
    ``"v" [d]``, zero at the start.

    >>> import robustfl, torch
    >>> robustfl.defense("centered-clipping", tau=1)(torch.tensor([[0.5], [1.0], [90.0]]), f=1)
    tensor([0.8333])

    Reference: Algorithm 2 of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@karimireddy2021learning"
    cost: ClassVar[str] = "2nd for L = 1, else n²d for the inner products and n² per step"
    unfit_for_statistics: ClassVar[str] = (
        "no state is kept of statistics, so it would pull variances to zero in every round"
    )

    tau: float = param(100.0, gt=0, doc="clipping radius")
    L: int = param(1, ge=1, doc="iterations per round")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        v: Tensor = context.state.get("v", torch.zeros_like(X[0])).to(X)
        for _ in range(self.L):
            v = v + clipped(X - v, self.tau).mean(0)
        return v

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        m, stack, dtype = rows.count, rows.stack, rows.stack.dtype
        start = context.state.get("v")
        if start is not None:
            if start.shape != stack.shape[1:]:
                raise UsageError(
                    f"centered-clipping: state 'v' has {start.numel()} entries, rows have {stack.shape[1]}"
                )
            start = start.detach().to(dtype=dtype, device=stack.device)
        if self.L == 1:
            return self._once(rows, start)
        products = rows.products(start)
        # Points are the rows, the origin and, if there is one, the last aggregate: the last one is the start.
        place = products.new_zeros(len(products))
        place[-1] = 1.0
        square = products.diagonal()[:m]
        for _ in range(self.L):
            along = products @ place
            distances = (square - 2 * along[:m] + place @ along).clamp_(min=0).sqrt_()
            share = (self.tau / distances).clamp_(max=1) / m
            place = place * (1 - share.sum())
            place[:m] += share
        vector = rows.combine(place[:m])
        if start is not None:
            vector.addcmul_(start, place[-1].to(start))
        return Aggregated(vector, state={"v": vector})

    def _once(self, rows: Mixed, start: Tensor | None) -> Aggregated:
        """A single iteration needs the distances from the start and no inner products."""
        share = (self.tau / rows.distances_to(start)).clamp(max=1) / rows.count
        vector = rows.combine(share)
        if start is not None:
            vector.addcmul_(start, (1 - share.sum()).to(start))
        return Aggregated(vector, state={"v": vector})
