"""Differential privacy: of clients, whose examples are clipped (DP-SGD), and of the model (CRFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import DSGD, FedAvg
from robustfl.contracts import Algorithm, Asked, LocalWork, ServerWork
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register


@dataclass(frozen=True)
class PrivateClients(Algorithm):
    """The part that algorithms with private gradients share; it stands before the algorithm that it changes."""

    clip_norm: float = param(1.0, gt=0.0, doc="C, bound on the norm of every example's gradient")
    noise_multiplier: float = param(1.0, ge=0.0, doc="σ, standard deviation of the noise, in C")

    @property
    def asks(self) -> frozenset[Asked]:
        own: frozenset[Asked] = frozenset({"examples"})
        return super().asks | own

    def private(self, at: Tensor, work: LocalWork) -> Tensor:
        """The private gradients ``[n d]`` of the next batches; raises ``UsageError`` where nobody gives any."""
        if work.private is None:
            raise UsageError(f"{self.name} takes gradients of single examples; give LocalWork(..., private=...)")
        return work.private(at, self.clip_norm, self.noise_multiplier)


@register("dp-dsgd", version=1)
@dataclass(frozen=True)
class PrivateDSGD(PrivateClients, DSGD):
    """DSGD whose clients clip the gradient of every example and add noise before their momentum sees it.

        g_k = 1/b Σ_{i ∈ B_k} ∇ℓ_i min(1, C / ‖∇ℓ_i‖) + N(0, (σC/b)² I),   m_k ← β m_k + (1-β)(g_k + wθ)

    The noise has the norm ``σC√d/b`` and does not vanish where gradients do; rules that look for outliers among ``n``
    noisy rows find less, the more so the larger the model is. Every example needs a gradient of its own, so norms that
    mix the examples of a batch are refused.

    Args:
        clip_norm: C > 0, bound on the norm of every example's gradient; 1.
        noise_multiplier: σ ≥ 0, standard deviation of the noise on the sum of clipped gradients, in ``C``; 1.
        and those of ``dsgd``.

    Reference: Allouah et al., On the Privacy-Robustness-Utility Trilemma in Distributed Learning, ICML 2023,
    arXiv:2302.04787 (its clients, beside a robust rule), with the noise in the units of Abadi et al., Deep Learning
    with Differential Privacy, CCS 2016, arXiv:1607.00133, Algorithm 1. Deviations: batches are those of ``dsgd``, of
    equal size in every round, where the analysis of the latter draws every example independently; no ε is computed.

    >>> PrivateDSGD(noise_multiplier=0.5).asks == {"one_batch", "examples"}
    True
    """

    paper: ClassVar[str] = "@allouah2023privacy"
    cost: ClassVar[str] = "a gradient of every example per client and round; d numbers each way; d draws per client"

    def gradient(self, work: LocalWork) -> Tensor:
        return self.private(work.theta, work)


@register("local-dp", version=1)
@dataclass(frozen=True)
class LocalDP(PrivateClients, FedAvg):
    """FedAvg whose clients take private local steps: the gradient of every example is clipped, and noise is added.

        g = 1/b Σ_{i ∈ B} ∇ℓ_i min(1, C / ‖∇ℓ_i‖) + N(0, (σC/b)² I),   θ_k ← θ_k - η (g + wθ_k)

    Against backdoors it works by the noise of honest clients, too; attackers who poison data take the same steps here,
    and those who forge messages need not. Small batches and many steps are noisy; every example needs a gradient of its
    own, so norms that mix the examples of a batch are refused.

    Args:
        clip_norm: C > 0, bound on the norm of every example's gradient (of ``fedavg``: of a batch's); 1.
        noise_multiplier: σ ≥ 0, standard deviation of the noise on the sum of clipped gradients, in ``C``; 1.
        and those of ``fedavg``.

    Reference: Naseri, Hayes, De Cristofaro, Local and Central Differential Privacy for Robustness and Privacy in
    Federated Learning, NDSS 2022, arXiv:2009.03561 (local DP: its clients run DP-SGD). Deviations: batches are those of
    ``fedavg``; no ε is computed.

    >>> LocalDP(epochs=2).steps(samples=70, batch=32)
    6
    """

    paper: ClassVar[str] = "@naseri2022local"
    cost: ClassVar[str] = "a gradient of every example in the local steps; d numbers each way; d draws per local step"

    def gradient(self, theta: Tensor, work: LocalWork) -> Tensor:
        return self.private(theta, work)

    def bounded(self, gradient: Tensor) -> Tensor:
        return gradient


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
