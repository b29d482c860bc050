"""Cross-entropy, the plain objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Objective
from robustfl.registry import register


@register("ce", version=1)
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """The mean cross-entropy of the batch, ``mean(logsumexp(z) - z_y)``, for every client.

    On heterogeneous data it pushes down the logits of classes a client does not have.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629.

    >>> import torch
    >>> CrossEntropy().per_sample(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.5, 0.5]))
    tensor([0.6931])
    """

    paper: ClassVar[str] = "@mcmahan2017communication"
