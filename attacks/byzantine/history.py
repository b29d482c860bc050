"""Attacks that go by the server's last steps: ROP and PoisonedFL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows, own_rows, random_signs, unit


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


@register("poisonedfl", version=1)
@dataclass(frozen=True)
class PoisonedFL(Attack):
    """The attackers push every coordinate to the same side in all rounds, by as much as the model moved otherwise.

    ``x = c ‖g‖ v ⊙ s``, ``v`` the unit vector along ``|g - (‖g‖/‖x'‖) x'|``, with signs ``s ∈ {-1, 1}^d`` drawn once,
    the last aggregate ``g`` and the row ``x'`` sent last: where the server moved less than it was told to, the
    attackers push more.

    Attacks that follow the honest mean take back in one round what they did in another; this one adds up, and needs
    no honest row, not even data. Every ``period`` rounds it looks back: if no more entries of ``Σ g`` have the sign
    ``s`` than chance explains, ``c`` becomes ``decay · c``. Rules that bound lengths are left with a slow drift.

    Args:
        scale: first ``c`` ≥ 0; 8.
        decay: factor in (0, 1] of ``c`` after failure; 0.7. ``c`` does not fall below ``least``.
        period: rounds ≥ 1 from one look back to the next; 50.
        level: probability in (0, 1) with which chance alone is no success; 0.99.
        least: ``c`` is not shrunk below it, ≥ 0; 0.5.

    Reference: Xie, Fang, Gong, Model Poisoning Attacks to Federated Learning via Multi-Round Consistency, CVPR 2025,
    arXiv:2404.15611 (its algorithm; defaults of the authors' code). Deviations: fake clients take part in every round
    and send zeros in the first, as in that code; the binomial quantile is rounded from the normal one, which meets the
    authors' numbers; an entry that has not moved does not count, where the code takes the model's sign. Of statistics,
    which are no updates, the change since the last round stands for ``g``, and rows start from the last aggregate.

    >>> from robustfl.contracts import View
    >>> view = View(n=3, f=1, own=torch.zeros(1, 2), previous=torch.tensor([3.0, -4.0]))
    >>> PoisonedFL(scale=2).forge(view, generator=torch.Generator().manual_seed(0)).rows.abs()
    tensor([[6., 8.]])
    """

    paper: ClassVar[str] = "@xie2025model"
    cost: ClassVar[str] = "a few vectors [d]; remembers three"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"

    scale: float = param(8.0, ge=0.0, lt=math.inf, doc="length of the row at first, in lengths of the last aggregate")
    decay: float = param(0.7, gt=0.0, le=1.0, doc="factor of the length after a period without success")
    period: int = param(50, ge=1, doc="rounds from one look back to the next")
    level: float = param(0.99, gt=0.0, lt=1.0, doc="probability with which chance alone is no success")
    least: float = param(0.5, ge=0.0, lt=math.inf, doc="the length is not shrunk below it")

    def forge(self, view: View, *, generator: torch.Generator) -> Forged:
        like = own_rows(view, self.name)[0]
        state = dict(view.state) or self._start(like, generator)
        base, g = _moved(view, state)
        if g is None:
            row = torch.zeros_like(like)
        else:
            state["total"], state["age"] = state["total"] + g, state["age"] + 1
            if int(state["age"]) % self.period == 0:
                state |= {"share": self._adapted(state), "total": torch.zeros_like(g)}
            length: Tensor = torch.linalg.vector_norm(g)
            away = unit((g - unit(state["row"]) * length).abs())
            row = away * state["signs"] * (self.scale * float(state["share"]) * length)
        state["row"] = row
        return Forged(alike(row if base is None else row + base, view.f), state)

    def _start(self, like: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        return {
            "signs": random_signs(like, generator), "row": torch.zeros_like(like),
            "total": torch.zeros_like(like), "age": torch.tensor(0), "share": torch.ones((), dtype=torch.float64),
            "before": like.new_zeros(0),
        }  # fmt: skip

    def _adapted(self, state: Mapping[str, Tensor]) -> Tensor:
        """The share of the first ``c`` for the next period; ``c`` itself is no state, since ``opt`` searches it."""
        aligned = int((state["total"].sign() == state["signs"]).sum())
        smaller = state["share"] * self.decay
        failed = aligned < successes(len(state["signs"]), self.level)
        return smaller if failed and self.scale * float(smaller) >= self.least else state["share"]


def successes(d: int, level: float) -> int:
    """The number of heads among ``d`` fair coins that chance exceeds with probability ``1 - level`` only.

    >>> successes(1_204_682, 0.99)
    603618
    """
    return round(d / 2 + NormalDist().inv_cdf(level) * math.sqrt(d) / 2)


def _moved(view: View, state: dict[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """From where rows start (``None``: from zero) and how the server moved last (``None``: nobody knows yet)."""
    if view.channel == "update":
        return None, view.previous
    before, last = state["before"], view.previous
    if last is None:
        return None, None
    state["before"] = last.clone()
    return last, (last - before if len(before) else None)
