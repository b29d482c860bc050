"""Multiples of the honest mean or of own rows: Fall of Empires and sign flips."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.contracts import ColumnAttack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows, own_rows


@register("foe", version=1)
@dataclass(frozen=True)
class FOE(ColumnAttack):
    """The attackers send ``ḡ + η(-ḡ) = (1-η)ḡ``; with ``τ = η-1`` this is the strict form ``-τḡ`` (see ``ipm``).

    Makes the inner product of aggregate and honest mean negative where a rule lets enough of it pass. For ``η ≤ 1``
    it does no harm to a direction; ``η = 2`` is sign flipping.

    Args:
        eta: factor η ≥ 0. 3 by default: ``τ = 2``, which turns the plain mean around once ``f > n/3`` and, unlike
            ``η = 2``, is not sign flipping again; 1.1 is the small variant (``τ = 0.1``) against distance-based rules.

    Reference: Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI
    2019, arXiv:1903.03936 (its attack is ``-ε ḡ``); the origin at ``ḡ`` is that of Allouah et al., Fixing by Mixing: A
    Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772.

    >>> import robustfl, torch
    >>> robustfl.forge("foe", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), f=1, eta=3)
    tensor([[-4., -6.]])
    """

    paper: ClassVar[str] = "@xie2019fall"
    cost: ClassVar[str] = "hd: the mean"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "eta"

    eta: float = param(
        3.0, ge=0.0, lt=math.inf, doc="factor η of (1-η)ḡ; 2 is sign flipping, 1.1 the paper's small variant"
    )

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return {} if self.eta else {"eta": 0.0}  # says that the attackers send the honest mean

    def columns(self, view: View) -> Tensor:
        return alike(centre(honest_rows(view, self.name)).mul_(1.0 - self.eta), view.f)


@register("ipm", version=1)
@dataclass(frozen=True)
class IPM(ColumnAttack):
    """The attackers send ``-τḡ``.

    A small τ hides among honest rows whose spread exceeds ``(1+τ)‖ḡ‖``; a plain mean only slows down while
    ``τ f < h``.

    Args:
        tau: factor τ ≥ 0. 0.1 by default, the paper's small ε; other benchmarks use 2 (that is ``foe(eta=3)``).

    Reference: Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI
    2019, arXiv:1903.03936 (τ is its ε). ByzFL's Optimal-IPM, which searches τ, is
    ``opt(ipm, search=linear, eta_max=inf)``.

    >>> import robustfl, torch
    >>> robustfl.forge("ipm", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), f=1, tau=2)
    tensor([[-4., -6.]])
    """

    paper: ClassVar[str] = "@xie2019fall"
    cost: ClassVar[str] = "hd: the mean"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "tau"

    tau: float = param(0.1, ge=0.0, lt=math.inf, doc="factor τ of -τḡ")

    def columns(self, view: View) -> Tensor:
        return alike(centre(honest_rows(view, self.name)).mul_(-self.tau), view.f)


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
        super().__post_init__()
        if self.mode == "own":  # then it needs no sight of the honest rows, and the engine hands over none
            object.__setattr__(self, "knowledge", "blind")
            object.__setattr__(self, "needs_own", True)

    def columns(self, view: View) -> Tensor:
        if self.mode == "own":
            return -own_rows(view, self.name)
        return alike(centre(honest_rows(view, self.name)).neg_(), view.f)
