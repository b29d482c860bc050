"""FedAdam: an adaptive server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import ServerWork
from robustfl.parameters import param
from robustfl.registry import register


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
