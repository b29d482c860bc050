"""CRFL: the global model is clipped and covered with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import Asked, ServerWork
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register


@register("crfl", version=2)
@dataclass(frozen=True)
class CRFL(FedAvg):
    """FedAvg whose server clips the model and adds noise: ``θ ← Clip_ρ(θ + F(Δ_k)) + N(0, σ² I)``, without noise last.

    ``Clip_ρ(θ) = θ / max(1, ‖θ‖/ρ)``. A backdoor that moves the model a little is covered by the noise. A ``rho`` below
    the norm of a trained model, or a ``sigma`` that ``d`` entries cannot bear, costs accuracy: it is a length of its
    own, to be chosen with the network.

    Args:
        rho: ρ > 0, greatest norm of the model; 15.
        sigma: σ ≥ 0, standard deviation of the noise on every entry; 0.01.
        and those of ``fedavg``.

    Reference: Xie, Chen, Chen, Li, CRFL: Certifiably Robust Federated Learning against Backdoor Attacks, ICML 2021,
    arXiv:2106.08283, Algorithm 1 (its training). Deviations: the radius is the same in all rounds, where the paper's
    may grow; the vote of noisy copies of the final model, which the certificate is about, is left out, so no
    certificate is claimed. Entries that clients keep for themselves are neither clipped nor covered, and no part of the
    norm.

    >>> work = ServerWork(torch.tensor([3.0, 4.0]), torch.zeros(2), 0.1, last=True)
    >>> CRFL(rho=2.5).server_step(work)[0]
    tensor([1.5000, 2.0000])
    """

    paper: ClassVar[str] = "@xie2021crfl"
    cost: ClassVar[str] = "the local steps; d numbers each way; d draws of the server"

    rho: float = param(15.0, gt=0.0, doc="ρ, greatest norm of the global model")
    sigma: float = param(0.01, ge=0.0, doc="σ, standard deviation of the noise")

    @property
    def asks(self) -> frozenset[Asked]:
        own: frozenset[Asked] = frozenset({"draws"} if self.sigma > 0 else ())
        return super().asks | own

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        theta = work.theta + work.aggregate
        sent = theta if work.shared is None else theta[work.shared]
        norm = float(torch.linalg.vector_norm(sent.double()))
        theta = theta * min(1.0, self.rho / max(norm, 1e-300))
        if self.sigma > 0 and not work.last:
            if work.generator is None:
                raise UsageError("crfl draws noise on the server; give ServerWork(..., generator=...)")
            # Drawn in float32 whatever the model is, so that precision does not change the draw.
            noise = torch.randn(len(theta), generator=work.generator, device=work.generator.device)
            theta = theta.add(noise.to(theta), alpha=self.sigma)
        return theta if work.shared is None else torch.where(work.shared, theta, work.theta), dict(work.state)
