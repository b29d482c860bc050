"""A little is enough with the factor searched against the server's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import View
from robustfl.registry import register

from .alie import z_max
from .search import Found, SearchedAttack, farthest
from .sight import centre_and_spread, honest_rows


@register("opt-alie", version=2)
@dataclass(frozen=True)
class OptALIE(SearchedAttack):
    """The attackers send ``ḡ - ηs`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (ḡ - ηs)) - ḡ‖₂`` by a search within a budget: a narrow peak may be missed. Costs ``evals``
    aggregations a round. Where several η do equally well, the least. The paper's own ``z_max(n, f)`` is
    the factor of ``alie``.

    Args: those of every ``SearchedAttack``: how ``η`` is searched, and within which bounds.

    Reference: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS
    2019, arXiv:1902.06156 (the direction); Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning, NDSS 2021 (the factor fitted to a known rule); Allouah et
    al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772 (this
    attack, with a line search, in its experiments). ByzFL's Optimal-ALIE goes along ``+s``: with ``search=linear`` and
    ``eta_max=inf`` that is ``opt(alie(sign=1))``. Notes: ``s`` has ddof 1; ``scan`` is ours; η is bounded by
    ``eta_max``; a cell's rehearsals draw what the server is about to draw.

    >>> import robustfl, torch
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[0.0], [2.0], [4.0]])
    >>> robustfl.forge("opt-alie", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@baruch2019little"

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return {"z_max": z_max(n, f)}

    def found(self, view: View) -> Found:
        mean, std = centre_and_spread(honest_rows(view, self.name), 1)
        return farthest(view, self.name, mean, -std, self.options)
