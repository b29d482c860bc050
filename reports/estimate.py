"""One place of a leaderboard: a mean over seeds with its interval, or why there is none."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from scipy.special import stdtrit

CONFIDENCE = 0.95
STATES = ("diverged", "failed", "refused")


def half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % Student t interval of the mean; ``None`` for fewer than two values.

    >>> round(half_width([0.8, 0.9]), 4)
    0.6353
    """
    n = len(values)
    if n < 2:
        return None
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(n)


@dataclass(frozen=True)
class Estimate:
    """What is known of one place: the values per seed, how many there should be, and the states of the others.

    ``bound`` marks a minimum over fewer attacks than the board has: the true worst case may be lower. ``notes`` are
    the numbers of the footnotes. An estimate with a state is never a number.
    """

    values: tuple[tuple[str, float], ...] = ()
    expected: int = 0
    states: tuple[tuple[str, int], ...] = ()
    bound: bool = False
    notes: tuple[int, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether the place shows a number: some seed has a value and none has diverged, failed or been refused."""
        return bool(self.values) and not self.states

    @cached_property
    def mean(self) -> float | None:
        """The mean over seeds in [0, 1]."""
        return math.fsum(v for _, v in self.values) / len(self.values) if self.is_number else None

    @cached_property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return half_width([v for _, v in self.values]) if self.is_number else None

    def count(self, state: str) -> int:
        """How many cells have this state."""
        return dict(self.states).get(state, 0)

    def text(self, *, plus_minus: str = " ± ", at_most: str = "≤ ", none: str = "–", interval: bool = True) -> str:
        """The place in percent with one decimal, or its states: ``83.1 ± 1.2``, ``≤ 70.0``, ``diverged 2/3``."""
        if self.states:
            return ", ".join(s if k == self.expected else f"{s} {k}/{self.expected}" for s, k in self.states)
        if self.mean is None:
            return none
        number = f"{100 * self.mean:.1f}"
        if interval and self.half is not None:
            number += f"{plus_minus}{100 * self.half:.1f}"
        if len(self.values) < self.expected:
            number += f" [{len(self.values)}/{self.expected}]"
        return (at_most if self.bound else "") + number


def averaged(parts: Sequence[Estimate]) -> Estimate:
    """The mean of several places, seed by seed over the seeds all of them have."""
    states = _summed(parts)
    shared = _shared_seeds(parts)
    values = tuple((s, math.fsum(dict(p.values)[s] for p in parts) / len(parts)) for s in shared)
    expected = sum(p.expected for p in parts) if states else max((p.expected for p in parts), default=0)
    return Estimate(values, expected, states, any(p.bound for p in parts), _notes(parts))


def worst(parts: Sequence[Estimate]) -> Estimate:
    """The worst case over attacks: seed by seed the minimum, over the seeds that every attack has.

    A divergence is worse than any number, so one attack that made training diverge makes the worst case ``diverged``.
    Attacks without a number make it a bound.
    """
    expected = max((p.expected for p in parts), default=0)
    diverged = max((p.count("diverged") for p in parts), default=0)
    if diverged:
        total = max(p.expected for p in parts if p.count("diverged") == diverged)
        return Estimate((), total, (("diverged", diverged),), notes=_notes(parts))
    numbers = [p for p in parts if p.is_number]
    if not numbers:
        return Estimate((), expected, _largest(parts), notes=_notes(parts))
    values = tuple((s, min(dict(p.values)[s] for p in numbers)) for s in _shared_seeds(numbers))
    return Estimate(values, expected, (), len(numbers) < len(parts))


def _summed(parts: Iterable[Estimate]) -> tuple[tuple[str, int], ...]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(dict(part.states))
    return tuple((s, total[s]) for s in STATES if total[s])


def _largest(parts: Iterable[Estimate]) -> tuple[tuple[str, int], ...]:
    counts = {s: max((p.count(s) for p in parts), default=0) for s in STATES}
    return tuple((s, k) for s, k in counts.items() if k)


def _shared_seeds(parts: Sequence[Estimate]) -> list[str]:
    if not parts or any(not p.is_number for p in parts):
        return []
    common = set.intersection(*({s for s, _ in p.values} for p in parts))
    return [s for s, _ in parts[0].values if s in common]


def _notes(parts: Iterable[Estimate]) -> tuple[int, ...]:
    return tuple(sorted({n for p in parts for n in p.notes}))
