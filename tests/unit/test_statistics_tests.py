"""Paired tests over seeds and ranks over scenarios: against scipy, by hand, and what may be claimed in words."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import scipy.stats
from fake_store import board, record

from robustfl.autobyz import TITLE, Asked, Ensemble, Member
from robustfl.records import CellResult
from robustfl.reports import moderated_t, rank_board
from robustfl.reports.board import Board
from robustfl.reports.figures.summaries import rank_figures
from robustfl.reports.frame import frame
from robustfl.reports.moderated_t import Array, Prior, interval, logit, p_values, pair_p_values, prior_of, resolution
from robustfl.reports.paired import compare, critical_difference, holm, rank_over_scenarios
from robustfl.reports.table_cell import TableCell, table_prior
from robustfl.reports.tables import to_json, to_latex, to_markdown, to_text


def cells(defense: str, values: Sequence[float], attack: str = "sf", **labels: object) -> list[CellResult]:
    """One place: a value per seed."""
    return [
        record(defense=defense, attack=attack, seed=i, sa=v, ra={}, **labels) for i, v in enumerate(values)
    ]  # fmt: skip


def noisy(level: float, n: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.uniform(-0.02, 0.02) for _ in range(n)]


# --- paired over seeds -----------------------------------------------------------------------------------------------


def test_without_a_table_to_borrow_from_the_test_is_students_paired_test_of_the_logits() -> None:
    """Two rows are one pair, and one variance says nothing about others."""
    first, second = [0.8, 0.82, 0.85, 0.81], [0.7, 0.75, 0.74, 0.69]
    p = pair_p_values(np.array([first, second]), 1000)
    expected = scipy.stats.ttest_rel(scipy.special.logit(first), scipy.special.logit(second)).pvalue
    assert p[0, 1] == p[1, 0] == pytest.approx(expected, rel=1e-9)


def test_the_prior_is_found_again_in_variances_drawn_from_it() -> None:
    """Variances ``s0² d0 / χ²(d0)`` times ``χ²(d) / d``; 20,000 of them, wide margins."""
    draw = np.random.default_rng(0)
    true = 0.3 * 6 / draw.chisquare(6, 20_000)
    found = prior_of(true * draw.chisquare(4, 20_000) / 4, np.full(20_000, 4.0), pooled=math.inf)
    assert found is not None
    assert found.dof == pytest.approx(6, rel=0.2)
    assert found.variance == pytest.approx(0.3, rel=0.1)


def test_variances_that_differ_by_chance_alone_count_as_equal() -> None:
    found = prior_of([0.1, 0.1, 0.1, 0.1], [4, 4, 4, 4], pooled=16)
    assert found is not None
    assert found.dof == math.inf
    assert float(found.moderate(5.0, 4)[0]) == pytest.approx(found.variance)
    assert float(found.moderate(5.0, 4)[1]) == 16


def test_a_moderated_variance_lies_between_its_own_and_the_tables() -> None:
    variance, dof = Prior(dof=6, variance=0.2, pooled=100).moderate(0.8, 4)
    assert float(variance) == pytest.approx((6 * 0.2 + 4 * 0.8) / 10)
    assert float(dof) == 10
    assert float(Prior(dof=6, variance=0.2, pooled=8).moderate(0.8, 4)[1]) == 8  # no more than the table has


def test_the_prior_of_three_variances_by_hand() -> None:
    """Smyth's moments: with four degrees of freedom ψ(2) = 1 - γ and ψ′(2) = π²/6 - 1."""
    variances, gamma = [0.01, 0.3, 9.0], 0.5772156649015329
    e = [math.log(v) - (1 - gamma) + math.log(2) for v in variances]
    mean = sum(e) / 3
    excess = sum((v - mean) ** 2 for v in e) / 2 - (math.pi**2 / 6 - 1)
    found = prior_of(variances, [4, 4, 4], pooled=12)
    assert found is not None
    half = found.dof / 2
    assert float(scipy.special.polygamma(1, half)) == pytest.approx(excess, rel=1e-9)
    assert found.variance == pytest.approx(math.exp(mean + float(scipy.special.digamma(half)) - math.log(half)))
    assert prior_of(variances[:2], [4, 4], pooled=8) is None


def test_an_accuracy_is_at_least_half_a_test_sample_from_the_edge() -> None:
    assert logit([0.0, 0.5, 1.0], 100) == pytest.approx([-math.log(199), 0, math.log(199)])
    assert logit([1.0], None) == pytest.approx([math.log(1999)])  # of 1,000 samples, where a record does not say


def test_seeds_that_agree_are_as_far_apart_as_rounding_to_whole_samples_may_have_left_them() -> None:
    """Around one half a step of 1/m is one of 4/m on the logit scale; uniform within a step: its square by 12."""
    assert resolution([0.5, 0.5], 100) == pytest.approx(0.04**2 / 12)
    assert resolution([0.5, 0.5], None) == pytest.approx(0.004**2 / 12)
    half = scipy.stats.t.ppf(0.975, 4) * math.sqrt(0.04**2 / 12 / 5)
    found = interval([0.5] * 5, prior=None, samples=100, confidence=0.95)
    assert found == pytest.approx((scipy.special.expit(-half), scipy.special.expit(half)))
    edge = scipy.stats.t.ppf(0.975, 4) * math.sqrt(resolution([1.0], 100) / 5)
    found = interval([1.0] * 5, prior=None, samples=100, confidence=0.95)
    assert found == pytest.approx((scipy.special.expit(math.log(199) - edge), 1.0))
    alike = np.array([[0.5] * 3, [0.5] * 3, [0.9] * 3])
    apart = pair_p_values(alike[[0, 2]], 100)[0, 1]
    t = math.log(9) / math.sqrt((resolution([0.5], 100) + resolution([0.9], 100)) / 3)
    assert apart == pytest.approx(2 * scipy.stats.t.sf(t, 2))
    assert pair_p_values(alike[:2], 100)[0, 1] == pytest.approx(1)


def test_a_table_of_pairs_has_no_more_degrees_of_freedom_than_its_rows() -> None:
    """Three pairs of three rows: variances that count as equal, known by 2 · (3 - 1) degrees of freedom."""
    table = np.array([[0.5] * 3, [0.5] * 3, [0.52] * 3])
    near, far = 2 * resolution([0.5], 100), resolution([0.5], 100) + resolution([0.52], 100)
    variance = math.exp((math.log(near) + 2 * math.log(far)) / 3 + 0.5772156649015329)  # ψ(1) = -γ
    t = math.log(0.52 / 0.48) / math.sqrt(variance / 3)
    assert pair_p_values(table, 100)[0, 2] == pytest.approx(2 * scipy.stats.t.sf(t, 4))


def test_rows_are_compared_over_the_seeds_that_both_have() -> None:
    first, second = [0.8, 0.82, 0.85, 0.81], [0.7, math.nan, 0.74, 0.69]
    (p,), (n,) = p_values(np.array([first, second]), 1000, np.array([0]), np.array([1]))
    both = [0, 2, 3]
    expected = scipy.stats.ttest_rel(*(scipy.special.logit([row[i] for i in both]) for row in (first, second))).pvalue
    assert n == 3
    assert p == pytest.approx(expected, rel=1e-9)


def test_what_accuracies_and_their_logits_order_differently_is_not_told_apart() -> None:
    """Four seeds near 1 outweigh the fifth on the scale of logits, and not in the mean."""
    first, second = [0.999] * 4 + [0.5], [0.9975, 0.9975, 0.9976, 0.9974, 0.508]
    assert np.mean(first) < np.mean(second)
    assert pair_p_values(np.array([first, second]), 10_000)[0, 1] == 1.0
    assert pair_p_values(np.array([first, [*second[:4], 0.45]]), 10_000)[0, 1] < 0.05


def simulated(rows: int, seeds: int, draw: np.random.Generator) -> tuple[Array, Array]:
    """Accuracies ``[rows seeds]`` on 1,000 images of rows of equal level and unequal noise, and the rows' means."""
    spread = np.exp(draw.normal(math.log(0.3), 0.8, rows))
    shared = draw.normal(0, 0.2, seeds)
    chance = scipy.special.expit(1.5 + shared + spread[:, None] * draw.normal(size=(rows, seeds)))
    means = scipy.special.expit(1.5 + np.sqrt(spread**2 + 0.04)[:, None] * draw.normal(size=(rows, 4000))).mean(1)
    return draw.binomial(1000, chance) / 1000, means


@pytest.mark.parametrize(("rows", "seeds"), [(3, 3), (12, 3), (6, 5), (12, 5)])
def test_rows_that_do_not_differ_are_seldom_told_apart(rows: int, seeds: int) -> None:
    """5 % of tables would be right; 12 % of 300 is five standard errors above."""
    draw = np.random.default_rng(rows * seeds)
    wrong = 0
    for _ in range(300):
        p = pair_p_values(simulated(rows, seeds, draw)[0], 1000)
        wrong += min(holm(p[np.triu_indices(rows, 1)])) <= 0.05
    assert wrong / 300 < 0.12


@pytest.mark.parametrize(("rows", "best"), [(6, 6), (15, 5), (36, 2)])
def test_a_best_row_is_seldom_told_apart_from_the_first(rows: int, best: int) -> None:
    """The first looks best by chance where several are: 1 to 4 of 100 of these are called worse."""
    draw, out, drawn = np.random.default_rng(7), 0, 60
    for _ in range(drawn):
        levels = np.r_[np.full(best, 0.8), np.full(rows - best, -1.0)][:, None]
        table = scipy.special.expit(levels + draw.normal(0, 0.3, (1, 5)) + draw.normal(0, 0.4, (rows, 5)))
        order = np.argsort(-table.mean(1))
        p = pair_p_values(table[order], 1000)
        out += sum(order[k] < best and adjusted <= 0.05 for k, adjusted in enumerate(holm(p[0, 1:]), 1))
    assert out <= 0.08 * best * drawn


def test_every_measurement_tells_about_variances_once() -> None:
    """Neither a worst case over one attack, nor an attack without effect, is one more."""
    levels = {"mean": 0.4, "median": 0.8, "krum": 0.6}
    attacked = [c for i, (d, v) in enumerate(levels.items()) for c in cells(d, noisy(v, 5, i))]
    clean = [c for i, d in enumerate(levels) for c in cells(d, noisy(0.9, 5, i), attack="none")]
    no_effect = {"no_effect": True}
    idle = [c for i, d in enumerate(levels) for c in cells(d, noisy(0.9, 5, i), attack="foe", certificates=no_effect)]
    assert {r.worst.prior.pooled for r in board(*attacked).sections[0].rows if r.worst.prior} == {3 * 4}
    assert all(r.worst.prior is None for r in board(*attacked[:10]).sections[0].rows)
    alone, beside = board(*attacked, *clean).sections[0], board(*attacked, *clean, *idle).sections[0]
    assert [r.worst.prior for r in beside.rows] == [r.worst.prior for r in alone.rows]
    assert {r.worst.prior.pooled for r in alone.rows if r.worst.prior} == {6 * 4}


@pytest.mark.parametrize("seeds", [5, 10])
def test_intervals_hold_the_mean_about_as_often_as_they_say(seeds: int) -> None:
    """1,800 intervals at 95 %, from tables of six rows; wide margins on both sides."""
    draw, held = np.random.default_rng(seeds), 0
    for _ in range(300):
        table, means = simulated(6, seeds, draw)
        parts = [TableCell(tuple((str(i), float(v)) for i, v in enumerate(r)), seeds, samples=1000) for r in table]
        prior = table_prior(parts)
        for part, mean in zip(parts, means, strict=True):
            low, high = replace(part, prior=prior).interval or (1.0, 0.0)
            held += low <= mean <= high
    assert 0.90 < held / 1800 < 0.985


def test_rows_far_apart_are_told_apart_with_three_seeds_and_not_with_two() -> None:
    def ranges(seeds: int, **how: bool) -> list[tuple[int, int] | None]:
        levels = {"a": 0.9, "b": 0.6, "c": 0.3, "d": 0.29}
        found = frame([c for d, v in levels.items() for c in cells(d, noisy(v, seeds, ord(d)))])
        return [r.ranks for r in rank_board(found, **how).sections[0].rows]

    assert ranges(5, all_pairs=True) == [(1, 1), (2, 2), (3, 4), (3, 4)]
    assert ranges(5) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    for how in ({}, {"all_pairs": True}):
        assert ranges(3, **how)[0] == (1, 1)
        assert ranges(2, **how) == [(1, 4)] * 4


def test_ranges_of_ranks_are_of_the_adjusted_test() -> None:
    levels = {"a": 0.8, "b": 0.785, "c": 0.78, "d": 0.5}
    made = board(*(c for d, v in levels.items() for c in cells(d, noisy(v, 5, 1 + ord(d)))))
    (section,) = [s for s in made.sections if s.metric == "sa"]
    found = {c.labels[0]: c for c in compare(section).results}
    assert (found["b"].p or 1) < 0.045 < 0.06 < (found["b"].adjusted or 0)
    assert [row.ranks for row in section.rows] == [(1, 3), (1, 3), (1, 3), (4, 4)]


def test_ranges_over_all_pairs_are_wider_than_those_against_the_first() -> None:
    levels = {"a": 0.8, "b": 0.785, "c": 0.775, "d": 0.77}
    table = frame([c for d, v in levels.items() for c in cells(d, noisy(v, 5, 28 + ord(d)))])
    against_first, over_all = (rank_board(table, all_pairs=every) for every in (False, True))
    assert [row.ranks for row in against_first.sections[0].rows] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [row.ranks for row in over_all.sections[0].rows] == [(1, 2), (1, 4), (2, 4), (2, 4)]
    assert "Holm over all pairs of the table" in " ".join(over_all.notes)


def test_the_p_values_of_many_rows_are_those_of_all_pairs_with_the_variances_of_neighbors() -> None:
    table, _ = simulated(140, 5, np.random.default_rng(3))
    first, second = np.zeros(139, dtype=np.intp), np.arange(1, 140)
    several, n = p_values(table, 1000, first, second)
    every = pair_p_values(table, 1000)
    assert several == pytest.approx(every[0, 1:])
    assert set(n) == {5}
    pairs = set(zip(*map(np.ndarray.tolist, moderated_t._neighbors(140)), strict=True))
    assert len(pairs) == 140 * 50
    assert {sum(row in pair for pair in pairs) for row in range(140)} == {100}


def test_a_row_that_lacks_seeds_has_its_rank_in_its_range() -> None:
    """The seeds that b lacks are a's bad ones: it is ranked before a, and behind it on the seeds of both."""
    levels = {"a": [0.8, 0.81, 0.82, 0.6, 0.61], "b": [0.76, 0.77, 0.78], "c": [0.5, 0.51, 0.5, 0.49, 0.5]}
    made = board(*(c for d, v in levels.items() for c in cells(d, v)))
    (section,) = [s for s in made.sections if s.metric == "sa"]
    assert [(row.labels[0], row.rank, row.ranks) for row in section.rows] == [
        ("b", 1, (1, 2)), ("a", 2, (1, 2)), ("c", 3, (3, 3)),
    ]  # fmt: skip
    assert compare(section).verdict == (
        "2 of 2 rows differ significantly from the first (3 seeds). 1 of them is ahead on the seeds that both "
        "have: each is ranked by its own."
    )


def test_diverged_rows_share_the_ranks_after_all_others_and_rows_without_rank_have_none() -> None:
    broke = [record(defense=d, status="diverged", reason="x", round=1, ra={}, seed=s) for d in "xy" for s in range(3)]
    gone = [record(defense="z", status="refused", reason="x", ra={}, seed=s) for s in range(3)]
    made = board(*cells("a", noisy(0.9, 3, 1)), *cells("b", noisy(0.3, 3, 2)), *broke, *gone)
    assert {r.labels[0]: r.ranks for r in made.sections[0].rows}["x"] == (3, 4)
    assert made.sections[0].rows[-1].ranks is None


def test_holms_adjustment_by_hand() -> None:
    # sorted 0.005 0.01 0.03 0.04: times 4, 3, 2, 1, made monotone
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_seeds_are_paired_by_their_number_and_not_by_their_place() -> None:
    first = [record(defense="median", seed=s, sa=0.9 + s / 100, ra={}) for s in (0, 1, 2, 3)]
    second = [record(defense="mean", seed=s, sa=0.8 + s / 100, ra={}) for s in (3, 1, 5)]
    found = compare(board(*first, *second).sections[0])
    assert found.reference[0] == "median"
    assert found.results[0].n == 2
    assert found.results[0].difference == pytest.approx(-0.1)


def test_the_words_say_how_many_rows_can_be_told_apart_and_by_how_many_seeds() -> None:
    best, same, worse = noisy(0.9, 8, 1), noisy(0.9, 8, 2), noisy(0.5, 8, 3)
    worse_first = [*cells("mean", worse), *cells("median", best), *cells("krum", same)]
    found = compare(board(*worse_first).sections[0])
    by_name = {c.labels[0]: c for c in found.results}
    assert by_name["mean"].significant
    assert sum(c.significant for c in found.results) == 1
    assert found.verdict == "1 of 2 rows differ significantly from the first (8 seeds)."


@pytest.mark.parametrize(("levels", "words"), [
    ({"median": noisy(0.9, 2, 1), "mean": noisy(0.1, 2, 2)}, "2 seeds in common"),
    ({"median": [0.9], "mean": [0.1]}, "One seed or none in common"),
    ({"median": noisy(0.9, 5, 1), "mean": noisy(0.6, 5, 2), "krum": noisy(0.3, 2, 3)}, "2 seeds in common"),  # fewest
])  # fmt: skip
def test_too_few_seeds_tell_nothing_apart(levels: dict[str, list[float]], words: str) -> None:
    found = compare(board(*(c for name, values in levels.items() for c in cells(name, values))).sections[0])
    assert found.verdict.startswith(f"{words}: too few to tell rows apart")
    assert len(levels) > 2 or not any(c.significant for c in found.results)


def test_rows_that_diverged_or_have_only_a_bound_are_left_out_and_counted() -> None:
    failed = [record(defense="krum", attack="foe", status="failed", reason="x", seed=s, ra={}) for s in range(3)]
    places = {"median": 0.9, "mean": 0.6, "krum": 0.95}
    levels = [(d, a, v) for d, v in places.items() for a in ("sf", "foe") if (d, a) != ("krum", "foe")]
    lost = record(defense="rfa", status="diverged", reason="x", round=1)
    made = board(*(c for d, a, v in levels for c in cells(d, noisy(v, 3, ord(d[0])), a)), *failed, lost).sections[0]
    assert {row.labels[0]: row.ranks for row in made.rows}["krum"] is None
    found = compare(made)
    assert (found.reference[0], found.left_out) == ("median", 2)
    assert [c.labels[0] for c in found.results] == ["mean"]


# --- ranks over scenarios --------------------------------------------------------------------------------------------

TABLE = {"median": [0.9, 0.8, 0.7, 0.9, 0.6, 0.8], "krum": [0.8, 0.7, 0.6, 0.8, 0.7, 0.7],
         "mean": [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]}  # fmt: skip


def cells_of(table: dict[str, list[float]], *, seeds: int = 3) -> list[CellResult]:
    """Cells whose scenarios are attacks, each with as many equal seeds."""
    return [c for d, vs in table.items() for i, v in enumerate(vs) for c in cells(d, [v] * seeds, attack=f"a{i}")]


def over_attacks(table: dict[str, list[float]], *, seeds: int = 3) -> Board:
    return board(*cells_of(table, seeds=seeds))


def test_friedmans_test_is_scipys() -> None:
    found = rank_over_scenarios(over_attacks(TABLE), "sa")
    expected = scipy.stats.friedmanchisquare(*TABLE.values())
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert "contestants over 6 scenarios" in found.verdict
    # by hand: 12 · 6 / (3 · 4) · ((7/6)² + (11/6)² + 3² - 3 · 4² / 4) = 10.33; p = exp(-χ²/2)
    assert "χ² = 10.3, p = 0.0057" in found.verdict
    # the median is first five times and second once, krum the other way round
    ranks = dict(zip([n[0] for n in found.names], found.mean_ranks, strict=True))
    assert ranks == pytest.approx({"median": 7 / 6, "krum": 11 / 6, "mean": 3.0})


def test_contestants_that_are_equal_but_for_rounding_are_equal() -> None:
    seeds = {"mean": [0.7, 0.1, 0.4], "median": [0.4, 0.4, 0.4], "krum": [0.3, 0.5, 0.4]}
    made = board(*(c for d, v in seeds.items() for i in range(5) for c in cells(d, v, attack=f"a{i}")))
    found = rank_over_scenarios(made, "sa")
    assert (found.statistic, found.p, set(found.mean_ranks)) == (0.0, 1.0, {2.0})
    assert "No difference between contestants can be claimed" in found.verdict


def test_a_difference_is_claimed_at_five_percent() -> None:
    table = {"median": [0.9, 0.8, 0.6, 0.1, 0.5, 0.7], "krum": [0.5, 0.6, 0.3, 0.8, 0.2, 0.6],
             "mean": [0.4, 0.1, 0.2, 0.2, 0.3, 0.5]}  # fmt: skip
    for bump, claimed in ((0.0, False), (0.85, True)):
        table["median"][3] = max(bump, 0.1)
        found = rank_over_scenarios(over_attacks(table), "sa")
        assert found.p is not None
        assert (0.05 < found.p < 0.1) is not claimed
        assert ("No difference between contestants can be claimed" in found.verdict) is not claimed


def test_rows_are_told_apart_as_well_as_the_smaller_test_set_allows() -> None:
    values = {"mean": [0.7, 0.71, 0.72, 0.7], "median": [1.0, 1.0, 0.98, 1.0]}
    section = board(*(c for d, v in values.items() for c in cells(d, v))).sections[0]
    for sizes in ((50, 5_000), (5_000, 50)):
        rows = tuple(
            replace(row, worst=replace(row.worst, samples=s)) for row, s in zip(section.rows, sizes, strict=True)
        )
        (found,) = compare(replace(section, rows=rows)).results
        table = np.array([[value for _, value in row.worst.values] for row in rows])
        assert [pair_p_values(table, size)[0, 1] == found.p for size in (50, 5_000)] == [True, False]


def test_of_few_seeds_or_scenarios_nothing_can_be_claimed() -> None:
    for seeds, claimed in ((1, False), (2, False), (3, True)):
        found = rank_over_scenarios(over_attacks(TABLE, seeds=seeds), "sa")
        assert ("Contestants differ" in found.verdict) is claimed
        assert (f"too few seeds, since {seeds} may be luck" in found.verdict) is not claimed
    four = rank_over_scenarios(over_attacks({k: v[:4] for k, v in TABLE.items()}), "sa")
    assert "Nothing can be claimed: too few scenarios, " in four.verdict


def test_of_contestants_with_unequal_seeds_the_fewest_count() -> None:
    fewer = [r for r in cells_of(TABLE) if r.labels["defense"] != "krum" or r.labels["seed"] < 2]
    found = rank_over_scenarios(board(*fewer), "sa")
    assert "too few seeds, since 2 may be luck" in found.verdict


def test_what_nobody_has_a_number_for_is_no_scenario() -> None:
    refused = [record(defense=d, attack="a9", status="refused", reason="x", seed=s) for d in TABLE for s in range(3)]
    found = rank_over_scenarios(board(*cells_of(TABLE), *refused), "sa")
    assert "contestants over 6 scenarios" in found.verdict
    some = rank_over_scenarios(board(*cells_of(TABLE), *refused, *cells("mean", [0.0] * 3, attack="a8")), "sa")
    assert some.left_out == (("krum", "fbn"), ("median", "fbn"))


def test_the_worst_of_several_is_no_scenario_beside_them() -> None:
    table, asked = frame(cells_of(TABLE)), Asked(Ensemble(1, tuple(Member(a) for a in ("a0", "a1", "a2"))))
    with_worst = rank_board(table, autobyz=asked)
    assert TITLE in with_worst.attacks
    assert rank_over_scenarios(with_worst, "sa") == rank_over_scenarios(rank_board(table), "sa")


def test_the_critical_difference_is_that_of_demsars_table() -> None:
    # q at 5 % in Demšar's table 5: 2.343 for three, 2.728 for five contestants
    assert critical_difference(3, 10) == pytest.approx(2.343 * math.sqrt(3 * 4 / 60), rel=1e-3)
    assert critical_difference(5, 30) == pytest.approx(2.728 * math.sqrt(5 * 6 / 180), rel=1e-3)


def test_two_contestants_or_one_scenario_are_no_ranking() -> None:
    two = rank_over_scenarios(over_attacks({k: TABLE[k] for k in ("median", "mean")}), "sa")
    one = rank_over_scenarios(over_attacks({k: v[:1] for k, v in TABLE.items()}), "sa")
    assert (two.names, one.names) == ((), ())
    assert "there are 2 and 6" in two.verdict
    assert "there are 3 and 1" in one.verdict


def test_a_contestant_without_a_number_somewhere_is_left_out_and_a_diverged_one_is_last() -> None:
    table = over_attacks(TABLE)
    assert rank_over_scenarios(table, "sa").left_out == ()
    wrong = TABLE | {"mean": [0.0] * 6}  # a divergence is worse
    records = [c for d, vs in wrong.items() for i, v in enumerate(vs) for c in cells(d, [v], attack=f"a{i}")]
    gone = [record(defense="gm", attack=f"a{i}", ra={}) for i in range(5)]
    broke = [record(defense="cc", attack=f"a{i}", status="diverged", reason="x", round=1) for i in range(6)]
    found = rank_over_scenarios(board(*records, *gone, *broke), "sa")
    assert [n[0] for n in found.left_out] == ["gm"]
    assert [(name[0], rank) for name, rank in zip(found.names, found.mean_ranks, strict=True)][-2:] == [
        ("mean", 3.0), ("cc", 4.0),
    ]  # fmt: skip


def test_the_figure_names_every_contestant_with_its_mean_rank() -> None:
    ((title, figure),) = rank_figures(over_attacks(TABLE))
    axes = figure.axes[0]
    names = [t.get_text() for t in axes.get_yticklabels()]
    heading = figure.get_suptitle()
    assert title == "ranks sa"
    assert [n.split(" ")[0] for n in names] == ["median", "krum", "mean"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is at the top
    assert [t.get_text() for t in axes.texts] == ["1.17", "1.83", "3.00"]
    assert "Friedman p = 0.0057" in heading
    assert "1.35" in heading


def test_no_attack_is_no_scenario_and_neither_is_one_without_effect() -> None:
    records = [c for d, vs in TABLE.items() for i, v in enumerate(vs) for c in cells(d, [v], attack=f"a{i}")]
    calm = [c for d in TABLE for c in cells(d, [0.5], attack="none")]
    quiet = [
        r for d in TABLE for r in cells(d, [0.99], attack="quiet", certificates={"attack_shift": 0.0, "statistics": 0})
    ]  # fmt: skip
    assert rank_over_scenarios(board(*records, *calm, *quiet), "sa").scenarios == tuple(f"a{i}" for i in range(6))
    only = rank_over_scenarios(board(*(r for r in calm)), "sa")
    assert "there are 3 and 1" in only.verdict


def test_ranks_over_scenarios_are_in_their_own_order_and_not_in_the_boards() -> None:
    # "steady" is better in the worst case, "risky" better in two of three scenarios
    table = {"steady": [0.5, 0.5, 0.5], "risky": [0.9, 0.9, 0.1], "bad": [0.05, 0.05, 0.05]}
    found = rank_over_scenarios(over_attacks(table), "sa")
    assert [n[0] for n in found.names] == ["risky", "steady", "bad"]
    assert found.mean_ranks[0] < found.mean_ranks[1]


def test_contestants_equal_everywhere_do_not_differ_and_constant_ones_may() -> None:
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    assert rank_over_scenarios(over_attacks(dict.fromkeys("abc", levels)), "sa").p == 1.0
    constant = rank_over_scenarios(over_attacks({"a": [0.9] * 5, "b": [0.5] * 5, "c": [0.1] * 5}), "sa")
    assert constant.p is not None
    assert constant.p < 0.05


# --- where people read it --------------------------------------------------------------------------------------------


def test_every_written_form_says_the_test_n_and_what_may_be_claimed() -> None:
    made = board(*cells("median", noisy(0.9, 3, 1)), *cells("mean", noisy(0.89, 3, 2)))
    for form in (to_text, to_markdown, to_latex, to_json):
        said = " ".join(form(made).replace("\\", "").split())
        assert "paired over seeds on the logit scale, moderated t, Holm over the rows" in said, form
        assert "0 of 1 rows differ significantly from the first (3 seeds)" in said, form
    (table,) = json.loads(to_json(made))["tables"]
    assert table["comparisons"]["reference"]["defense"] == "median"
    assert [(r["row"], r["n"]) for r in table["comparisons"]["rows"]] == [(1, 3)]
