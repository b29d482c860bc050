"""No attack: the clients counted as Byzantine behave honestly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.registry import register

from .sight import own_rows


@register("none", version=1)
@dataclass(frozen=True)
class NoAttack(Attack):
    """The attackers send what they honestly computed: the row every attacked row is compared with.

    It shows what a defense costs on heterogeneous data when nobody attacks.

    >>> from robustfl.contracts import View
    >>> view = View(n=3, f=1, own=torch.tensor([[1.0, 2.0]]))
    >>> NoAttack().forge(view, generator=torch.Generator())
    tensor([[1., 2.]])
    """

    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    forges: ClassVar[bool] = False
    cost: ClassVar[str] = "none"

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return own_rows(view, self.name).clone()
