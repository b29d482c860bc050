"""A drift: one side in all coordinates and rounds, as fast as the server's own rule lets the attackers go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .fang import edge
from .search import Climb, Found, Search, farthest
from .sight import alike, centre_and_spread, honest_rows, random_signs

SIDES = ("up", "down", "signs", "loss", "start")
LAYERS = ("all", "hidden", "weights", "last", "opposed", "weights-opposed")
# Evaluations of the server's rule in a round between two searches.
_NEAR = 6
# How the last layer drifts; and before it the matrices, the norms' scales, and other vectors.
_SHARES = {
    "hidden": (0.0, 1.0, 1.0, 1.0),
    "weights": (0.0, 1.0, 0.0, 0.0),
    "last": (1.0, 0.0, 0.0, 0.0),
    "opposed": (-1.0, 1.0, -1.0, 1.0),
    "weights-opposed": (-1.0, 1.0, 0.0, 0.0),
}


@register("opt-drift", version=2)
@dataclass(frozen=True)
class OptDrift(Attack):
    """The attackers move the server's result to one side, the same in all rounds, as far as its own rule lets them.

    ``x = ḡ + ηp`` with the ``p`` and ``η ≥ 0`` that maximise ``⟨F(H ∪ f × x) - ḡ, u⟩``, ``u = σ/‖σ‖`` for signs
    ``σ ∈ {-1, 0, 1}^d`` that never change. Three ``p`` are tried: a level step ``σ``, the honest
    spread ``σ ⊙ s``, and the way to the edge of the honest range on that side. Between these searches the best ``p``
    stays and its ``η`` follows the rounds, by a climb from the last one in units of the honest spread: that is
    cheaper than a search and, against rules that drop rows beyond an edge, goes nearer to the edge.

    With ``side=loss`` the side is that of the loss, of every round anew: ``u = -ḡ/‖ḡ‖``, along which the honest loss
    grows fastest, ``σ = sign(u)``, and ``p = -ḡ`` is tried, too. That is no drift, but the best reply in one step.
    ``side=start`` does the same against ``ḡ`` and all results so far, back to where training began; of statistics,
    which are no steps, against the sum of all that were merged.

    Attacks that look for the greatest distance in a round take back in the next one what they did; a drift adds up.
    Which side hurts depends on the model; under DSGD rows are gradients, so that ``up`` lowers the weights.

    Args:
        side: ``up`` (σ = 1, default), ``down`` (σ = -1), ``signs`` (σ drawn once), ``loss`` (against the honest mean)
            or ``start`` (against all that was learned).
        layers: the entries of updates that drift, the others are ``ḡ``: ``all`` (default), ``last`` (from the last
            weight matrix on), ``hidden`` (those before it) or ``weights`` (the matrices before it); with ``opposed``
            the last layer and the scales of norms (vectors named ``weight``) drift the other way, with
            ``weights-opposed`` the hidden matrices drift and the last layer the other way.
        evals: evaluations of the server's rule for each ``p`` in a search, ≥ 1; 16.
        every: rounds from one search to the next, ≥ 1; 10. The rounds between take at most 6 evaluations.
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
    cost: ClassVar[str] = "3 (loss, start: 4) evals aggregations in every tenth round, 6 in the others"
    knowledge: ClassVar[Knowledge] = "defense"

    side: str = param("up", choices=SIDES, doc="up, down, signs drawn once, loss (against the honest mean) or start")
    layers: str = param("all", choices=LAYERS, doc="the entries of updates that drift")
    evals: int = param(16, ge=1, doc="evaluations of the server's rule for each shape of the step")
    every: int = param(10, ge=1, doc="rounds from one search to the next")
    eta_max: float = param(1e3, gt=0.0, lt=math.inf, doc="bound on η")

    def forge(self, view: View, *, generator: torch.Generator) -> Forged:
        honest = honest_rows(view, self.name)
        mean, spread = centre_and_spread(honest, 1)
        state = dict(view.state)
        if self.side == "signs" and "signs" not in state:
            state["signs"] = random_signs(mean, generator)
        undone = self._undone(view, mean, state)
        level = torch.full_like(mean, -1.0 if self.side == "down" else 1.0) if undone is None else -undone.sign()
        signs = state.get("signs", level) * self._chosen(view, mean)
        steps = [signs, signs * spread, (edge(honest, signs) - mean) * signs.abs()]
        goal = signs
        if undone is not None:
            goal = signs * undone.abs()
            steps.append(goal)

        def best_of(search: Search | Climb, shapes: Sequence[int]) -> tuple[Found, int]:
            found = {i: farthest(view, self.name, mean, steps[i], search, along=goal) for i in shapes}
            shape = max(found, key=lambda i: found[i].distance)
            return found[shape], shape

        shape, spreads, age = state.get("best", torch.zeros(3)).tolist()
        if spreads and age < self.every:
            best, shape = best_of(Climb(spreads, _NEAR, self.eta_max), (int(shape),))
        else:
            best, shape = best_of(Search("scan", self.evals, eta_max=self.eta_max), range(len(steps)))
            age = 0
        state["best"] = torch.tensor([shape, best.spreads, age + 1], dtype=torch.float64)
        return Forged(alike(best.vector, view.f), state)

    def _undone(self, view: View, mean: Tensor, state: dict[str, Tensor]) -> Tensor | None:
        """What ``side`` works against, where that is a vector of the round: the honest mean, for ``start`` with all
        results so far."""
        if self.side == "start":
            nothing = torch.zeros_like(mean)
            state["so_far"] = state.get("so_far", nothing) + (nothing if view.previous is None else view.previous)
            return mean + state["so_far"]
        return mean if self.side == "loss" else None

    def _chosen(self, view: View, like: Tensor) -> Tensor:
        """The share of the side that every entry takes: 1, -1 where it drifts the other way, 0 where it stays."""
        chosen = torch.ones_like(like)
        if self.layers == "all" or view.channel == "statistics":
            return chosen
        last = max((i for i, shape in enumerate(view.tensors.values()) if len(shape) > 1), default=None)
        if last is None:
            raise UsageError(f"attack 'opt-drift': layers={self.layers!r} needs the model's tensors")
        of_last, of_matrices, of_scales, of_others = _SHARES[self.layers]
        start = 0
        for i, (name, shape) in enumerate(view.tensors.items()):
            stop = start + math.prod(shape)
            vectors = of_scales if name.endswith("weight") else of_others
            chosen[start:stop] = of_last if i >= last else of_matrices if len(shape) > 1 else vectors
            start = stop
        return chosen
