"""Distributed SGD with worker momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Algorithm, Asked, LocalWork
from robustfl.parameters import param
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
        del samples, batch
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
