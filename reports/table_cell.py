"""One place of a leaderboard: a mean over seeds with its doubt, or why there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from statistics import NormalDist, fmean

from robustfl.errors import some

from .moderated_t import Prior, interval, logit, prior_of, resolution

CONFIDENCE = 0.95
STATES = ("diverged", "failed", "refused")
NO_EFFECT = "no effect"
MIN_SEEDS = 5
"""Fewer seeds are shown themselves, from the lowest to the highest; so many have an interval."""


@dataclass(frozen=True)
class TableCell:
    """One place of a table: the values per seed, how many there should be, and the states of the others.

    ``bound`` marks a minimum over fewer attacks than the board has: the true worst case may be lower. ``idle`` marks an
    attack that left the mean of the honest clients where it was. ``diverged`` are the seeds that did, of one task.
    ``notes`` are the numbers of the footnotes. ``prior`` is what the place's table says about variances, ``samples``
    the number of test samples of the accuracies. Where there is a state, the table shows it instead of a number.
    """

    values: tuple[tuple[str, float], ...] = ()
    expected: int = 0
    states: tuple[tuple[str, int], ...] = ()
    bound: bool = False
    notes: tuple[int, ...] = ()
    idle: bool = False
    samples: int | None = None
    prior: Prior | None = None
    diverged: frozenset[str] = frozenset()

    @property
    def is_number(self) -> bool:
        """True if the place has a number: some seed has a value and none has diverged, failed or been refused."""
        return bool(self.values) and not self.states

    @property
    def exact(self) -> bool:
        """True if there is a number that is no bound: rows are ranked by such worst cases."""
        return self.is_number and not self.bound

    @cached_property
    def mean(self) -> float | None:
        """The mean over seeds in [0, 1]."""
        return fmean(v for _, v in self.values) if self.is_number else None

    @property
    def shown(self) -> float | None:
        """The mean, unless a word stands in its place."""
        return None if self.idle else self.mean

    @cached_property
    def seeds(self) -> tuple[float, float] | None:
        """The lowest and the highest seed; ``None`` for fewer than two."""
        numbers = [v for _, v in self.values]
        return (min(numbers), max(numbers)) if self.is_number and len(numbers) > 1 else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean over seeds, within [0, 1]; ``None`` below ``MIN_SEEDS`` seeds."""
        if not self.is_number or len(self.values) < MIN_SEEDS:
            return None
        numbers = [v for _, v in self.values]
        return interval(numbers, prior=self.prior, samples=self.samples, confidence=CONFIDENCE)

    @property
    def test_error(self) -> float | None:
        """Half the 95 % interval of one accuracy for the draw of the test samples, which all seeds share."""
        if self.mean is None or not self.samples:
            return None
        return NORMAL * math.sqrt(max(self.mean * (1 - self.mean), 0.0) / self.samples)

    def count(self, state: str) -> int:
        return dict(self.states).get(state, 0)

    @property
    def state_words(self) -> tuple[str, ...]:
        """Each state, with in how many of the seeds where it is not in all: ``diverged 2/3``."""
        return tuple(s if k == self.expected else f"{s} {k}/{self.expected}" for s, k in self.states)

    @property
    def status(self) -> str:
        """``ok``, or why the place has no plain number: its states, ``no effect``, ``at most``, ``missing``."""
        if self.states:
            return ", ".join(self.state_words)
        if self.idle:
            return NO_EFFECT
        if self.mean is None:
            return "missing"
        return "at most" if self.at_most else "ok"

    @property
    def at_most(self) -> bool:
        """True if attacks that have not run might lower the number."""
        return self.is_number and self.bound

    def spread(self) -> str:
        """The interval in percent as ``[82.1, 87.5]``, or the seeds as ``(80.0–90.0)``; empty for one seed."""
        if self.interval is not None:
            return "[{:.1f}, {:.1f}]".format(*(100 * v for v in self.interval))
        return "" if self.seeds is None else "({:.1f}–{:.1f})".format(*(100 * v for v in self.seeds))

    def told(self) -> str:
        """Every seed's value in percent, for a tool tip: ``seed 0: 80.0, seed 1: 90.0``."""
        return ", ".join(f"seed {s}: {100 * v:.1f}" for s, v in self.values)

    def text(self, *, spread: bool = True, unit: str = "") -> str:
        """The place in percent with one decimal, or its states: ``85.0 (80.0–90.0)``, ``≤ 70.0``, ``diverged 2/3``.

        ``unit`` follows the number.
        """
        if self.states or self.idle:
            return self.status
        if self.mean is None:
            return "–"
        number = f"{100 * self.mean:.1f}{unit}"
        if len(self.values) < self.expected:
            number += f" {len(self.values)}/{self.expected}"
        if spread and self.spread():
            number += f" {self.spread()}"
        return ("≤ " if self.at_most else "") + number


NORMAL = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def table_prior(parts: Sequence[TableCell]) -> Prior | None:
    """The prior that the places of one table give for variances over seeds, on the logit scale.

    An attack without effect repeats the numbers without attack, and tells nothing new.
    """
    found = [p for p in parts if p.is_number and len(p.values) > 1 and not p.idle]
    numbers = [[v for _, v in p.values] for p in found]
    variances = [
        max(float(logit(v, p.samples).var(ddof=1)), resolution(v, p.samples))
        for v, p in zip(numbers, found, strict=True)
    ]
    dofs = [len(v) - 1.0 for v in numbers]
    return prior_of(variances, dofs, pooled=math.fsum(dofs))


def averaged(parts: Sequence[TableCell]) -> TableCell:
    """The mean of several places, seed by seed over the seeds all of them have."""
    states = in_order(sum((Counter(dict(p.states)) for p in parts), Counter[str]()))
    tables = [dict(p.values) if p.is_number else {} for p in parts]
    shared = [s for s in tables[0] if all(s in table for table in tables)] if tables else []
    values = tuple((s, fmean(table[s] for table in tables)) for s in shared)
    expected = sum(p.expected for p in parts) if states else max((p.expected for p in parts), default=0)
    idle = bool(parts) and all(p.idle for p in parts)
    return TableCell(values, expected, states, any(p.bound for p in parts), _notes(parts), idle, _samples(parts))


def acts(places: Iterable[TableCell]) -> bool:
    """True if an attack ran and had an effect on some of the rows that these places are of."""
    return any(place.expected and not place.idle for place in places)


def worst(parts: Sequence[TableCell]) -> TableCell:
    """The worst case over attacks, seed by seed the minimum.

    A divergence is worse than any number, so one attack that made training diverge makes the worst case ``diverged``,
    in all seeds that any attack did so.
    Attacks without a number make it a bound, as does one that lacks a seed which others have. Attacks without effect do
    not count.
    """
    found = [p for p in parts if p.is_number]
    seeds = list(dict.fromkeys(s for p in sorted(found, key=lambda p: -len(p.values)) for s, _ in p.values))
    parts = [p for p in parts if not p.idle]
    expected = max((p.expected for p in parts), default=0)
    diverged = frozenset().union(*(p.diverged for p in parts))
    if diverged:
        states = (("diverged", len(diverged)),)
        return TableCell((), expected, states, notes=_notes(parts), diverged=diverged)
    numbers = [p for p in parts if p.is_number]
    if not numbers:
        largest = reduce(or_, (Counter(dict(p.states)) for p in parts), Counter[str]())
        return TableCell((), expected, in_order(largest), notes=_notes(parts))
    values = [(s, [dict(p.values)[s] for p in numbers if s in dict(p.values)]) for s in seeds]
    lowest = tuple((s, min(each)) for s, each in values if each)
    lacking = any(len(p.values) < len(seeds) for p in found)
    bound = lacking or len(numbers) < len(parts) or any(p.bound for p in numbers)
    return TableCell(lowest, expected, (), bound, samples=_samples(numbers))


def of_members(parts: Mapping[str, TableCell]) -> tuple[TableCell, tuple[tuple[str, int], ...], int]:
    """The worst of the members per seed, in how many seeds each was it, most often first, and of how many.

    A seed in which several are the worst, by the same accuracy or by divergence, counts for each of them. Members that
    are refused in every cell are no attacks on this row and do not count, unless all are; nor do members without
    effect.
    """
    tried = {name: part for name, part in parts.items() if part.expected}
    possible = {name: part for name, part in tried.items() if part.count("refused") < part.expected}
    counted = possible or tried
    if counted and all(part.idle for part in counted.values()):
        return replace(worst([replace(p, idle=False) for p in counted.values()]), idle=True), (), 0
    found = worst(list(counted.values()))
    if any(not part.expected for part in parts.values()):  # some member is not among the cells
        found = replace(found, bound=found.is_number)
    counts: Counter[str] = Counter()
    lowest = dict(found.values)
    for name, part in possible.items():
        own = part.values if part.is_number and not part.idle else ()
        counts[name] += len(found.diverged & part.diverged) + sum(lowest.get(seed) == value for seed, value in own)
    order = list(parts)
    members = tuple(sorted((+counts).items(), key=lambda item: (-item[1], order.index(item[0]))))
    return found, members, len(found.diverged) + len(lowest)


def member_text(members: Sequence[tuple[str, int]], seeds: int) -> str:
    """The worst member of a row, or all that were it equally often, with in how many of its ``seeds`` if not in all.

    >>> member_text([("alie", 3), ("sf", 2)], 5), member_text([("alie", 5)], 5)
    ('alie 3/5', 'alie')
    >>> member_text([("alie", 3), ("sf", 3), ("zero", 2)], 5)
    'alie, sf 3/5'
    """
    if not members:
        return "–"
    most = members[0][1]
    names = some([name for name, count in members if count == most], 2)
    return names if most == seeds else f"{names} {most}/{seeds}"


def in_order(states: Counter[str]) -> tuple[tuple[str, int], ...]:
    """The states that there are with their numbers, in the order of ``STATES``."""
    return tuple((s, states[s]) for s in STATES if states[s])


def _notes(parts: Iterable[TableCell]) -> tuple[int, ...]:
    return tuple(sorted({n for p in parts for n in p.notes}))


def _samples(parts: Iterable[TableCell]) -> int | None:
    """The fewest test samples of the parts."""
    return min((p.samples for p in parts if p.samples), default=None)
