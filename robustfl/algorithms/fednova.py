"""FedNova: updates per local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import LocalWork, ServerWork
from robustfl.errors import UsageError
from robustfl.registry import register


@register("fednova", version=1)
@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg of updates per step: ``θ ← θ + τ̄ F(Δ_k/a_k)``, ``τ̄ = Σ_k p_k a_k``, where ``a_k`` is what τ_k steps weigh.

    Clients with many local steps count by their samples alone, so that the fixed point is that of the global loss.
    ``a_k = τ_k``; with momentum ρ ``a_k = (τ_k - ρ(1-ρ^τ_k)/(1-ρ))/(1-ρ)``, how often each gradient counts in all.
    Where everybody takes as many steps it is FedAvg, up to rounding (a warning). Attackers count with the samples
    they claim.

    Args:
        those of ``fedavg``, but for ``keep_momentum``: how often a gradient counts would have no end.

    Reference: Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization, NeurIPS 2020, arXiv:2007.07481, Section 4 with ``τ_eff = Σ_k p_k ‖a_k‖₁``.

    >>> FedNova().server_step(ServerWork(torch.zeros(1), torch.ones(1), 0.1, steps=[1, 3]))[0]
    tensor([2.])
    """

    paper: ClassVar[str] = "@wang2020tackling"
    cost: ClassVar[str] = "the local steps; d numbers each way"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum:
            raise UsageError("FedNova: keep_momentum=True has no weight of a local step; momentum starts anew here")

    def caution(self, steps: int) -> str:
        alike = f"{self.name}: every client takes {steps} local steps a round, so it is fedavg"
        return "; ".join(filter(None, [super().caution(steps), alike if steps == self.local_steps else ""]))

    def weight(self, steps: int) -> float:
        """The sum of the weights that the gradients of so many steps have in an update, ``‖a‖₁``."""
        rho = self.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)

    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        update, _ = super().local(work)
        per_step = update / self.weight(work.steps)
        # What clients keep for themselves never meets the server, who alone would multiply it again.
        return per_step if work.shared is None else torch.where(work.shared, per_step, update), None

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        if not work.steps:
            raise UsageError("fednova counts the clients' local steps; give ServerWork(..., steps=[...])")
        weights = torch.tensor([self.weight(steps) for steps in work.steps], dtype=torch.float64)
        shares = torch.ones_like(weights) if work.weights is None else work.weights.to(weights)
        return work.theta + work.aggregate * float(shares @ weights / shares.sum()), {}
