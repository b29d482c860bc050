"""Relocated orthogonal perturbation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows, unit


@register("rop", version=1)
@dataclass(frozen=True)
class ROP(Attack):
    """The attackers place themselves near the server's last aggregate ``m`` and step sideways, round after round.

    ``πm + (1-π)ḡ + z‖ḡ‖ (sin α p + cos α r)``, ``r`` the unit vector along ``λm + (1-λ)ḡ`` and ``p`` the unit vector
    along ``1 - (1·r)r``, the part of the all-ones vector orthogonal to it; 0 if it has none.

    Centred clipping bounds distances to ``m`` and no angles, so steps in a constant direction add up over rounds;
    rules that compare the rows of one round are harder to fool.

    Args:
        z: length ≥ 0 of the step, in norms of the honest mean; 1.
        angle: α in degrees from ``r``, in [0, 360]; 90 (default) is orthogonal, 180 is backwards.
        location: π in [0, 1], where the step starts: 1 (default) at ``m``, 0 at ``ḡ``.
        reference: λ in [0, 1], what it is orthogonal to: 1 is ``m``, 0 is ``ḡ``; 0.9.

    Reference: Özfatura et al., Byzantines Can Also Learn From History: Fall of Centered Clipping in Federated Learning,
    IEEE Transactions on Information Forensics and Security 2024, arXiv:2208.09894 (its ROP attack). Deviations: ``z``
    is relative to ``‖ḡ‖``; in the first round ``m`` is ``ḡ``; the defaults are ours.

    >>> import robustfl
    >>> robustfl.forge("rop", torch.tensor([[2.0, 0.0]]), f=1)
    tensor([[2., 2.]])
    """

    paper: ClassVar[str] = "@ozfatura2024byzantines"
    cost: ClassVar[str] = "hd and a few products of vectors [d]"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "z"

    z: float = param(1.0, ge=0.0, lt=math.inf, doc="length of the step, in norms of the honest mean")
    angle: float = param(90.0, ge=0.0, le=360.0, doc="degrees between the step and the reference")
    location: float = param(1.0, ge=0.0, le=1.0, doc="share of the last aggregate in where the step starts")
    reference: float = param(0.9, ge=0.0, le=1.0, doc="share of the last aggregate in what the step is orthogonal to")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        mean = centre(honest_rows(view, self.name))
        last = mean if view.previous is None else view.previous
        ahead = unit(torch.lerp(mean, last, self.reference))
        aside = _aside(ahead)
        angle = math.radians(self.angle)
        step = aside * math.sin(angle) + ahead * math.cos(angle)
        start = torch.lerp(mean, last, self.location)
        return alike(start + step * (self.z * torch.linalg.vector_norm(mean)), view.f)


def _aside(ahead: Tensor) -> Tensor:
    """The unit vector along the part of the all-ones vector orthogonal to ``ahead [d]``; 0 for a part of rounding."""
    part = 1.0 - ahead.sum() * ahead
    rounding = math.sqrt(torch.finfo(part.dtype).eps * len(part))
    return torch.where(torch.linalg.vector_norm(part) > rounding, unit(part), torch.zeros_like(part))
