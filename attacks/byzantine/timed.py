"""Attackers that are on and off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Forged, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows
from .wrapping import Wrapper


@register("timed", version=2)
@dataclass(frozen=True)
class Timed(Wrapper):
    """Any attack in some rounds only: ``start, start + every, start + 2·every, …`` below ``stop``; honest otherwise.

    When off, attackers train on clean data and send what they honestly compute: they earn trust with rules that
    remember, and let a model converge before they strike. Needs the honest work of the attackers in every round.

    Args:
        attack: the attack, any registered one; ``sf`` by default.
        start: first round ≥ 0 of the attack, counted from 0.
        every: rounds ≥ 1 from one attack to the next; 1 attacks in all rounds of the window.
        stop: first round after the window, > ``start``; None (default) never stops.

    Reference: Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021,
    arXiv:2012.10333 (time-coupled attacks); Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020,
    arXiv:1807.00459 (single-shot attacks).

    >>> from robustfl.contracts import View
    >>> attack = Timed("sf", start=1, every=2)
    >>> views = [View(n=2, f=1, honest=torch.ones(1, 1), own=torch.full((1, 1), 5.0), round=t) for t in range(4)]
    >>> [attack.forge(view, generator=torch.Generator()).item() for view in views]
    [5.0, -1.0, 5.0, -1.0]
    """

    paper: ClassVar[str] = "@karimireddy2021learning"
    cost: ClassVar[str] = "that of the wrapped attack in its rounds"
    needs_own: ClassVar[bool] = True

    attack: str = param("sf", doc="the attack that is on and off")
    start: int = param(0, ge=0, doc="first round of the attack, from 0")
    every: int = param(1, ge=1, doc="rounds from one attack to the next")
    stop: int | None = param(None, ge=1, doc="first round after the last attack; None: never stops")

    def __post_init__(self) -> None:
        parameters.check(self)
        if self.stop is not None and self.stop <= self.start:
            raise UsageError(f"Timed: stop={self.stop} must be > {self.start} (start)")
        self._adopt("knowledge", "forges", "poisons_data", "triggers", "leaves_statistics")

    def on(self, round: int) -> bool:
        inside = round >= self.start and (self.stop is None or round < self.stop)
        return inside and (round - self.start) % self.every == 0

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        own = own_rows(view, self.name)
        if self.on(view.round):
            return self.inner.forge(view.redacted(self.inner), generator=generator)
        return Forged(own.clone(), view.state) if view.state else own.clone()

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        if not self.on(round):
            return x, y
        return self.inner.poison(x, y, classes=classes, generator=generator, attacker=attacker, round=round)

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        return self.inner.constrain(gradient, moved, round=round) if self.on(round) else gradient
