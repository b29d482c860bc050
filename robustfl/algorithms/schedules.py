"""Learning-rate schedules: functions from the round (from 0) to the learning rate."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from robustfl.errors import UsageError

Schedule = Callable[[int], float]


def constant(lr: float) -> Schedule:
    """The same rate in every round.

    >>> constant(0.1)(7)
    0.1
    """
    return lambda round: lr


def step(values: Sequence[float], milestones: Sequence[int]) -> Schedule:
    """``values[i]`` from round ``milestones[i-1]`` (inclusive) to ``milestones[i]`` (exclusive).

    >>> lr = step([0.1, 0.05, 0.033], [1000, 2000])   # the schedule of the FBN paper's Table 2
    >>> lr(999), lr(1000), lr(2999)
    (0.1, 0.05, 0.033)
    """
    if not values:
        raise UsageError("step schedule: values are missing, such as values = [0.1, 0.01], milestones = [100]")
    if len(values) != len(milestones) + 1:
        raise UsageError(
            f"step schedule: {len(values)} values need {len(values) - 1} milestones, not {len(milestones)}"
        )
    if list(milestones) != sorted(set(milestones)) or any(round < 1 for round in milestones):
        raise UsageError(f"step schedule: milestones={list(milestones)} must be rounds ≥ 1 that increase")
    return lambda round: float(values[bisect_right(list(milestones), round)])


def cosine(lr: float, rounds: int) -> Schedule:
    """``lr · (1 + cos(π·round/rounds))/2``: from ``lr`` towards 0 without a restart.

    >>> [round(cosine(0.1, 4)(t), 4) for t in range(4)]
    [0.1, 0.0854, 0.05, 0.0146]

    Reference: Loshchilov, Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017, arXiv:1608.03983,
    equation 5 with η_min = 0.
    """
    return lambda round: lr * (1 + math.cos(math.pi * round / rounds)) / 2


def geometric(lr: float, factor: float) -> Schedule:
    """``lr · factor^round`` (HBN: 0.998).

    >>> round(geometric(0.01, 0.998)(1), 5)
    0.00998
    """
    return lambda round: lr * factor**round
