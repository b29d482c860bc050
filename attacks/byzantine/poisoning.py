"""The common part of attackers that poison their own data and send what they learn from them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View

from .sight import own_rows


class Poisoning(Attack):
    """Attackers that train honestly on changed batches (``poison``): messages are what comes of it."""

    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    forges: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = True

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return own_rows(view, self.name).clone()
