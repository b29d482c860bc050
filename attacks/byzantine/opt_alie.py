"""A little is enough with the factor searched against the server's rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .alie import z_max
from .search import KINDS, Found, Search, farthest
from .sight import alike, centre_and_spread, honest_rows


@register("opt-alie", version=2)
@dataclass(frozen=True)
class OptALIE(Attack):
    """The attackers send ``ḡ - ηs`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (ḡ - ηs)) - ḡ‖₂`` by a search within a budget: a narrow peak may be missed. Costs ``evals``
    aggregations a round. Where several η do equally well, the least. The paper's own ``z_max(n, f)`` is
    the factor of ``alie``.

    Args:
        search: ``scan`` (default; at least 0.97 of the greatest distance against every rule in tests against a fine
            grid), ``linear`` (ByzFL's, which looks to the right of its best η only and reached 0.05 to 1) or ``golden``
            (golden section, for distances with one maximum).
        evals: evaluations of the server's rule, ≥ 1; None (default) for 40, for the other two 20.
        start: least η, ≥ 0.
        delta: first step of the linear search, > 0.
        ratio: shrinking of its step after the first failure, in (0, 1).
        eta_max: bound on η, > 0; reached against the mean; inf only for the linear search.

    Reference: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS
    2019, arXiv:1902.06156 (the direction); Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning, NDSS 2021 (the factor fitted to a known rule); Allouah et
    al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772 (this
    attack, with a line search, in its experiments). ByzFL's Optimal-ALIE goes along ``+s``: with ``search=linear`` and
    ``eta_max=inf`` that is ``opt(alie(sign=1))``. Notes: ``s`` has ddof 1; ``scan`` is ours; η is bounded by
    ``eta_max``.

    >>> import robustfl
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[0.0], [2.0], [4.0]])
    >>> robustfl.forge("opt-alie", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@baruch2019little"
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

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return {"z_max": z_max(n, f)}

    def found(self, view: View) -> Found:
        """The factor, the distance it reaches and the vector to send."""
        mean, std = centre_and_spread(honest_rows(view, self.name), 1)
        return farthest(view, self.name, mean, -std, self._search)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return alike(self.found(view).vector, view.f)
