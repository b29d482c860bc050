"""Random directions of inconspicuous length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows


@register("random", version=1)
@dataclass(frozen=True)
class Random(Attack):
    """Each attacker sends a random direction with the norm of its own message: ``c ‖x_i‖ u/‖u‖``, ``u ~ N(0, I)``.

    Unlike ``gaussian`` it passes every filter of norms, and in high dimension is orthogonal to everything: it dilutes
    an average but does not turn it around.

    Args:
        scale: factor ``c ≥ 0`` of the norm; 1 by default.

    >>> import robustfl
    >>> robustfl.forge("random", torch.tensor([[3.0, 4.0]]), f=2).norm(dim=1).round(decimals=3)
    tensor([5., 5.])
    """

    cost: ClassVar[str] = "fd draws"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"

    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="norm of what is sent, relative to the own message")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        own = own_rows(view, self.name)
        # float32 draws whatever the rows are: the same directions in every precision
        u = torch.randn(own.shape, generator=generator, device=generator.device).to(own)
        norm: Tensor = torch.linalg.vector_norm(own, dim=1, keepdim=True)
        length: Tensor = torch.linalg.vector_norm(u, dim=1, keepdim=True)
        return u * (self.scale * norm / length)
