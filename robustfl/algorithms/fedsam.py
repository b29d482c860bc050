"""FedSAM: sharpness-aware local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import Asked, LocalWork
from robustfl.parameters import param
from robustfl.registry import register


@register("fedsam", version=1)
@dataclass(frozen=True)
class FedSAM(FedAvg):
    """FedAvg with every gradient taken at the locally worst point: ``e = ρ g(θ)/(‖g(θ)‖ + 1e-12)``, step ``g(θ + e)``.

    Both gradients are of the same batch; running statistics see its first pass only. Twice the work per step.

    Args:
        rho: ρ ≥ 0, radius of the perturbation; with 0 it is FedAvg, bit for bit.
        and those of ``fedavg``.

    Reference: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, arXiv:2206.02618,
    Algorithm 1.

    >>> FedSAM(rho=0.05).rho
    0.05
    """

    paper: ClassVar[str] = "@qu2022generalized"
    cost: ClassVar[str] = "two gradients per local step; d numbers each way"

    rho: float = param(0.1, ge=0.0, doc="ρ, radius of the perturbation")

    @property
    def asks(self) -> frozenset[Asked]:
        return super().asks | {"again"}

    def gradient(self, theta: Tensor, work: LocalWork) -> Tensor:
        gradient = work.gradient(theta)
        if self.rho == 0.0:
            return gradient
        assert work.again is not None
        return work.again(theta + gradient * (self.rho / (gradient.norm(dim=-1, keepdim=True) + 1e-12)))
