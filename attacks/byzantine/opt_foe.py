"""Fall of empires with the factor searched against the server's rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .search import KINDS, Found, Search, farthest
from .sight import alike, centre, honest_rows


@register("opt-foe", version=2)
@dataclass(frozen=True)
class OptFOE(Attack):
    """The attackers send ``ḡ - ηḡ`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (1-η)ḡ) - ḡ‖₂`` by a search within a budget: a narrow peak may be missed. Costs ``evals``
    aggregations a round. Where several η do equally well, the least.

    Args:
        search: ``scan`` (default; at least 0.97 of the greatest distance against every rule in tests against a fine
            grid), ``linear`` (ByzFL's, which looks to the right of its best η only and reached 0.05 to 1) or ``golden``
            (golden section, for distances with one maximum).
        evals: evaluations of the server's rule, ≥ 1; None (default) for 40, for the other two 20.
        start: least η, ≥ 0.
        delta: first step of the linear search, > 0.
        ratio: shrinking of its step after the first failure, in (0, 1).
        eta_max: bound on η, > 0; reached against the mean; inf only for the linear search.

    Reference: Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI
    2019, arXiv:1903.03936 (the direction); Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning, NDSS 2021 (the factor fitted to a known rule); Allouah et
    al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772 (this
    attack, with a line search, in its experiments). ByzFL calls it Optimal-IPM: that is ``opt(ipm, search=linear,
    eta_max=inf)`` here, whose rows are ``-τḡ``; ours start at ``ḡ``, ``η = τ + 1``. Notes: ``scan`` is ours; η is
    bounded by ``eta_max``.

    >>> import robustfl
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[1.0], [3.0]])
    >>> robustfl.forge("opt-foe", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@xie2019fall"
    cost: ClassVar[str] = "evals aggregations per round; for rules on inner products h²d once and small ones"
    knowledge: ClassVar[Knowledge] = "defense"

    search: str = param("scan", choices=KINDS, doc="scan, ByzFL's linear search, or golden section")
    evals: int | None = param(None, ge=1, doc="evaluations of the server's rule; None: 40 for scan, 20 for the others")
    start: float = param(0.0, ge=0.0, lt=math.inf, doc="least η")
    delta: float = param(10.0, gt=0.0, lt=math.inf, doc="first step of the linear search")
    ratio: float = param(0.8, gt=0.0, lt=1.0, doc="shrinking of its step after the first failure")
    eta_max: float = param(1e3, gt=0.0, doc="bound on η; inf only for the linear search")

    def __post_init__(self) -> None:
        parameters.check(self)
        self._search.check(type(self).__name__)

    @property
    def _search(self) -> Search:
        return Search(self.search, self.evals, self.start, self.delta, self.ratio, self.eta_max)

    def found(self, view: View) -> Found:
        """The factor, the distance it reaches and the vector to send."""
        mean = centre(honest_rows(view, self.name))
        return farthest(view, self.name, mean, -mean, self._search)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return alike(self.found(view).vector, view.f)
