"""Fall of empires with the factor searched against the server's rule (SPEC §3.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .search import Found, farthest, linear_search
from .sight import alike, centre, honest_rows


@register("opt-foe", version=2)
@dataclass(frozen=True)
class OptFOE(Attack):
    """The attackers send ``ḡ - ηḡ`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (1-η)ḡ) - ḡ‖₂`` by ``linear_search``, a heuristic: it may stop at a local maximum. Costs
    ``evals`` aggregations a round.

    Args:
        evals: evaluations of the server's rule, ≥ 1.
        start: first η, ≥ 0.
        delta: first step, > 0.
        ratio: shrinking of the step after the first failure, in (0, 1).
        eta_max: bound on η, > 0; reached against the mean.

    Reference: Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023,
    arXiv:2302.01772 (the search of its experiments); Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant
    SGD by Inner Product Manipulation, UAI 2019, arXiv:1903.03936 (the direction). Deviations: η is bounded by
    ``eta_max``.

    >>> import robustfl
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[1.0], [3.0]])
    >>> robustfl.forge("opt-foe", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = (
        "Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, Fixing by Mixing: A Recipe for Optimal Byzantine ML "
        "under Heterogeneity, AISTATS 2023, arXiv:2302.01772"
    )
    spec: ClassVar[str] = "§3.4"
    cost: ClassVar[str] = "evals aggregations per round; for rules on inner products h²d once and small ones"
    knowledge: ClassVar[Knowledge] = "defense"

    evals: int = param(20, ge=1, doc="evaluations of the server's rule")
    start: float = param(0.0, ge=0.0, lt=math.inf, doc="first η")
    delta: float = param(10.0, gt=0.0, lt=math.inf, doc="first step of η")
    ratio: float = param(0.8, gt=0.0, lt=1.0, doc="shrinking of the step after the first failure")
    eta_max: float = param(1e3, gt=0.0, doc="bound on η")

    def search(self, view: View) -> Found:
        """The factor, the distance it reaches and the vector to send."""
        mean = centre(honest_rows(view, self.name))
        search = partial(
            linear_search,
            evals=self.evals,
            start=self.start,
            delta=self.delta,
            ratio=self.ratio,
            eta_max=self.eta_max,
        )
        return farthest(view, self.name, mean, -mean, search)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return alike(self.search(view).vector, view.f)
