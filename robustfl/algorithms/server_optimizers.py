"""Server optimizers: momentum, Adam and accelerated gradients."""

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


@register("fedavgm", version=1)
@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg whose server averages updates over rounds: ``m ← λm + F(Δ_k)``, ``θ ← θ + η_g m``.

    The effective step is ``η_g/(1-λ)`` times larger, so a poisoned aggregate is felt for many rounds.

    Args:
        server_momentum: λ in [0, 1); with 0 and ``server_lr=1`` it is FedAvg, bit for bit.
        server_lr: η_g > 0.
        and those of ``fedavg``.

    Reference: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019, arXiv:1909.06335, Section 4.

    >>> work = ServerWork(torch.zeros(1), torch.ones(1), 0.1, {"momentum": torch.ones(1)})
    >>> FedAvgM().server_step(work)[0]
    tensor([1.9000])
    """

    paper: ClassVar[str] = "@hsu2019measuring"
    cost: ClassVar[str] = "the local steps; d numbers each way; the server keeps d numbers"

    server_momentum: float = param(0.9, ge=0.0, lt=1.0, doc="λ, momentum of the server")
    server_lr: float = param(1.0, gt=0.0, doc="η_g, the server's step")

    def server_state(self, theta: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(theta)}

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        state = work.state
        moved = state["momentum"] * self.server_momentum + work.aggregate
        return work.theta + moved * self.server_lr, {"momentum": moved}


@register("fedadam", version=1)
@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg whose server takes Adam steps on the aggregate ``Δ``, without bias correction:

    ``m ← β1 m + (1-β1)Δ``, ``v ← β2 v + (1-β2)Δ²``, ``θ ← θ + η_g m/(√v + τ)``. Coordinates that hardly move get
    steps as large as the others, attackers' included.

    Args:
        beta1, beta2: decay of the moments, in [0, 1).
        tau: τ > 0, the degree of adaptivity; ``v`` starts at τ².
        server_lr: η_g > 0.
        and those of ``fedavg``.

    Reference: Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv:2003.00295, Algorithm 2. Only trainable
    entries have moments; running statistics are merged by the norm.

    >>> fresh = FedAdam().server_state(torch.zeros(1))
    >>> FedAdam(tau=0.1).server_step(ServerWork(torch.zeros(1), torch.ones(1), 0.1, fresh))[0]
    tensor([0.0050])
    """

    paper: ClassVar[str] = "@reddi2021adaptive"
    cost: ClassVar[str] = "the local steps; d numbers each way; the server keeps 2d numbers"

    beta1: float = param(0.9, ge=0.0, lt=1.0, doc="decay of the first moment")
    beta2: float = param(0.99, ge=0.0, lt=1.0, doc="decay of the second moment")
    tau: float = param(1e-3, gt=0.0, doc="τ, added to the root; v starts at τ²")
    server_lr: float = param(0.01, gt=0.0, doc="η_g, the server's step")

    def server_state(self, theta: Tensor) -> dict[str, Tensor]:
        return {"first": torch.zeros_like(theta), "second": torch.full_like(theta, self.tau**2)}

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        state = work.state
        first = state["first"] * self.beta1 + work.aggregate * (1 - self.beta1)
        squares = state["second"] * self.beta2 + work.aggregate.square() * (1 - self.beta2)
        return work.theta + self.server_lr * first / (squares.sqrt() + self.tau), {"first": first, "second": squares}


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
