"""Attackers that see only each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Forged, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows
from .wrapping import Wrapper


@register("partial", version=1)
@dataclass(frozen=True)
class Partial(Wrapper):
    """Any attack on the honest rows, with the attackers' own honest work in their place: ``ḡ, s, …`` of ``own [f d]``.

    What is left of an omniscient attack when attackers see no messages but theirs. Its estimates get worse with
    fewer attackers (one attacker knows no spread at all) and where clients differ.

    Args:
        attack: an omniscient attack that forges messages; ``alie`` by default.

    Reference: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS
    2019, arXiv:1902.06156 (its attackers estimate mean and deviation from their own workers).

    >>> from robustfl.contracts import View
    >>> view = View(n=10, f=2, own=torch.tensor([[1.0], [3.0]]))
    >>> Partial("sf").forge(view, generator=torch.Generator())
    tensor([[-2.],
            [-2.]])
    """

    paper: ClassVar[str] = "@baruch2019little"
    cost: ClassVar[str] = "that of the wrapped attack"
    knowledge: ClassVar[Knowledge] = "partial"
    needs_own: ClassVar[bool] = True

    attack: str = param("alie", doc="the omniscient attack that sees the attackers' rows only")

    def __post_init__(self) -> None:
        parameters.check(self)
        if self.inner.knowledge != "omniscient":
            raise UsageError(f"Partial: attack={self.attack!r} is {self.inner.knowledge}; it must be omniscient")
        self._adopt("poisons_data", "triggers")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        own = own_rows(view, self.name)
        return self.inner.forge(replace(view, honest=own).redacted(self.inner), generator=generator)
