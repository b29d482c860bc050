"""Label flipping (SPEC §3.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.registry import register

from .sight import own_rows


@register("label-flip", version=1)
@dataclass(frozen=True)
class LabelFlip(Attack):
    """The attackers train honestly on flipped labels, ``y → C-1-y``, and send what they get.

    Weak where the data are heterogeneous, since honest clients differ as much; each attacker sends its own vector.

    Reference: Allen-Zhu et al., Byzantine-Resilient Non-Convex SGD, ICLR 2021, arXiv 2012.14368 (the label-flipping
    attack of its experiments, there with 10 classes: ``y → 9-y``).

    >>> x, y = LabelFlip().poison(torch.zeros(3, 1), torch.tensor([0, 1, 9]), classes=10, generator=torch.Generator())
    >>> y
    tensor([9, 8, 0])
    """

    paper: ClassVar[str] = "Allen-Zhu et al., Byzantine-Resilient Non-Convex SGD, ICLR 2021, arXiv 2012.14368"
    spec: ClassVar[str] = "§3.7"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    forges: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = True

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return own_rows(view, self.name).clone()

    def poison(self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        del generator
        return x, classes - 1 - y
