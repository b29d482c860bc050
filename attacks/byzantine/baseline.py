"""Attacks without an idea of the server: nothing, constants, random rows and Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, ColumnAttack, Knowledge, View
from robustfl.parameters import param
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
        return own_rows(view, self.name).clone()


class _Constant(ColumnAttack):
    cost: ClassVar[str] = "fd"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    value: ClassVar[float]

    def columns(self, view: View) -> Tensor:
        return torch.full_like(own_rows(view, self.name), self.value, memory_format=torch.contiguous_format)


@register("zero", version=1)
@dataclass(frozen=True)
class Zero(_Constant):
    """The attackers send zero vectors, as a client does that contributes nothing: ``x_i = 0``.

    Shrinks a plain mean by ``h/n`` and no more; rules that look at norms may still take it for an honest row.

    >>> import robustfl
    >>> robustfl.forge("zero", torch.ones(4, 3), f=1)
    tensor([[0., 0., 0.]])
    """

    value: ClassVar[float] = 0.0


@register("inf", version=1)
@dataclass(frozen=True)
class Inf(_Constant):
    """The attackers send vectors whose every entry is infinity: a test of the server's input policy.

    Harmless where non-finite rows are dropped before aggregation; fatal to any rule without that policy.

    >>> import robustfl
    >>> robustfl.forge("inf", torch.zeros(4, 3), f=1)
    tensor([[inf, inf, inf]])
    """

    value: ClassVar[float] = math.inf
    exempt: ClassVar[Mapping[str, str]] = {"finite": "to send infinity is the attack"}


@register("nan", version=1)
@dataclass(frozen=True)
class NaN(_Constant):
    """The attackers send vectors whose every entry is not-a-number: a test of the server's input policy.

    Harmless where non-finite rows are dropped before aggregation; fatal to any rule without that policy.

    >>> import robustfl
    >>> robustfl.forge("nan", torch.zeros(4, 3), f=1)
    tensor([[nan, nan, nan]])
    """

    value: ClassVar[float] = math.nan
    exempt: ClassVar[Mapping[str, str]] = {"finite": "to send not-a-number is the attack"}


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
