"""FedACG: clients start from the accelerated global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import LocalWork, ServerWork
from robustfl.parameters import param
from robustfl.registry import register


@register("fedacg", version=1)
@dataclass(frozen=True)
class FedACG(FedAvg):
    """The server sends ``φ = θ + λm``; clients add ``(β/2)‖θ_k - φ‖²`` to their loss; then

    ``m ← λm + F(θ_k - φ)``, ``θ ← θ + m``, which for the mean is the plain average of the local models. The model
    that is evaluated is θ.

    Args:
        server_momentum: λ in [0, 1).
        beta: β ≥ 0; with λ = β = 0 it is FedAvg, bit for bit. The released configuration is 2e-3. With one local
            step it changes nothing (a warning).
        and those of ``fedavg``.

    Reference: Kim, Kim, Han, Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024,
    arXiv:2201.03172, Algorithm 1. The released code weighs clients uniformly; here ``weighting`` says.

    >>> FedACG().broadcast(torch.ones(1), {"momentum": torch.ones(1)})
    tensor([1.8500])
    """

    paper: ClassVar[str] = "@kim2024communication"
    cost: ClassVar[str] = "the local steps; d numbers each way; the server keeps d numbers"
    proximal: ClassVar[str] = "beta"

    server_momentum: float = param(0.85, ge=0.0, lt=1.0, doc="λ, momentum of the server")
    beta: float = param(2e-3, ge=0.0, doc="β, weight of the proximal term")

    def corrected(self, gradient: Tensor, theta: Tensor, work: LocalWork) -> Tensor:
        return gradient.add(theta - work.theta, alpha=self.beta) if self.beta else gradient

    def server_state(self, theta: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(theta)}

    def broadcast(self, theta: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return theta.add(state["momentum"], alpha=self.server_momentum)

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        state = work.state
        moved = state["momentum"] * self.server_momentum + work.aggregate
        return work.theta + moved, {"momentum": moved}
