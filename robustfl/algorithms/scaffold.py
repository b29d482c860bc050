"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import Asked, LocalWork, ServerWork
from robustfl.parameters import param
from robustfl.registry import register


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
        del theta
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
