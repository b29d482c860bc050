"""FedMeta: first-order meta-learning between rounds, the trainer of FATMeta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.algorithms.fedavg import FedAvg
from robustfl.contracts import LocalWork
from robustfl.parameters import param
from robustfl.registry import register


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
