"""Everything one training run needs, built once and never changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from robustfl.contracts import Algorithm, Attack, Norm
from robustfl.data import Augment, Resident
from robustfl.defenses.pipeline import Pipeline
from robustfl.randomness import numpy_stream
from robustfl.vectors import Layout

Scope = Literal["update", "statistics", "both"]
Target = Literal["mean", "var", "both"]


@dataclass(frozen=True)
class Settings:
    """The numbers of a federation. ``f`` clients are Byzantine; the defense is told ``f_declared``."""

    clients: int
    f: int
    f_declared: int
    rounds: int
    batch: int
    participation: float = 1.0
    scope: Scope = "both"
    target: Target = "mean"
    seed: int = 0
    engine: Literal["fast", "reference"] = "fast"

    @property
    def participants(self) -> int:
        """Clients per round, ``max(1, ⌊C·N⌋)`` (SPEC §1.13)."""
        return max(1, int(self.participation * self.clients + 1e-9))

    def byzantine(self) -> frozenset[int]:
        """Which clients are Byzantine: drawn from the seed alone, so the same under every attack."""
        order = numpy_stream(self.seed, "byzantine").permutation(self.clients)
        return frozenset(int(i) for i in order[: self.f])

    def sample(self, round: int) -> list[int]:
        """The participants of a round, in increasing order."""
        if self.participants == self.clients:
            return list(range(self.clients))
        chosen = numpy_stream(self.seed, "participation", round).permutation(self.clients)[: self.participants]
        return sorted(int(i) for i in chosen)


@dataclass(frozen=True)
class Experiment:
    """A federation with its data, model and methods. ``parts[k]`` are client ``k``'s training indices."""

    settings: Settings
    model: nn.Module
    layout: Layout
    train: Resident
    parts: tuple[Tensor, ...]
    classes: int
    algorithm: Algorithm
    norm: Norm
    attack: Attack
    defense: Pipeline
    lr: Callable[[int], float]
    augment: Augment | None = None

    @property
    def device(self) -> torch.device:
        return self.train.y.device

    @property
    def attacks_updates(self) -> bool:
        """Whether attackers replace their updates."""
        return self.attack.forges and self.settings.scope in ("update", "both")

    @property
    def attacks_statistics(self) -> bool:
        """Whether attackers replace their statistics."""
        return self.attack.forges and self.settings.scope in ("statistics", "both")

    @property
    def computes_own(self) -> bool:
        """Whether attackers must do the honest work too, because a channel of theirs stays honest or starts from it."""
        if self.attack.needs_own or not self.attacks_updates:
            return True
        blind = self.attack.knowledge in ("blind", "partial")
        partly_honest = not self.attacks_statistics or (blind and self.settings.target != "both")
        return self.layout.s > 0 and (partly_honest or not self.algorithm.one_batch)
