"""FedAvg with another local objective or gradient: FedProx, MOON, FedSAM, FedMeta, SCAFFOLD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import Asked, Contrast, LocalWork, ServerWork
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


@register("moon", version=1)
@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with a contrastive term: the representation should be near the received model's and away from that of
    the client's previous local model,

    ``L = CE + μ · mean[-log(e^{s_g/T} / (e^{s_g/T} + e^{s_p/T}))]`` with cosines ``s_g``, ``s_p``. In a client's first
    round both models are the same and the term is the constant ``log 2``.

    Args:
        mu: μ ≥ 0; 1 here, 5 for CIFAR-10 in the source.
        temperature: T > 0.
        and those of ``fedavg`` but ``keep_momentum``.

    Reference: Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257, equations 2-3. The
    representation is what the model's last layer receives; both other models run in evaluation mode, with the
    statistics of normalization that the client received, where the source's previous model has its own.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0]])
    >>> round(float(Moon().term(z, z, z)), 4)  # log 2
    0.6931
    """

    paper: ClassVar[str] = "@li2021model"
    cost: ClassVar[str] = "three forwards per local step; d numbers each way; every client keeps its last model"
    keeps: ClassVar[str] = "their previous model"

    mu: float = param(1.0, ge=0.0, doc="weight of the contrastive term")
    temperature: float = param(0.5, gt=0.0, doc="T of the cosines")

    @property
    def remembers(self) -> bool:
        return self.mu > 0

    @property
    def asks(self) -> frozenset[Asked]:
        return super().asks | ({"contrast"} if self.mu > 0 else frozenset())

    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        message, _ = super().local(work)
        return message, work.theta + message if self.mu > 0 else None

    def gradient(self, theta: Tensor, work: LocalWork) -> Tensor:
        if self.mu == 0:
            return work.gradient(theta)
        assert work.memory is not None
        # A client that has never taken part has no previous model; then it is the received one.
        previous = torch.where(work.memory.any(1, keepdim=True), work.memory, work.theta)
        return work.gradient(theta, Contrast((work.theta, previous), self.term))

    def term(self, features: Tensor, received: Tensor, previous: Tensor) -> Tensor:
        """The contrastive term of each sample ``[b]`` from representations ``[b k]``."""
        near = F.cosine_similarity(features, received, dim=1) / self.temperature
        away = F.cosine_similarity(features, previous, dim=1) / self.temperature
        return self.mu * F.softplus(away - near)


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


@register("fedmeta", version=1)
@dataclass(frozen=True)
class FedMeta(FedAvg):
    """Local first-order MAML: from two batches ``θ' = θ - α g_1(θ)``, then ``θ ← θ - η g_2(θ')``.

    The outer rate η is the scenario's learning rate. With the objective ``at`` this is FATMeta. Normalization
    statistics see both batches and are not set back between them.

    Args:
        inner_lr: α > 0; 0.02 in Hong et al., with η = 0.001.
        and those of ``fedavg``; two batches make one step, an odd number of batches is rounded up.

    Reference: Finn, Abbeel, Levine, Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks, ICML 2017,
    arXiv:1703.03400 (first order), as used by Hong et al., Federated Robustness Propagation: Sharing Adversarial
    Robustness in Heterogeneous Federated Learning, AAAI 2023, arXiv:2106.10196.

    >>> FedMeta().steps(samples=70, batch=32)
    4
    """

    paper: ClassVar[str] = "@finn2017model"
    cost: ClassVar[str] = "two gradients per local step; d numbers each way"
    batches_per_step: ClassVar[int] = 2

    inner_lr: float = param(0.02, gt=0.0, doc="α, the inner step")

    def steps(self, samples: int, batch: int) -> int:
        return 2 * math.ceil(super().steps(samples, batch) / 2)

    def gradient(self, theta: Tensor, work: LocalWork) -> Tensor:
        return work.gradient(theta - self.inner_lr * work.gradient(theta))


@register("scaffold", version=1)
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Local steps corrected by the difference of the server's and the client's gradient estimate (option II):

    ``y ← y - η_l(g(y) - c_k + c)``; after τ steps ``c_k⁺ = c_k - c + (θ - y)/(τη_l)``; server
    ``θ ← θ + η_g F(y_k - θ)``, ``c ← c + |S|/N · F(c_k⁺ - c_k)``. With few participants the estimates are stale. The
    server computes every ``c_k⁺ - c_k`` from the received update, so an attacker has no second channel and the defense
    guards both sums.

    Args:
        server_lr: η_g > 0.
        and those of ``fedavg`` but ``keep_momentum``; with ``momentum`` the factor ``1/(τη_l)`` is wrong (a warning).

    Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    arXiv:1910.06378, Algorithm 1. Means are unweighted.

    >>> Scaffold().server_state(torch.zeros(2))
    {'variate': tensor([0., 0.])}
    """

    paper: ClassVar[str] = "@karimireddy2020scaffold"
    cost: ClassVar[str] = "the local steps; d numbers up, 2d down; every client keeps d numbers"
    keeps: ClassVar[str] = "their control variate"
    remembers: ClassVar[bool] = True

    server_lr: float = param(1.0, gt=0.0, doc="η_g, the server's step")
    weighting: str = param("uniform", choices=("uniform",), doc="client weights of the mean")

    @property
    def asks(self) -> frozenset[Asked]:
        return super().asks | {"aggregates"}

    def caution(self, steps: int) -> str:
        words = f"with momentum={self.momentum:g} the control variates are scaled wrongly (they assume plain SGD)"
        return super().caution(steps) or (f"scaffold: {words}" if self.momentum else "")

    def corrected(self, gradient: Tensor, theta: Tensor, work: LocalWork) -> Tensor:
        assert work.memory is not None
        return gradient - work.memory + work.server["variate"]

    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        message, _ = super().local(work)
        assert work.memory is not None
        kept = work.memory - work.server["variate"] - message / (work.steps * work.lr)
        return message, kept if work.shared is None else kept * work.shared

    def server_state(self, theta: Tensor) -> dict[str, Tensor]:
        return {"variate": torch.zeros_like(theta)}

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        assert work.again is not None

        def changes(messages: Tensor, state: Mapping[str, Tensor]) -> Tensor:
            """``c_k⁺ - c_k`` of the clients present, times their share of all."""
            scale = torch.tensor([1 / (tau * work.lr) for tau in work.steps], dtype=messages.dtype)
            moved = -state["variate"] - messages * scale.to(messages.device)[:, None]
            return moved * (len(messages) / work.clients)

        variate = work.state["variate"] + work.again(changes)
        return work.theta + work.aggregate * self.server_lr, {"variate": variate}
