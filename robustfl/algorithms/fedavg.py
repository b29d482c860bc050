"""Federated averaging."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.contracts import Algorithm, Asked, LocalWork
from robustfl.errors import UsageError
from robustfl.parameters import check, only_where, param
from robustfl.registry import register


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
        check(self)
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
        del theta, work
        return gradient

    @property
    def remembers(self) -> bool:
        return self.keep_momentum

    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        del lr
        return theta + aggregate
