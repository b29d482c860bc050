"""FedProx: local steps tied to the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import LocalWork
from robustfl.parameters import param
from robustfl.registry import register


@register("fedprox", version=1)
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with the local loss ``L_k(θ) + μ/2 ‖θ - θ_t‖²``, that is ``μ(θ - θ_t)`` added to every gradient.

    A large μ keeps clients from learning, a small one does nothing; heterogeneity of gradients remains.

    Args:
        mu: μ ≥ 0; with 0 it is FedAvg, bit for bit, and so it is with one local step (a warning).
        legacy_unsquared: the norm itself, ``μ/2 ‖θ - θ_t‖``, as the code released with FedBN and FedRBN has it.
        and those of ``fedavg``.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127, Algorithm 2.

    >>> FedProx(mu=0.1).steps(samples=70, batch=32)
    3
    """

    paper: ClassVar[str] = "@li2020federated"
    cost: ClassVar[str] = "the local steps; d numbers each way"
    proximal: ClassVar[str] = "mu"

    mu: float = param(0.01, ge=0.0, doc="weight of the proximal term")
    legacy_unsquared: bool = param(False, doc="penalise μ/2 times the norm instead of its square")

    def corrected(self, gradient: Tensor, theta: Tensor, work: LocalWork) -> Tensor:
        if self.mu == 0.0:
            return gradient
        away = theta - work.theta
        if not self.legacy_unsquared:
            return gradient.add(away, alpha=self.mu)
        # At the start the norm has no gradient; zero is a subgradient.
        return gradient.add(away / away.norm(dim=-1, keepdim=True).clamp(min=1e-12), alpha=self.mu / 2)
