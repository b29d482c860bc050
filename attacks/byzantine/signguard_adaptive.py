"""An attack made for SignGuard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows


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
