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

MEAN, VARIANCE, MEAN_GRADIENT, VARIANCE_GRADIENT = KINDS = ("mean", "variance", "mean-gradient", "variance-gradient")


def weighted_sum(shares: Tensor) -> Reducer:
    """The reducer without any defense: ``Σ p_i x_i``."""
    return lambda kind, rows: shares.to(rows.dtype) @ rows


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
        axes, shape = _axes(x)
        parts = torch.split(x, list(sizes))
        mean = reducer(MEAN, torch.stack([part.mean(axes) for part in parts]))
        centred = x - mean.view(shape)
        squares = torch.stack([part.square().mean(axes) for part in torch.split(centred, list(sizes))])
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
        axes, shape = _axes(centred)
        gradient = like_layout(gradient, centred)
        outers, inners = torch.split(gradient, list(sizes)), torch.split(centred, list(sizes))
        db = torch.stack([outer.sum(axes) for outer in outers])
        dw = torch.stack([(outer * inner).sum(axes) for outer, inner in zip(outers, inners, strict=True)]) * inverse
        # Σδẑ = γΣδy and Σδẑ(z-μ) = γΣδy(z-μ), client by client.
        to_mean = -inverse * weight * db
        to_variance = -0.5 * inverse.square() * weight * dw
        if backward_too:
            to_mean = reducer(MEAN_GRADIENT, to_mean).expand_as(to_mean)
            to_variance = reducer(VARIANCE_GRADIENT, to_variance).expand_as(to_variance)
        into = torch.empty_like(centred)
        for k, (outer, inner, target) in enumerate(zip(outers, inners, torch.split(into, list(sizes)), strict=True)):
            values = inner.numel() // inner.shape[1]
            own = inner * (2 / values * to_variance[k]).view(shape) + (to_mean[k] / values).view(shape)
            target.copy_(outer * (inverse * weight[k]).view(shape) + own)
        return into, dw, db, *(None,) * 5


def _axes(x: Tensor) -> tuple[list[int], tuple[int, ...]]:
    return [0, *range(2, x.dim())], (1, -1, *(1,) * (x.dim() - 2))


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
        self._running = (moved[0].repeat(n, 1), moved[1].repeat(n, 1))
        return y


layer_kind(UnionBatchNorm)(Normalization)
