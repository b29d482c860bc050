"""A little is enough with the factor searched against the server's rule (SPEC §3.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .alie import z_max
from .search import Found, farthest, linear_search
from .sight import alike, centre_and_spread, honest_rows


@register("opt-alie", version=2)
@dataclass(frozen=True)
class OptALIE(Attack):
    """The attackers send ``ḡ - ηs`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (ḡ - ηs)) - ḡ‖₂`` by ``linear_search``, a heuristic: it may stop at a local maximum. Costs
    ``evals`` aggregations a round. The paper's own ``z_max(n, f)`` is the factor of ``alie``.

    Args:
        evals: evaluations of the server's rule, ≥ 1.
        start: first η, ≥ 0.
        delta: first step, > 0.
        ratio: shrinking of the step after the first failure, in (0, 1).
        eta_max: bound on η, > 0; reached against the mean.

    Reference: Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023,
    arXiv:2302.01772 (the search of its experiments); Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing
    Defenses For Distributed Learning, NeurIPS 2019, arXiv:1902.06156 (the direction, ddof 1). Deviations: η is bounded
    by ``eta_max``.

    >>> import robustfl
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[0.0], [2.0], [4.0]])
    >>> robustfl.forge("opt-alie", X, f=1, defense=mean, eta_max=5)
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

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return {"z_max": z_max(n, f)}

    def search(self, view: View) -> Found:
        """The factor, the distance it reaches and the vector to send."""
        mean, std = centre_and_spread(honest_rows(view, self.name), 1)
        search = partial(
            linear_search,
            evals=self.evals,
            start=self.start,
            delta=self.delta,
            ratio=self.ratio,
            eta_max=self.eta_max,
        )
        return farthest(view, self.name, mean, -std, search)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return alike(self.search(view).vector, view.f)
