"""Attacks made for one rule: on SignGuard and on clipped clustering."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, centre_and_spread, honest_rows


@register("signguard-adaptive", version=1)
@dataclass(frozen=True)
class SignGuardAdaptive(Attack):
    """The attackers send the entries of the honest mean at other places, at an ordinary norm.

    SignGuard compares norms and the shares of positive, zero and negative entries; a permutation of ``ḡ`` changes
    none of them. ``opposite`` puts the smallest value where the largest was and so on, which of all permutations gives
    the least inner product with ``ḡ``; ``random`` shuffles. The row has ``scale`` times the median honest norm. Rules
    that look at distances or coordinates see an outlier.

    Args:
        order: ``opposite`` (default) or ``random``.
        scale: factor ≥ 0 of the median honest norm; 1 by default, SignGuard lets up to 3 pass.

    Reference: the rule of Xu et al., Byzantine-robust Federated Learning through Collaborative Malicious Gradient
    Filtering, ICDCS 2022, arXiv:2109.05872; an adaptive attack on it is part of Li et al., Blades: A Unified Benchmark
    Suite for Byzantine Attacks and Defenses in Federated Learning, IoTDI 2024, arXiv:2206.05359. Deviations:
    ``opposite`` is ours; values are those of ``ḡ`` rather than random ones.

    >>> import robustfl
    >>> robustfl.forge("signguard-adaptive", torch.tensor([[4.0, -2.0, 1.0], [4.0, -2.0, 1.0]]), f=1)
    tensor([[-2.,  4.,  1.]])
    """

    paper: ClassVar[str] = "@xu2022byzantine"
    cost: ClassVar[str] = "hd for lengths, mean and signs"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "scale"

    order: str = param("opposite", choices=("opposite", "random"), doc="where the entries of the mean go")
    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="length of the row, in median honest norms")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        honest = honest_rows(view, self.name)
        mean = centre(honest)
        if self.order == "random":
            order = torch.randperm(len(mean), generator=generator, device=generator.device).to(mean.device)
            moved = mean[order]
        else:
            values, place = mean.sort(stable=True)
            moved = torch.empty_like(values).index_copy_(0, place, values.flip(0))
        norm = torch.linalg.vector_norm(honest, dim=1).quantile(0.5)
        own = torch.linalg.vector_norm(mean).clamp(min=torch.finfo(mean.dtype).tiny)
        return alike(moved * (self.scale * norm / own), view.f)


@register("clipped-clustering-adaptive", version=1)
@dataclass(frozen=True)
class ClippedClusteringAdaptive(Attack):
    """The attackers turn as far away from the honest direction as the honest cluster reaches, at an ordinary norm.

    A server that clips norms at their median and clusters by cosine distance (average linkage) sees directions only.
    With the mean ``ū`` of the honest unit vectors, any ``v = cos θ ū/‖ū‖ + sin θ w``, ``w ⊥ ū``, has the mean cosine
    ``cos θ ‖ū‖`` to the honest rows; ``cos θ = min_ij cos(x_i, x_j) / ‖ū‖`` (at least -1) puts it as far from their
    cluster as the two most different honest rows are from each other. ``w`` points along ``-s`` as in ``alie`` (if that
    is not along ``ū``, else away from the honest row that differs most); the length is the median honest norm. In one
    dimension there is no ``w`` and only ``cos θ`` times that length; where ``ū`` is zero, the mean itself is sent.
    Needs honest rows that disagree: identical ones leave ``θ = 0``.

    Args:
        scale: factor ≥ 0 of the median norm; 1 (default) is the most that is not clipped.

    Reference: the rule of Li, Ngai, Voigt, An Experimental Study of Byzantine-Robust Aggregation Schemes in Federated
    Learning, IEEE Transactions on Big Data 2024, arXiv:2302.07173; an adaptive attack on it is part of Li et al.,
    Blades: A Unified Benchmark Suite for Byzantine Attacks and Defenses in Federated Learning, IoTDI 2024,
    arXiv:2206.05359. Deviations: the closed form above instead of that suite's attack.

    >>> import robustfl
    >>> v = robustfl.forge("clipped-clustering-adaptive", torch.tensor([[2.0, 0.0], [0.0, 2.0]]), f=1)
    >>> (v.norm().round(), v.sum().abs() < 1e-6)  # honest rows at a right angle: so is this row to their mean
    (tensor(2.), tensor(True))
    """

    paper: ClassVar[str] = "@li2024blades"
    cost: ClassVar[str] = "h²d for the inner products"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "scale"

    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="length of the row, in median honest norms")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        honest = honest_rows(view, self.name)
        mean, std = centre_and_spread(honest, 1)
        norms = torch.linalg.vector_norm(honest, dim=1)
        units = honest / norms.clamp(min=torch.finfo(honest.dtype).tiny)[:, None]
        ahead = units.mean(0)
        length = float(torch.linalg.vector_norm(ahead))
        if length == 0.0:
            return alike(mean.clone(), view.f)
        ahead /= length
        cosine = min(max(float((units @ units.T).min()) / length, -1.0), 1.0)
        aside = _beside(ahead, -std, -units[(units @ ahead).argmin()])
        row = ahead * cosine + aside * math.sqrt(1.0 - cosine**2)
        return alike(row * (self.scale * norms.quantile(0.5)), view.f)


def _beside(ahead: Tensor, *candidates: Tensor) -> Tensor:
    """The part of the first candidate orthogonal to the unit vector ``ahead``, normalised; one along it has none."""
    for candidate in candidates:
        part = candidate - (candidate @ ahead) * ahead
        part -= (part @ ahead) * ahead
        norm = float(torch.linalg.vector_norm(part))
        if norm > math.sqrt(torch.finfo(part.dtype).eps) * float(torch.linalg.vector_norm(candidate)):
            return part / norm
    return torch.zeros_like(ahead)
