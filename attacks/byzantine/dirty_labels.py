"""Random labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.parameters import param
from robustfl.registry import register

from .poisoning import Poisoning, check_labels


@register("dirty-labels", version=1)
@dataclass(frozen=True)
class DirtyLabels(Poisoning):
    """The attackers train honestly on random labels: each becomes, with probability ``ρ``, uniform over all classes.

    ``y ~ U{0, …, C-1}``, drawn anew in every batch, so there is nothing to memorise: the update pulls towards equal
    outputs for all classes. Milder than ``label-flip``, whose labels are wrong in a consistent way.

    Args:
        fraction: probability ``ρ`` in (0, 1]; 1 by default.

    Reference: Zhang et al., Understanding Deep Learning Requires Rethinking Generalization, ICLR 2017, arXiv:1611.03530
    (its random and partially corrupted labels). Deviations: drawn anew in every batch, not once.

    >>> x, y = torch.zeros(4, 1), torch.tensor([7, 7, 7, 7])
    >>> bool((DirtyLabels().poison(x, y, classes=8, generator=torch.Generator().manual_seed(0))[1] == y).all())
    False
    """

    paper: ClassVar[str] = "@zhang2017understanding"
    cost: ClassVar[str] = "none worth mention"

    fraction: float = param(1.0, gt=0.0, le=1.0, doc="probability that a label is replaced")

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        del attacker, round
        check_labels(y, classes, self)
        on = generator.device
        replaced = torch.rand(y.shape, generator=generator, device=on) < self.fraction
        drawn = torch.randint(0, classes, y.shape, generator=generator, device=on)
        return x, torch.where(replaced.to(y.device), drawn.to(y), y)
