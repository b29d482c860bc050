"""FedAvgM: momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import ServerWork
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
