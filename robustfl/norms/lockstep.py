"""Layers that exchange sums in every forward: FedTAN and batch norm on the union of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import LockstepLayer, LockstepNorm, Reducer
from robustfl.layer_kinds import first_order, layer_kind
from robustfl.norms.functional import factors, like_layout, values_per_channel
from robustfl.norms.layers import Normalization, OwnBatchNorm, check_values
from robustfl.norms.merging import AveragedNorm
from robustfl.norms.sums import apart, beside, within
from robustfl.parameters import param
from robustfl.registry import register

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


@dataclass(frozen=True)
class _Lockstep(AveragedNorm, LockstepNorm):
    lockstep_kinds: ClassVar[tuple[str, ...]] = KINDS

    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        return UnionBatchNorm(
            channels, momentum=self.momentum, eps=self.eps, backward_too="mean-gradient" in self.lockstep_kinds
        )


@register("fedtan", version=1)
@dataclass(frozen=True)
class FedTAN(_Lockstep):
    """The first local step is taken in lock-step: statistics and their gradients are those of the union of batches.

    Layer by layer forward ``μ = Σp_i m_i``, ``v = Σp_i mean((z_i−μ)²)``; layer by layer backward
    ``G_v = Σp_i G_{v,i}``, ``G_μ = Σp_i G_{μ,i}``, so that ``Σp_i g_i`` is the gradient of the centralised network.
    Further local steps are ordinary. It costs ``3L`` more exchanges a round, and every one of them can be attacked: the
    scenario's defense of statistics aggregates each, and attackers with the statistics in their scope forge each, as in
    a first round: they remember nothing of other exchanges.

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> FedTAN().lockstep_kinds
    ('mean', 'variance', 'mean-gradient', 'variance-gradient')

    Notes: the Bessel factor counts values per channel (the released code counts images), scales start at one. A
    client's momentum starts at zero in every round, and the step in lock-step is its first: later steps carry that
    gradient on, as SGD on one machine would. The released code starts the momentum once more after that step. It draws
    batches with replacement: ``fedavg(replacement=true)``; the default walks through the data in a new order every
    epoch.
    """

    paper: ClassVar[str] = "@wang2025batch, Algorithms 1-3"
    cost: ClassVar[str] = "3 exchanges per layer and round, 4C numbers each way; 2C more once a round"


@register("fedtan-ii", version=1)
@dataclass(frozen=True)
class FedTANII(_Lockstep):
    """FedTAN for the first ``switch_round`` rounds; then the statistics are frozen and plain averaging goes on.

    In the second phase layers normalise with the server's running statistics, also in training, so nothing is
    exchanged layer by layer. Too early a switch freezes statistics that no longer fit.
    Momentum starts at zero in every round of both phases, so nothing of it outlives the switch.

    Args:
        switch_round: T̃ ≥ 1; 1000, 2000, 4000 of 10,000 rounds in the paper (10, 50, 100 of 500 for MNIST).
        momentum: step of the running values, in (0, 1].
        eps: added to variances, > 0.

    >>> norm = FedTANII(switch_round=10)
    >>> norm.frozen(9, 100), norm.frozen(10, 100)
    (False, True)
    """

    paper: ClassVar[str] = "@wang2025batch, Section V"
    cost: ClassVar[str] = "as fedtan up to switch_round, then as ordinary batch normalization"

    switch_round: int = param(100, ge=1, doc="rounds of FedTAN before statistics are frozen")

    def frozen(self, round: int, rounds: int) -> bool:
        return round >= self.switch_round


@register("fedavg-alg2", version=1)
@dataclass(frozen=True)
class FedAvgAlgorithm2(_Lockstep):
    """The forward half of FedTAN alone: statistics of the union, but each client's own gradients of them.

    ``μ`` and ``v`` as in ``fedtan``; backward takes ``G_{μ,i}, G_{v,i}`` of the client itself, so on heterogeneous data
    the averaged gradient is not that of any loss.

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> FedAvgAlgorithm2().lockstep_kinds
    ('mean', 'variance')
    """

    paper: ClassVar[str] = "@wang2025batch, Algorithm 2"
    cost: ClassVar[str] = "2 exchanges per layer and round, 2C numbers each way; 2C more once a round"
    lockstep_kinds: ClassVar[tuple[str, ...]] = KINDS[:2]
