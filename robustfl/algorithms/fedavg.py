"""Distributed SGD with worker momentum, federated averaging, and FedNova."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Algorithm, Asked, LocalWork, ServerWork
from robustfl.errors import UsageError
from robustfl.parameters import only_where, param
from robustfl.registry import register


@register("dsgd", version=1)
@dataclass(frozen=True)
class DSGD(Algorithm):
    """One batch per client and round: ``m_k ← β m_k + (1-β)(g_k + wθ)``, server ``θ ← θ - η F(m_1..m_n)``.

    The message is the momentum, so a defense sees low-variance vectors; with ``momentum=0`` it is the gradient.
    Breaks down for large ``momentum`` and few rounds, since ``m`` starts at 0 and is not bias-corrected. SGD that adds
    the gradient whole, ``m ← βm + g``, is this at the learning rate ``η/(1-β)``.

    Args:
        momentum: β of the workers, in [0, 1); 0.9 by default, 0.99 in the FBN paper's Table 2.
        weight_decay: w, L2 coefficient in every gradient, ≥ 0; on all trainable entries, as SGD's own usually is.
        replacement: draw every batch with replacement from all of the client's samples.

    Reference: Farhadkhani et al., Byzantine Machine Learning Made Easy by Resilient Averaging of Momentums, ICML 2022,
    arXiv:2205.12173, Algorithm 1.

    >>> DSGD(momentum=0.99).remembers
    True
    """

    paper: ClassVar[str] = "@farhadkhani2022byzantine"
    cost: ClassVar[str] = "1 gradient per client and round; d numbers each way"

    momentum: float = param(0.9, ge=0.0, lt=1.0, doc="worker momentum β; messages are (1-β)-weighted averages")
    weight_decay: float = param(0.0, ge=0.0, doc="L2 coefficient in the gradient")
    replacement: bool = param(False, doc="draw batches with replacement")

    @property
    def asks(self) -> frozenset[Asked]:
        return frozenset({"one_batch", "replacement"} if self.replacement else {"one_batch"})

    def steps(self, samples: int, batch: int) -> int:
        return 1

    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        gradient = self.gradient(work)
        if self.weight_decay:
            gradient.add_(work.theta, alpha=self.weight_decay)
        if self.momentum == 0.0 or work.memory is None:
            return gradient * (1.0 - self.momentum) if self.momentum else gradient, None
        message = torch.lerp(work.memory, gradient, 1.0 - self.momentum, out=gradient)
        return message, message

    def gradient(self, work: LocalWork) -> Tensor:
        """The gradients ``[n d]`` at the common model; algorithms built on this one take others."""
        return work.gradient(work.theta)

    @property
    def remembers(self) -> bool:
        return self.momentum > 0.0

    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        return theta.sub(aggregate, alpha=lr)


@register("fedavg", version=1)
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD from the global model: ``θ ← θ + F(θ_1-θ, ..)``, weights ``p_k = n_k / Σ_{j∈S} n_j`` for the mean.

    Clients drift apart with many local steps on heterogeneous data. Robust rules ignore the sample weights.

    Args:
        epochs: local passes over the client's data, ≥ 1; only without ``local_steps``.
        local_steps: exact number of local batches, or None.
        momentum: SGD momentum inside the client, in [0, 1); starts anew every round unless ``keep_momentum``, so
            that one local step does not feel it (a warning).
        keep_momentum: keep the buffer between rounds (FixBN's momentum variant).
        weight_decay: L2 coefficient added to the gradient, ≥ 0.
        clip_norm: bound on the norm of every gradient, before weight decay is added, or None.
        weighting: ``samples`` or ``uniform``.
        replacement: draw every batch with replacement from all of the client's samples, always full, instead of
            walking through them in a new order every epoch.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629, Algorithm 1.

    >>> FedAvg(epochs=2).steps(samples=70, batch=32)
    6
    """

    paper: ClassVar[str] = "@mcmahan2017communication"
    cost: ClassVar[str] = "the local steps; d numbers each way"
    batches_per_step: ClassVar[int] = 1
    proximal: ClassVar[str] = ""
    """The parameter of a pull towards the received model, which a first step from there does not feel."""
    keeps: ClassVar[str] = ""
    """What clients keep between rounds instead of a momentum."""

    epochs: int = param(1, ge=1, doc="local passes over the data")
    local_steps: int | None = param(None, ge=1, doc="exact number of local batches instead of epochs")
    momentum: float = param(0.0, ge=0.0, lt=1.0, doc="client SGD momentum")
    keep_momentum: bool = param(False, doc="keep the client momentum between rounds")
    weight_decay: float = param(0.0, ge=0.0, doc="L2 coefficient in the local gradient")
    clip_norm: float | None = param(None, gt=0.0, doc="bound on the local gradient's norm")
    weighting: str = param("samples", choices=("samples", "uniform"), doc="client weights of the mean")
    replacement: bool = param(False, doc="draw batches with replacement")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.local_steps is None, "local_steps=None", "epochs")
        if self.keep_momentum and self.keeps:
            raise UsageError(f"{type(self).__name__}: clients keep {self.keeps} between rounds, not a momentum")
        if self.keep_momentum and self.momentum == 0.0:
            raise UsageError(f"{type(self).__name__}: keep_momentum=True needs momentum > 0")

    @property
    def weighted(self) -> bool:
        return self.weighting == "samples"

    @property
    def asks(self) -> frozenset[Asked]:
        return frozenset({"replacement"} if self.replacement else ())

    def steps(self, samples: int, batch: int) -> int:
        if self.local_steps is not None:
            return self.local_steps
        return self.epochs * math.ceil(samples / min(batch, samples))

    def caution(self, steps: int) -> str:
        names = [self.proximal, "" if self.keep_momentum else "momentum"] if steps <= self.batches_per_step else []
        idle = ", ".join(f"{name}={getattr(self, name):g}" for name in names if name and getattr(self, name))
        return f"{self.name}: {idle} changes nothing, since every client takes one local step a round" if idle else ""

    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        theta = work.theta
        buffer = work.memory.clone() if self.keep_momentum and work.memory is not None else None
        for _ in range(work.steps // self.batches_per_step):
            gradient = self.bounded(self.corrected(self.gradient(theta, work), theta, work))
            if self.weight_decay:
                gradient = gradient.add(theta, alpha=self.weight_decay)
            if self.momentum:
                buffer = gradient.clone() if buffer is None else buffer.mul_(self.momentum).add_(gradient)
                gradient = buffer
            theta = theta.sub(gradient, alpha=work.lr) if theta is work.theta else theta.sub_(gradient, alpha=work.lr)
        return theta.sub_(work.theta), buffer if self.keep_momentum else None

    def gradient(self, theta: Tensor, work: LocalWork) -> Tensor:
        """The gradients ``[n d]`` of one local step; algorithms built on this one take it elsewhere."""
        return work.gradient(theta)

    def bounded(self, gradient: Tensor) -> Tensor:
        """The gradient of a batch, shortened to ``clip_norm``."""
        if self.clip_norm is None:
            return gradient
        norm: Tensor = gradient.norm(dim=-1, keepdim=True)
        return gradient * (self.clip_norm / norm.clamp(min=self.clip_norm))

    def corrected(self, gradient: Tensor, theta: Tensor, work: LocalWork) -> Tensor:
        """The gradient with what an algorithm built on this one adds to it."""
        return gradient

    @property
    def remembers(self) -> bool:
        return self.keep_momentum

    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        return theta + aggregate


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
