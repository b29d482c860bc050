"""A drift: one side in all coordinates and rounds, as fast as the server's own rule lets the attackers go."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .edge import edge
from .search import Search, farthest
from .sight import alike, centre_and_spread, honest_rows, random_signs

SIDES = ("up", "down", "signs")
LAYERS = ("all", "hidden", "weights", "last", "opposed", "weights-opposed")
# How the last layer drifts, the matrices and the vectors before it.
_SHARES = {
    "hidden": (0.0, 1.0, 1.0),
    "weights": (0.0, 1.0, 0.0),
    "last": (1.0, 0.0, 0.0),
    "opposed": (-1.0, 1.0, 1.0),
    "weights-opposed": (-1.0, 1.0, 0.0),
}


@register("opt-drift", version=1)
@dataclass(frozen=True)
class OptDrift(Attack):
    """The attackers move the server's result to one side, the same in all rounds, as far as its own rule lets them.

    ``x = ḡ + ηp`` with the ``p`` and ``η ≥ 0`` that maximise ``⟨F(H ∪ f × x) - ḡ, u⟩``, ``u = σ/‖σ‖`` for signs
    ``σ ∈ {-1, 0, 1}^d`` that never change. Three ``p`` are tried: a level step ``σ``, the honest
    spread ``σ ⊙ s``, and the way to the edge of the honest range on that side.

    Attacks that look for the greatest distance in a round take back in the next one what they did; a drift adds up.
    Which side hurts depends on the model; under DSGD rows are gradients, so that ``up`` lowers the weights.

    Args:
        side: ``up`` (σ = 1, default), ``down`` (σ = -1), or ``signs`` (σ drawn once).
        layers: the entries of updates that drift, the others are ``ḡ``: ``all`` (default), ``last`` (from the last
            weight matrix on), ``hidden`` (those before it) or ``weights`` (the matrices before it); with ``opposed``
            and ``weights-opposed`` the last layer drifts the other way.
        evals: evaluations of the server's rule for each ``p``, ≥ 1; 16.
        eta_max: bound on η, > 0, finite; reached against the mean.

    Reference: ours, after Xie, Fang, Gong, Model Poisoning Attacks to Federated Learning via Multi-Round Consistency,
    CVPR 2025, arXiv:2404.15611 (one direction in all rounds, there without looking at the server) and Shejwalkar,
    Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning, NDSS
    2021 (the strength fitted to a known rule). On statistics ``F`` is the norm's merge, and moves count from the merge
    of the honest rows.

    >>> import robustfl, torch
    >>> X = torch.tensor([[0.0], [2.0], [4.0]])
    >>> robustfl.forge("opt-drift", X, f=1, defense=robustfl.defense("trimmed-mean"), side="down") <= 0.0
    tensor([[True]])
    """

    paper: ClassVar[str] = "after @xie2025model; after @shejwalkar2021manipulating"
    cost: ClassVar[str] = "3 evals aggregations per round"
    knowledge: ClassVar[Knowledge] = "defense"

    side: str = param("up", choices=SIDES, doc="up, down, or signs drawn once and kept")
    layers: str = param("all", choices=LAYERS, doc="the entries of updates that drift")
    evals: int = param(16, ge=1, doc="evaluations of the server's rule for each shape of the step")
    eta_max: float = param(1e3, gt=0.0, lt=math.inf, doc="bound on η")

    def __post_init__(self) -> None:
        parameters.check(self)

    def forge(self, view: View, *, generator: torch.Generator) -> Forged:
        honest = honest_rows(view, self.name)
        mean, spread = centre_and_spread(honest, 1)
        state = dict(view.state)
        if self.side == "signs" and not state:
            state["signs"] = random_signs(mean, generator)
        signs = state["signs"] if state else torch.full_like(mean, -1.0 if self.side == "down" else 1.0)
        signs = signs * self._chosen(view, signs)
        search = Search("scan", self.evals, eta_max=self.eta_max)
        steps = signs, signs * spread, (edge(honest, signs) - mean) * signs.abs()
        found = [farthest(view, self.name, mean, step, search, along=signs) for step in steps]
        best = max(found, key=lambda one: one.distance)
        return Forged(alike(best.vector, view.f), state)

    def _chosen(self, view: View, like: Tensor) -> Tensor:
        """The share of the side that every entry takes: 1, -1 where it drifts the other way, 0 where it stays."""
        chosen = torch.ones_like(like)
        if self.layers == "all" or view.channel == "statistics":
            return chosen
        matrices = [i for i, shape in enumerate(view.shapes) if len(shape) > 1]
        if not matrices:
            raise UsageError(f"attack 'opt-drift': layers={self.layers!r} needs the shapes of the model's layers")
        last, hidden, vectors = _SHARES[self.layers]
        start = 0
        for i, shape in enumerate(view.shapes):
            size = math.prod(shape)
            share = last if i >= matrices[-1] else hidden if i in matrices else vectors
            chosen[start : start + size] = share
            start += size
        return chosen
