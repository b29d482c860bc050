"""Sign flipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl import parameters
from robustfl.contracts import ColumnAttack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows, own_rows


@register("sf", version=1)
@dataclass(frozen=True)
class SignFlip(ColumnAttack):
    """The attackers send the opposite of an honest message: ``-ḡ``, or each minus its own vector.

    Breaks plain averaging once ``f/n`` is large; as far from the honest rows as they are from 0, so rules that look
    at distances find it easily.

    Args:
        mode: ``mean`` (minus the honest mean, default) or ``own`` (blind: minus the attacker's own vector).

    Reference: Allen-Zhu et al., Byzantine-Resilient Non-Convex Stochastic Gradient Descent, ICLR 2021, arXiv:2012.14368
    (the sign-flipping attack of its experiments).

    >>> import robustfl, torch
    >>> robustfl.forge("sf", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), f=1)
    tensor([[-2., -3.]])
    """

    paper: ClassVar[str] = "@allenzhu2021byzantine"
    cost: ClassVar[str] = "fd, or hd for the shared mean"
    knowledge: ClassVar[Knowledge] = "omniscient"

    mode: str = param("mean", choices=("mean", "own"), doc="what is flipped: the honest mean or the own vector")

    def __post_init__(self) -> None:
        parameters.check(self)
        if self.mode == "own":  # then it needs no sight of the honest rows, and the engine hands over none
            object.__setattr__(self, "knowledge", "blind")
            object.__setattr__(self, "needs_own", True)

    def columns(self, view: View) -> Tensor:
        if self.mode == "own":
            return -own_rows(view, self.name)
        return alike(centre(honest_rows(view, self.name)).neg_(), view.f)
