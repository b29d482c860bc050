"""A drift: one side in all coordinates and rounds, as fast as the server's own rule lets the attackers go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .edge import edge
from .search import Search, scales
from .sight import alike, centre_and_spread, honest_rows

SIDES = ("up", "down", "signs")
LAYERS = ("all", "hidden", "last")


@register("opt-drift", version=1)
@dataclass(frozen=True)
class OptDrift(Attack):
    """The attackers move the server's result to one side, the same in all rounds, as far as its own rule lets them.

    ``x = ḡ + ηp`` with the ``p`` and ``η ≥ 0`` that maximise ``⟨F(H ∪ f × x) - ḡ, u⟩``, ``u = σ/‖σ‖`` for signs
    ``σ ∈ {-1, 1}^d`` that never change (0 outside ``layers``). Three ``p`` are tried: a level step ``σ``, the honest
    spread ``σ ⊙ s``, and the way to the edge of the honest range on that side.

    Attacks that look for the greatest distance in a round take back in the next one what they did; a drift adds up.
    Which side hurts depends on the model: weights pulled down under naive batch norm, up under others.

    Args:
        side: ``up`` (σ = 1, default), ``down`` (σ = -1), or ``signs`` (σ drawn once).
        layers: the entries of updates that drift, the others are ``ḡ``: ``all`` (default), ``last`` (from the last
            weight matrix on) or ``hidden`` (those before it).
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
    layers: str = param("all", choices=LAYERS, doc="the entries of updates that drift: all, hidden, or last")
    evals: int = param(16, ge=1, doc="evaluations of the server's rule for each shape of the step")
    eta_max: float = param(1e3, gt=0.0, lt=math.inf, doc="bound on η")

    def __post_init__(self) -> None:
        parameters.check(self)

    def forge(self, view: View, *, generator: torch.Generator) -> Forged:
        honest = honest_rows(view, self.name)
        mean, spread = centre_and_spread(honest, 1)
        state = dict(view.state)
        if self.side == "signs" and not state:
            # Drawn in float32 whatever the rows are, so that precision does not change the draw.
            drawn = torch.rand(len(mean), generator=generator, device=generator.device).to(mean.device)
            state["signs"] = torch.where(drawn < 0.5, -1.0, 1.0).to(mean)
        signs = state["signs"] if state else torch.full_like(mean, -1.0 if self.side == "down" else 1.0)
        signs = signs * self._chosen(view, signs)
        moved, search = _along(view, honest, mean, signs), Search("scan", self.evals, eta_max=self.eta_max)
        best = (0.0, mean)
        for step in (signs, signs * spread, (edge(honest, signs) - mean) * signs.abs()):
            eta, reach = search.run(partial(_at, moved, mean, step), scales(honest, mean, step))
            if reach > best[0]:
                best = reach, mean.add(step, alpha=eta)
        return Forged(alike(best[1], view.f), state)

    def _chosen(self, view: View, like: Tensor) -> Tensor:
        """One in the entries that drift, zero in the others."""
        chosen = torch.ones_like(like)
        if self.layers == "all" or view.channel == "statistics":
            return chosen
        matrices = [i for i, shape in enumerate(view.shapes) if len(shape) > 1]
        if not matrices:
            raise UsageError(f"attack 'opt-drift': layers={self.layers!r} needs the shapes of the model's layers")
        last = sum(math.prod(shape) for shape in view.shapes[: matrices[-1]])
        chosen[slice(last, None) if self.layers == "hidden" else slice(last)] = 0.0
        return chosen


def _at(moved: Callable[[Tensor], float], mean: Tensor, step: Tensor, eta: float) -> float:
    return moved(mean.add(step, alpha=eta))


def _along(view: View, honest: Tensor, mean: Tensor, signs: Tensor) -> Callable[[Tensor], float]:
    """How far the server's result moves to the side of ``signs [d]`` if all attackers send a row; not below 0."""
    if view.aggregate is None:
        raise UsageError("attack 'opt-drift' optimises against the server; its view needs aggregate")
    aggregate, h, towards = view.aggregate, len(honest), signs.double()
    towards = towards / torch.linalg.vector_norm(towards)
    origin = mean if view.origin is None else view.origin
    stack = torch.cat([honest, honest.new_empty((view.f, honest.shape[1]))])

    def moved(row: Tensor) -> float:
        stack[h:] = row
        return max(float((aggregate(stack) - origin).double() @ towards), 0.0)

    return moved
