"""Gaussian noise."""

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


@register("gaussian", version=1)
@dataclass(frozen=True)
class Gaussian(Attack):
    """The attackers send noise ``N(μ, σ²)``, drawn per coordinate and independently per attacker.

    Any rule that looks at distances drops it. The default σ is meant for gradients; on normalization statistics it
    is enormous, so choose ``sigma`` there.

    Args:
        mu: mean μ; 0 by default.
        sigma: standard deviation σ ≥ 0; 200 by default, as in the Krum paper (other benchmarks: 1 or 0.1).

    Reference: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    arXiv:1703.02757 (the Gaussian attack of its experiments).

    >>> import robustfl
    >>> robustfl.forge("gaussian", torch.zeros(4, 3), f=2, mu=1.5, sigma=0)
    tensor([[1.5000, 1.5000, 1.5000],
            [1.5000, 1.5000, 1.5000]])
    """

    paper: ClassVar[str] = "@blanchard2017machine"
    cost: ClassVar[str] = "fd draws"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    strength: ClassVar[str] = "sigma"

    mu: float = param(0.0, gt=-math.inf, lt=math.inf, doc="mean of every coordinate")
    sigma: float = param(200.0, ge=0.0, lt=math.inf, doc="standard deviation of every coordinate")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        shape = own_rows(view, self.name)
        drawn = torch.empty(shape.shape, dtype=shape.dtype, device=generator.device)
        return drawn.normal_(self.mu, self.sigma, generator=generator).to(shape.device)
