"""Fall of empires with the factor searched against the server's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import View
from robustfl.registry import register

from .search import Found, SearchedAttack, farthest
from .sight import centre, honest_rows


@register("opt-foe", version=2)
@dataclass(frozen=True)
class OptFOE(SearchedAttack):
    """The attackers send ``ḡ - ηḡ`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (1-η)ḡ) - ḡ‖₂`` by a search within a budget: a narrow peak may be missed. Costs ``evals``
    aggregations a round. Where several η do equally well, the least.

    Args: those of every ``SearchedAttack``: how ``η`` is searched, and within which bounds.

    Reference: Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI
    2019, arXiv:1903.03936 (the direction); Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning, NDSS 2021 (the factor fitted to a known rule); Allouah et
    al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772 (this
    attack, with a line search, in its experiments). ByzFL calls it Optimal-IPM: that is ``opt(ipm, search=linear,
    eta_max=inf)`` here, whose rows are ``-τḡ``; ours start at ``ḡ``, ``η = τ + 1``. Notes: ``scan`` is ours; η is
    bounded by ``eta_max``; a cell's rehearsals draw what the server is about to draw.

    >>> import robustfl, torch
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[1.0], [3.0]])
    >>> robustfl.forge("opt-foe", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@xie2019fall"

    def found(self, view: View) -> Found:
        mean = centre(honest_rows(view, self.name))
        return farthest(view, self.name, mean, -mean, self.options)
