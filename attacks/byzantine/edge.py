"""The edge of the honest range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import ColumnAttack, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows


def edge(honest: Tensor, side: Tensor) -> Tensor:
    """Every coordinate's largest honest value ``[d]`` where ``side`` is positive, the smallest elsewhere."""
    return honest.amax(0).where(side > 0, honest.amin(0))


@register("edge", version=1)
@dataclass(frozen=True)
class Edge(ColumnAttack):
    """The attackers send every coordinate's largest honest value, so that no coordinate by itself is an outlier.

    ``ḡ + λ (e - ḡ)`` with ``e_j = max_i x_ij`` on side 1 and ``min_i x_ij`` on side -1. Rules that look at one
    coordinate at a time can tell such values from honest ones by no distance; the same side in every round adds up.

    Args:
        side: 1 (default), upwards in all coordinates, or -1.
        share: λ ≥ 0 of the way from the mean to the edge; 1.

    Reference: the simplest of attacks within the honest range, which that of Fang, Cao, Jia, Gong, Local Model
    Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security 2020, arXiv:1911.11815, just leaves, and
    against the sign of the honest mean, not to one side. The name is ours.

    >>> import robustfl, torch
    >>> robustfl.forge("edge", torch.tensor([[0.0, 5.0], [2.0, 1.0]]), f=1)
    tensor([[2., 5.]])
    """

    paper: ClassVar[str] = "after @fang2020local"
    cost: ClassVar[str] = "2hd: mean and extremes"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "share"

    side: int = param(1, ge=-1, le=1, doc="1: the largest honest values, -1: the smallest")
    share: float = param(1.0, ge=0.0, lt=math.inf, doc="share of the way from the honest mean to the edge")

    def __post_init__(self) -> None:
        parameters.check(self)
        if self.side == 0:
            raise UsageError("Edge: side=0 must be -1 or 1")

    def columns(self, view: View) -> Tensor:
        honest = honest_rows(view, self.name)
        return alike(
            centre(honest).lerp(edge(honest, torch.tensor(self.side, device=honest.device)), self.share), view.f
        )
