"""Places of a leaderboard by hand: means over tasks, worst cases over attacks, and the doubts that they inherit."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from fake_store import place, record

from robustfl.reports import rank_board
from robustfl.reports.frame import frame
from robustfl.reports.grouping import spread, varied
from robustfl.reports.moderated_t import resolution
from robustfl.reports.ranking import _disproved, without_effect
from robustfl.reports.table_cell import TableCell, averaged, table_prior, worst


def test_a_mean_over_tasks_is_one_per_seed_that_all_have() -> None:
    found = averaged([place(0.8, 0.6, samples=200), TableCell((("1", 0.25),), 2, samples=50)])
    assert found.values == (("1", 0.425),)
    assert (found.expected, found.samples, found.status) == (2, 50, "ok")


def test_a_mean_over_tasks_is_a_bound_where_a_part_is_and_idle_where_all_are() -> None:
    whole, idle = place(0.8), place(0.8, idle=True)
    assert averaged([whole, place(0.4, bound=True)]).bound
    assert not averaged([whole, whole]).bound
    assert averaged([idle, idle]).idle
    assert not averaged([whole, idle]).idle


def test_states_of_tasks_are_counted_over_all_their_cells() -> None:
    parts = [
        TableCell((), 3, (("diverged", 1), ("failed", 1))),
        TableCell((), 3, (("failed", 2),)),
        place(0.8, 0.7, 0.6),
    ]
    assert averaged(parts).status == "diverged 1/9, failed 3/9"
    assert averaged(parts).mean is None


def test_a_worst_case_is_the_least_per_seed_of_what_was_attacked() -> None:
    one, other = place(0.8, 0.6, samples=200), place(0.7, 0.9, samples=50)
    found = worst([one, other, replace(place(0.1, 0.1), idle=True)])
    assert [value for _, value in found.values] == [0.7, 0.6]
    assert (found.samples, found.bound) == (50, False)
    assert worst([one, TableCell((), 2, (("failed", 2),))]).bound


def test_accuracies_that_round_upwards_tie_with_themselves() -> None:
    made = rank_board(frame([record(defense=d, attack="sf", sa=2 / 3, ra={}) for d in ("krum", "mean")]))
    assert [row.rank for row in made.sections[0].rows] == [1, 1]


def test_a_contestant_that_a_task_lacks_has_no_mean_over_tasks() -> None:
    places = [("krum", 1), ("krum", 2), ("mean", 1)]
    made = rank_board(frame([record(defense=d, attack="sf", f=f, f_declared=f, sa=0.5, ra={}) for d, f in places]))
    overall = {row.labels[0]: row for row in made.sections[0].rows}
    assert overall["krum"].worst.mean == 0.5
    assert overall["mean"].worst.mean is None
    assert overall["mean"].rank is None


def test_an_attack_on_updates_alone_needs_no_shift_of_statistics_to_be_without_effect() -> None:
    cell = {"status": "done", "attack": "sf", "certificates.attack_shift": 0.0, "certificates.statistics": 8}
    assert without_effect({**cell, "scope": "update"})
    assert not without_effect({**cell, "scope": "both"})


def test_the_declared_number_of_attackers_is_an_axis_where_it_differs_from_theirs() -> None:
    assert varied(pd.DataFrame({"f": ["1", "2"], "f_declared": ["1", "2"]})) == ["f"]
    assert varied(pd.DataFrame({"f": ["1", "2", "1"], "f_declared": ["1", "2", "2"]})) == ["f", "f_declared"]


def test_cells_without_attack_that_have_the_attacked_numbers_are_left_where_they_are() -> None:
    cells = [{"attack": attack, "f": f} for attack in ("none", "sf") for f in (1, 2)]
    assert spread(pd.DataFrame(cells)).to_dict("records") == cells
    assert spread(pd.DataFrame([{"attack": "none", "f": 0}, *cells[2:]])).to_dict("records") == cells


def test_an_idle_attack_that_is_below_the_others_by_a_last_bit_stays_idle() -> None:
    others = {"none": place(0.8, 0.8), "sf": place(0.7, 0.7)}
    for below, idle in ((1e-16, True), (0.01, False)):
        found = _disproved({**others, "alie": place(0.7 - below, 0.7 - below, idle=True)})
        assert found["alie"].idle is idle


def test_seeds_that_agree_vary_as_whole_test_samples_do() -> None:
    """Rounding to a share of 50 images hides variances below the one of rounding itself."""
    same = [place(0.5 + 0.02 * i, 0.5 + 0.02 * i, samples=50) for i in range(6)]
    prior = table_prior(same)
    least = min(resolution([v for _, v in p.values], 50) for p in same)
    assert least > 0
    assert prior.variance >= least * (1 - 1e-9)
