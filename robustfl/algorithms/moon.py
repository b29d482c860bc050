"""MOON: local models kept near the global one in representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import Asked, Contrast, LocalWork
from robustfl.parameters import param
from robustfl.registry import register


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
