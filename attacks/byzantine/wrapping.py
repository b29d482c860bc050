"""The common part of attacks that wrap another one: building it, taking over its facts, poisoning data as it does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.registry import create, describe


class Wrapper(Attack):
    """An attack around the one that its parameter ``attack`` names."""

    attack: str

    @cached_property
    def inner(self) -> Attack:
        """The wrapped attack; an error in its text names both."""
        try:
            inner = create("attack", self.attack)
        except UsageError as error:
            raise UsageError(f"{type(self).__name__}: attack={self.attack!r}: {error}") from error
        assert isinstance(inner, Attack)
        return inner

    @property
    def target(self) -> int | None:
        return self.inner.target

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        return self.inner.poison(x, y, classes=classes, generator=generator, attacker=attacker, round=round)

    def trigger(self, x: Tensor) -> Tensor:
        return self.inner.trigger(x)

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return self.inner.certificate(n, f)

    def _adopt(self, *facts: str) -> None:
        """While it is constructed: write the wrapped attack in its shortest form and take over its ``facts``."""
        object.__setattr__(self, "attack", describe(self.inner))
        for fact in facts:
            object.__setattr__(self, fact, getattr(self.inner, fact))

    def _adopt_poison(self) -> None:
        """The same, for an attack that poisons data and leaves messages alone. Raises ``UsageError`` for another."""
        if self.inner.forges or not self.inner.poisons_data:
            who = type(self).__name__
            raise UsageError(f"{who}: attack={self.attack!r} must poison data and leave messages alone")
        self._adopt("triggers")
