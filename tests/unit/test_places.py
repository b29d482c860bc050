"""Places of a leaderboard by hand: means over tasks, worst cases over attacks, and the doubts that they inherit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robustfl.reports.estimate import Estimate, averaged, worst


def place(*values: float, **more: Any) -> Estimate:
    return Estimate(tuple((str(seed), v) for seed, v in enumerate(values)), len(values), **more)


def test_a_mean_over_tasks_is_one_per_seed_that_all_have() -> None:
    found = averaged([place(0.8, 0.6, samples=200), Estimate((("1", 0.25),), 2, samples=50)])
    assert found.values == (("1", 0.425),)
    assert (found.expected, found.samples, found.status) == (2, 50, "ok")


def test_a_mean_over_tasks_is_a_bound_or_dropped_where_a_part_is_and_idle_where_all_are() -> None:
    whole, idle = place(0.8), place(0.8, idle=True)
    assert averaged([whole, place(0.4, bound=True)]).bound
    assert not averaged([whole, whole]).bound
    assert averaged([whole, Estimate(dropped=True)]).status == "dropped"
    assert averaged([idle, idle]).idle
    assert not averaged([whole, idle]).idle


def test_states_of_tasks_are_counted_over_all_their_cells() -> None:
    parts = [Estimate((), 3, (("diverged", 1), ("failed", 1))), Estimate((), 3, (("failed", 2),)), place(0.8, 0.7, 0.6)]
    assert averaged(parts).status == "diverged 1/9, failed 3/9"
    assert averaged(parts).mean is None


def test_a_worst_case_is_the_least_per_seed_of_what_was_attacked() -> None:
    one, other = place(0.8, 0.6, samples=200), place(0.7, 0.9, samples=50)
    found = worst([one, other, Estimate((), 2, dropped=True), replace(place(0.1, 0.1), idle=True)])
    assert [value for _, value in found.values] == [0.7, 0.6]
    assert (found.samples, found.bound) == (50, False)
    assert worst([one, Estimate((), 2, (("failed", 2),))]).bound
