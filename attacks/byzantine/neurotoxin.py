"""Neurotoxin: a backdoor in coordinates that honest clients leave alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows
from .wrapping import Wrapper


@register("neurotoxin", version=1)
@dataclass(frozen=True)
class Neurotoxin(Wrapper):
    """The attackers train on poisoned data and send nothing in the coordinates that the others move most.

    ``x_ij ← 0`` where ``|F^{t-1}_j|`` is among the ``⌈ρd⌉`` largest entries of the last aggregate, which stands for
    what honest clients will do next. The backdoor then lives where later rounds do not overwrite it. Coordinates
    that everybody moves leave no room; statistics are sent as they are, and so is the first message.

    Args:
        attack: the data poisoning: ``badnets`` (default), ``dba``, ``label-flip(source=1, target=7)``, …
        ratio: share ``ρ`` of the coordinates in (0, 1) that are left out; 0.05.
        scale: factor ≥ 0 of what remains; 1.

    Reference: Zhang et al., Neurotoxin: Durable Backdoors in Federated Learning, ICML 2022, arXiv:2206.10341 (its
    Algorithm 1). Deviations: the message is projected once, not every local step (with one step it is the same).

    >>> from robustfl.contracts import View
    >>> view = View(n=4, f=1, own=torch.tensor([[1.0, 2.0, 3.0]]), previous=torch.tensor([0.0, -9.0, 1.0]))
    >>> Neurotoxin(ratio=0.3).forge(view, generator=torch.Generator())
    tensor([[1., 0., 3.]])
    """

    paper: ClassVar[str] = "@zhang2022neurotoxin"
    cost: ClassVar[str] = "fd and a selection of the smallest of d entries besides the data poisoning"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    poisons_data: ClassVar[bool] = True
    leaves_statistics: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"

    attack: str = param("badnets", doc="the data poisoning whose result is projected")
    ratio: float = param(0.05, gt=0.0, lt=1.0, doc="share of the coordinates that are left out")
    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="factor of what remains")

    def __post_init__(self) -> None:
        parameters.check(self)
        self._adopt_poison()

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        own = own_rows(view, self.name)
        if view.channel == "statistics" or not self.on(view.round):
            return own.clone()
        rows = own * self.scale
        if view.previous is not None:
            count = math.ceil(self.ratio * len(view.previous) - 1e-9)
            rows[:, view.previous.abs().topk(count).indices] = 0.0
        return rows
