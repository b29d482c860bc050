"""Learning-rate schedules: functions from the round (from 0) to the learning rate."""

from __future__ import annotations

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


def geometric(lr: float, factor: float) -> Schedule:
    """``lr · factor^round`` (HBN: 0.998).

    >>> round(geometric(0.01, 0.998)(1), 5)
    0.00998
    """
    return lambda round: lr * factor**round
