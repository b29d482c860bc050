"""Paired tests over seeds and ranks over scenarios: against scipy, by hand, and what may be claimed in words."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence

import pytest
import scipy.stats
from fake_store import record

from robustfl.records import CellResult
from robustfl.reports import rank_board
from robustfl.reports.board import Board
from robustfl.reports.figure_ranks import rank_figures
from robustfl.reports.frame import frame
from robustfl.reports.paired import compare, holm, name_of_test, p_value, seeds_needed
from robustfl.reports.rank_test import critical_difference, groups_within, rank_over_scenarios
from robustfl.reports.writers import to_json, to_latex, to_markdown, to_text


def board(*records: CellResult) -> Board:
    return rank_board(frame(records))


def cells(defense: str, values: Sequence[float], attack: str = "sf", **labels: object) -> list[CellResult]:
    """One place: a value per seed."""
    return [
        record(defense=defense, attack=attack, seed=i, sa=v, ra={}, **labels) for i, v in enumerate(values)
    ]  # fmt: skip


def noisy(level: float, n: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.uniform(-0.02, 0.02) for _ in range(n)]


# --- paired over seeds -----------------------------------------------------------------------------------------------


def test_the_permutation_test_by_hand() -> None:
    # |mean| of (+1, +2, -3) is 0; every one of the 8 sign flips is at least as large
    assert p_value([1.0, 2.0, -3.0]) == 1.0
    # (1, 2, 3): only +++ and --- reach |mean| 2, so 2 of 8
    assert p_value([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    # (1, 2, -0.5): 2.5/3 is reached by +++, ++- and their mirrors, so 4 of 8
    assert p_value([1.0, 2.0, -0.5]) == pytest.approx(4 / 8)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_the_permutation_test_is_the_enumeration_of_all_sign_flips(n: int) -> None:
    differences = noisy(0.01, n, seed=n)
    mean = abs(math.fsum(differences))
    flips = [
        abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=n)
    ]
    expected = sum(v >= mean - 1e-12 for v in flips) / 2**n
    assert p_value(differences) == pytest.approx(expected, abs=1e-12)


def test_many_seeds_use_wilcoxons_test_with_pratts_zeros() -> None:
    differences = [*noisy(0.005, 18, seed=1), 0.0, 0.0]
    expected = scipy.stats.wilcoxon(differences, zero_method="pratt", method="approx").pvalue
    assert name_of_test(20) == "Wilcoxon signed-rank"
    assert p_value(differences) == pytest.approx(expected, rel=1e-12)


def test_equal_rows_and_single_pairs_claim_nothing() -> None:
    assert p_value([0.0, 0.0, 0.0]) == 1.0
    assert p_value([0.5]) == 1.0
    assert p_value([]) == 1.0


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


def test_enough_seeds_name_the_test_n_and_how_many_differ() -> None:
    best, same, worse = noisy(0.9, 8, 1), noisy(0.9, 8, 2), noisy(0.5, 8, 3)
    worse_first = [*cells("mean", worse), *cells("median", [v - 0.0001 for v in best]), *cells("krum", same)]
    found = compare(board(*worse_first).sections[0])
    by_name = {c.labels[0]: c for c in found.results}
    assert by_name["mean"].p == pytest.approx(2 / 2**8)
    assert by_name["mean"].adjusted == pytest.approx(4 / 2**8)
    assert by_name["mean"].significant
    assert (
        "exact sign-flip permutation, two-sided, n = 8 seeds, Holm over 2 comparisons. 1 of 2 differs" in found.verdict
    )


def test_three_seeds_are_too_few_and_the_words_say_what_they_could_reach() -> None:
    found = compare(board(*cells("median", noisy(0.9, 3, 1)), *cells("mean", noisy(0.1, 3, 2))).sections[0])
    assert not any(c.significant for c in found.results)
    assert "n = 3 seeds" in found.verdict
    assert "Too few seeds to claim anything: the smallest adjusted p that n = 3 allows is 0.25" in found.verdict
    assert f"{seeds_needed(1)} seeds could reach 0.05" in found.verdict


def test_one_seed_says_so_and_tests_nothing() -> None:
    found = compare(board(*cells("median", [0.9]), *cells("mean", [0.1])).sections[0])
    assert "too few seeds to claim anything" in found.verdict
    assert [c.test for c in found.results] == ["none"]


def test_rows_that_diverged_are_left_out_and_counted() -> None:
    found = compare(
        board(
            *cells("median", [0.9, 0.8]), *cells("mean", [0.1, 0.2]),
            record(defense="krum", status="diverged", reason="x", round=1),
        ).sections[0]
    )  # fmt: skip
    assert found.left_out == 1
    assert [c.labels[0] for c in found.results] == ["mean"]


@pytest.mark.parametrize("comparisons", [1, 3, 14])
def test_the_seeds_that_are_needed_are_the_fewest_that_can_reach_the_level(comparisons: int) -> None:
    n = seeds_needed(comparisons)
    assert comparisons * 2 / 2**n <= 0.05 < comparisons * 2 / 2 ** (n - 1)


# --- ranks over scenarios --------------------------------------------------------------------------------------------

TABLE = {"median": [0.9, 0.8, 0.7, 0.9, 0.6, 0.8], "krum": [0.8, 0.7, 0.6, 0.8, 0.7, 0.7],
         "mean": [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]}  # fmt: skip


def over_attacks(table: dict[str, list[float]]) -> Board:
    """A board whose scenarios are attacks."""
    return board(*(c for d, vs in table.items() for i, v in enumerate(vs) for c in cells(d, [v], attack=f"a{i}")))


def test_friedmans_test_is_scipys() -> None:
    found = rank_over_scenarios(over_attacks(TABLE), "sa")
    expected = scipy.stats.friedmanchisquare(*TABLE.values())
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert "contestants over 6 scenarios" in found.verdict
    # by hand: 12 · 6 / (3 · 4) · ((7/6)² + (11/6)² + 3² - 3 · 4² / 4) = 10.33; p = exp(-χ²/2)
    assert "χ² = 10.3, p = 0.0057" in found.verdict


def test_mean_ranks_by_hand() -> None:
    found = rank_over_scenarios(over_attacks(TABLE), "sa")
    ranks = dict(zip([n[0] for n in found.names], found.mean_ranks, strict=True))
    # the median is first five times and second once, krum the other way round
    assert ranks == pytest.approx({"median": 7 / 6, "krum": 11 / 6, "mean": 3.0})


def test_the_critical_difference_is_that_of_demsars_table() -> None:
    # q at 5 % in Demšar's table 5: 2.343 for three, 2.728 for five contestants
    assert critical_difference(3, 10) == pytest.approx(2.343 * math.sqrt(3 * 4 / 60), rel=1e-3)
    assert critical_difference(5, 30) == pytest.approx(2.728 * math.sqrt(5 * 6 / 180), rel=1e-3)


def test_groups_join_only_neighbours_within_the_critical_difference() -> None:
    assert groups_within([1.0, 2.0, 3.0], 0.5) == ()
    assert groups_within([1.0, 2.0, 3.0], 1.0) == ((0, 1), (1, 2))
    assert groups_within([1.0, 2.0, 3.0], 2.0) == ((0, 2),)


def test_two_contestants_or_one_scenario_are_no_ranking() -> None:
    two = rank_over_scenarios(over_attacks({k: TABLE[k] for k in ("median", "mean")}), "sa")
    one = rank_over_scenarios(over_attacks({k: v[:1] for k, v in TABLE.items()}), "sa")
    assert (two.names, one.names) == ((), ())
    assert "there are 2 and 6" in two.verdict
    assert "there are 3 and 1" in one.verdict


def test_four_scenarios_are_too_few_to_claim_anything() -> None:
    found = rank_over_scenarios(over_attacks({k: v[:4] for k, v in TABLE.items()}), "sa")
    assert "Too few scenarios to claim anything" in found.verdict


def test_a_contestant_without_a_number_somewhere_is_left_out_and_a_diverged_one_is_last() -> None:
    table = over_attacks(TABLE)
    assert rank_over_scenarios(table, "sa").left_out == ()
    records = [c for d, vs in TABLE.items() for i, v in enumerate(vs) for c in cells(d, [v], attack=f"a{i}")]
    gone = [record(defense="gm", attack=f"a{i}", ra={}) for i in range(5)]
    broke = [record(defense="cc", attack=f"a{i}", status="diverged", reason="x", round=1) for i in range(6)]
    found = rank_over_scenarios(board(*records, *gone, *broke), "sa")
    assert [n[0] for n in found.left_out] == ["gm"]
    assert found.names[-1][0] == "cc"
    assert found.mean_ranks[-1] == 4.0


def test_equal_contestants_have_no_difference() -> None:
    found = rank_over_scenarios(over_attacks(dict.fromkeys(("a", "b", "c"), [0.5] * 6)), "sa")
    assert (found.statistic, found.p) == (0.0, 1.0)
    assert set(found.mean_ranks) == {2.0}


def test_the_figure_names_every_contestant_with_its_mean_rank() -> None:
    ((title, figure),) = rank_figures(over_attacks(TABLE))
    words = " ".join(t.get_text() for t in figure.axes[0].texts)
    assert title == "ranks sa"
    for told in ("median", "1.17", "krum", "1.83", "mean", "3.00", "critical difference 1.35"):
        assert told in words


# --- where people read it --------------------------------------------------------------------------------------------


def test_every_written_form_says_the_test_n_and_what_may_be_claimed() -> None:
    made = board(*cells("median", noisy(0.9, 3, 1)), *cells("mean", noisy(0.1, 3, 2)))
    for form in (to_text, to_markdown, to_latex, to_json):
        said = " ".join(form(made).replace("\\", "").split())
        assert "exact sign-flip permutation, two-sided, n = 3 seeds, Holm over 1 comparison" in said, form
        assert "Too few seeds to claim anything" in said, form
    (table,) = json.loads(to_json(made))["tables"]
    assert table["comparisons"]["reference"]["defense"] == "median"
    assert [(r["row"], r["n"], r["p"]) for r in table["comparisons"]["rows"]] == [(1, 3, 0.25)]


def test_one_row_has_nothing_to_compare_and_no_line() -> None:
    assert "every row against" not in to_text(board(*cells("median", [0.9, 0.8])))
