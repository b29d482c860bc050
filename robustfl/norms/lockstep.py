"""Batch normalization over the union of all clients' batches, by exchange in every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import LockstepLayer, Reducer
from robustfl.layer_kinds import first_order, layer_kind
from robustfl.norms.functional import factors, like_layout, values_per_channel
from robustfl.norms.layers import Normalization, OwnBatchNorm, check_values
from robustfl.norms.sums import apart, beside, within

MEAN, VARIANCE, MEAN_GRADIENT, VARIANCE_GRADIENT = KINDS = ("mean", "variance", "mean-gradient", "variance-gradient")


class UnionStatistics(torch.autograd.Function):
    """``y = γ(z − μ)(v + ε)^{-1/2} + ζ`` with the union's ``μ, v``; the clients' rows pass through the reducer."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: tuple[int, ...],
        reducer: Reducer,
        backward_too: bool,
        eps: float,
        received: list[Tensor],
    ) -> Tensor:
        """``received`` takes the ``μ`` and ``v`` that all clients normalise with."""
        mean = reducer(MEAN, torch.cat([piece.mean(within(piece)) for piece in apart(x, sizes)]))
        centred = x - factors(mean[None], x, sizes)
        squares = torch.cat([piece.square().mean(within(piece)) for piece in apart(centred, sizes)])
        variance = reducer(VARIANCE, squares).clamp(min=0.0)
        received[:] = [mean, variance]
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(centred, weight, inverse)
        ctx.settings = (sizes, reducer, backward_too)
        return centred * factors(weight * inverse, x, sizes) + factors(bias, x, sizes)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        centred, weight, inverse = ctx.saved_tensors
        sizes, reducer, backward_too = ctx.settings
        gradient, into = like_layout(gradient, centred), torch.empty_like(centred)
        pieces = list(zip(*(apart(t, sizes) for t in (gradient, centred, into)), strict=True))
        db = torch.cat([outer.sum(within(outer)) for outer, _, _ in pieces])
        dw = torch.cat([(outer * inner).sum(within(inner)) for outer, inner, _ in pieces]) * inverse
        # Σδẑ = γΣδy and Σδẑ(z-μ) = γΣδy(z-μ), client by client.
        to_mean = -inverse * weight * db
        to_variance = -0.5 * inverse.square() * weight * dw
        if backward_too:
            to_mean = reducer(MEAN_GRADIENT, to_mean).expand_as(to_mean)
            to_variance = reducer(VARIANCE_GRADIENT, to_variance).expand_as(to_variance)
        rows = (torch.split(t, len(pieces[0][0])) for t in (to_mean, to_variance, inverse * weight))
        for (outer, inner, target), shift, slope, scale in zip(pieces, *rows, strict=True):
            values = inner[0, :, 0].numel()
            own = inner * beside(2 / values * slope, inner) + beside(shift / values, inner)
            target.copy_(outer * beside(scale, outer) + own)
        return into, dw, db, *(None,) * 5


union_statistics: Callable[..., Tensor] = UnionStatistics.apply


class UnionBatchNorm(OwnBatchNorm, LockstepLayer):
    """Ordinary batch normalization of each client, but in a lock-step pass that of all clients' batches together.

    ``backward_too``: gradients of the statistics are exchanged like the statistics (FedTAN), or each client goes on
    with its own (FedAvg with the forward half alone).
    """

    def __init__(self, channels: int, *, momentum: float, eps: float, backward_too: bool) -> None:
        super().__init__(channels, momentum=momentum, eps=eps)
        self.backward_too = backward_too

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if not self.training or self.frozen or self.reducer is None:
            return super().normalised(x, weight, bias)
        sizes = self.sizes_of(x, len(weight))
        counts = values_per_channel(x, sizes)
        check_values([sum(counts)], "the union of all batches")
        received: list[Tensor] = []
        y = union_statistics(x, weight, bias, sizes, self.reducer, self.backward_too, self.eps, received)
        self.add(counts)
        total = sum(counts)
        mean, variance = received[0], received[1] * (total / (total - 1))
        moved = [torch.lerp(old, new, self.momentum) for old, new in
                 ((self.running_mean, mean), (self.running_var, variance))]  # fmt: skip
        n = len(sizes)
        self._own = (moved[0].repeat(n, 1), moved[1].repeat(n, 1))
        return y


layer_kind(UnionBatchNorm)(Normalization)
