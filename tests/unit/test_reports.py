"""The leaderboard: statistics over seeds, worst case, ranks, states, blocks, and its written forms."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import scipy.stats
from fake_store import board, grid, place, record, stored

from robustfl.errors import UsageError
from robustfl.records import CellResult, digest
from robustfl.reports import leaderboard, load_board, rank_board, report
from robustfl.reports.board import Board, Row, in_words
from robustfl.reports.captions import setting
from robustfl.reports.frame import frame, label_columns, samples_of
from robustfl.reports.recipe import scenario_toml
from robustfl.reports.site.pages import entries
from robustfl.reports.store import Store
from robustfl.reports.tables import FORMS, to_csv, to_html, to_json, to_latex, to_markdown, to_text
from robustfl.reports.tables import latex_escape as escape
from robustfl.reports.writing import publish_store


def rows(made: Board, metric: str = "sa") -> dict[str, Row]:
    return {r.labels[0]: r for r in next(s for s in made.sections if s.metric == metric).rows}


def cells(defense: str, **sa: list[float]) -> list[CellResult]:
    return [record(defense=defense, attack=a, seed=i, sa=v) for a, vs in sa.items() for i, v in enumerate(vs)]


# --- statistics ------------------------------------------------------------------------------------------------------


FIVE = (0.8, 0.82, 0.84, 0.86, 0.88)
IDLE = {"attack_shift": 3e-8, "statistics": 0}


def test_below_five_seeds_the_lowest_and_the_highest_are_shown() -> None:
    assert place(0.8, 0.9).text() == "85.0 (80.0–90.0)"
    assert place(0.8, 0.9).interval is None
    assert place(*FIVE[:4]).text() == "83.0 (80.0–86.0)"
    assert place(0.8, 0.9).told() == "seed 0: 80.0, seed 1: 90.0"


def test_from_five_seeds_on_there_is_an_interval_by_hand() -> None:
    """Without a table to borrow from: Student's interval on the logit scale around the logit of the mean."""
    logits = [math.log(v / (1 - v)) for v in FIVE]
    half = scipy.stats.t.ppf(0.975, 4) * pd.Series(logits).std() / math.sqrt(5)
    centre = math.log(0.84 / 0.16)
    expected = [1 / (1 + math.exp(-centre - sign * half)) for sign in (-1, 1)]
    assert place(*FIVE).interval == pytest.approx(expected, rel=1e-9)
    assert place(*FIVE).text() == f"84.0 [{100 * expected[0]:.1f}, {100 * expected[1]:.1f}]"


@pytest.mark.parametrize("values", [(1.0,) * 5, (0.0,) * 5, (0.0, 1.0, 0.0, 1.0, 1.0), (0.99, 1.0, 1.0, 0.98, 0.4)])
def test_an_interval_holds_its_mean_and_stays_within_a_percentage(values: tuple[float, ...]) -> None:
    found = place(*values, samples=100)
    low, high = found.interval or (math.nan, math.nan)
    assert 0 <= low < high <= 1
    assert found.mean is not None
    assert low <= found.mean <= high


def test_the_error_of_the_test_set_is_stated_apart() -> None:
    assert place(0.5, 0.5, samples=400).test_error == pytest.approx(1.959964 * 0.025)
    assert place(0.5, 0.5).test_error is None
    made = board(*cells("mean", sf=[0.5, 0.6]))
    assert "a test set of 360 images adds up to ±5.2 points (95%)" in " ".join(made.notes)


def test_a_caption_is_one_sentence_and_every_form_has_the_notes_below() -> None:
    made = board(*cells("mean", none=[0.9] * 5, sf=[0.5] * 5), *cells("median", none=[0.9] * 5, sf=[0.6] * 5))
    made = dataclasses.replace(made, notes=(*made.notes, "Tested: so."))
    start, settings = "Mean over 5 seeds [95% interval], ranked by accuracy under sf (", "clients = 10"
    assert made.caption.startswith(start)
    assert made.caption.endswith(").")
    assert settings in made.caption
    assert ". " not in made.caption
    assert not any(note in made.caption for note in made.notes)
    for form in FORMS.values():
        shown = re.sub(r"\s+", " ", re.sub(r"[\\$]|&#x?[0-9a-f]+;", "", form(made)))
        if form is not to_csv:
            assert shown.index("ranked by accuracy under sf") < shown.index("Tested: so.")


@pytest.mark.parametrize(("calm", "recalls", "chance"), [
    (0.12, [0.12] * 10, 0.1),  # within ±3.1 points of the test set, and one
    (0.15, [0.15] * 10, None),
    (0.4, [0.0, 1.0, 0.0], 0.4),  # one class alone is predicted: its share
    (0.4, [], None),  # a board that does not say how many classes there are
])  # fmt: skip
def test_a_row_at_chance_without_attack_is_named_and_never_bold(
    calm: float, recalls: list[float | None], chance: float | None
) -> None:
    learned = cells("median", none=[0.9] * 5, sf=[0.05] * 5)
    metrics = {"per_class": {"sa": recalls}}
    found = [record(attack=a, seed=s, sa=calm, metrics=metrics) for a in ("none", "sf") for s in range(5)]
    words = f"chance = {100 * (chance or 0):.3g} %: nothing learned without attack"
    for made, tail in ((board(*found), ". Mean over"), (board(*found, *learned), " by mean")):
        assert rows(made)["mean"].chance == chance
        for form in (to_text, to_markdown, to_html, lambda b: to_latex(b).replace("\\%", "%")):
            assert (words in form(made)) is (chance is not None)
        assert (f"{words}{tail}" in to_latex(made).replace("\\%", "%")) is (chance is not None)
        assert (r"\textbf" in to_latex(made)) is (chance is None and len(rows(made)) == 2)


def test_many_attacks_stand_in_the_notes() -> None:
    made = board(*cells("mean", **{f"a{i}": [0.5] for i in range(9)}))
    assert "worst case over 9 attacks" in made.caption
    assert "Worst case over a0, a1, a2, a3, a4, a5, a6, a7 and a8." in made.notes
    few = board(*cells("mean", none=[0.5], a=[0.5], b=[0.4]))
    assert "worst case over a and b" in few.caption
    assert not any(note.startswith("Worst case") for note in few.notes)


def test_a_caption_names_per_metric_the_attacks_that_count_in_it() -> None:
    still = record(attack="sf", sa=0.9, ra={"pgd": 0.2}, certificates=IDLE)  # on SA; below all others in RA
    others = [record(attack="none", sa=0.9), record(attack="foe", sa=0.5, ra={"pgd": 0.4})]
    ranked = "ranked by accuracy under foe for SA, each seed's worst case over foe and sf for RA pgd ("
    assert ranked in board(*others, still).caption
    calm = still.model_copy(update={"metrics": others[0].metrics})
    assert "ranked by accuracy without attack (" in board(others[0], calm).caption


def test_one_seed_has_no_interval_and_the_caption_says_so() -> None:
    made = board(record(sa=0.5))
    place = rows(made)["mean"].cells[0]
    assert (place.mean, place.interval, place.seeds, place.text()) == (0.5, None, None, "50.0")
    assert made.caption.startswith("One seed, without interval, ranked by accuracy under ")


def test_a_row_that_lacks_a_cell_does_not_come_first_by_it() -> None:
    """Without foe's second seed the first alone would count, which is the better one."""
    made = board(*cells("mean", sf=[0.8, 0.2], foe=[0.9]), *cells("median", sf=[0.6, 0.6], foe=[0.7, 0.7]))
    found = rows(made)
    assert (found["mean"].worst.text(), found["mean"].rank) == ("≤ 50.0 (20.0–80.0)", None)
    assert (found["median"].worst.mean, found["median"].rank) == (0.6, 1)


def test_the_worst_case_is_the_minimum_per_seed_then_the_mean() -> None:
    made = board(*cells("mean", none=[0.1, 0.1], sf=[0.2, 0.8], foe=[0.6, 0.4]))
    assert rows(made)["mean"].worst.mean == pytest.approx((0.2 + 0.4) / 2)


def test_without_any_attack_the_worst_case_is_the_unattacked_cell() -> None:
    assert rows(board(*cells("mean", none=[0.7])))["mean"].worst.mean == 0.7


def test_ties_share_a_rank_and_the_next_is_skipped() -> None:
    made = board(*cells("mean", sf=[0.5]), *cells("median", sf=[0.5]), *cells("krum", sf=[0.4]))
    assert {d: r.rank for d, r in rows(made).items()} == {"mean": 1, "median": 1, "krum": 3}


def test_each_metric_ranks_by_its_own_worst_case() -> None:
    made = board(
        record(defense="mean", sa=0.9, ra={"pgd": 0.1}), record(defense="median", sa=0.8, ra={"pgd": 0.2})
    )  # fmt: skip
    assert rows(made)["mean"].rank == 1
    assert rows(made, "ra_pgd")["median"].rank == 1


# --- states ----------------------------------------------------------------------------------------------------------


def test_a_divergence_is_shown_ranked_last_and_never_averaged() -> None:
    bad = record(defense="median", attack="sf", seed=1, status="diverged", reason="loss became non-finite in round 7",
                 round=7)  # fmt: skip
    made = board(*cells("mean", sf=[0.1, 0.1], foe=[0.1, 0.1]), *cells("median", sf=[0.9], foe=[0.9, 0.9]), bad)
    row = rows(made)["median"]
    assert row.cells[made.attacks.index("sf")].text() == "diverged 1/2"
    assert row.cells[made.attacks.index("sf")].mean is None
    assert (row.worst.text(), row.rank) == ("diverged 1/2", 2)
    assert made.footnotes == ("diverged: loss became non-finite in round 7 (1 cell)",)


@pytest.mark.parametrize("status", ["refused", "failed"])
def test_an_attack_without_a_number_makes_the_worst_case_a_bound_without_rank(status: str) -> None:
    bad = record(defense="median", attack="sf", status=status, reason="too few clients\nTraceback …")
    made = board(*cells("mean", sf=[0.1], foe=[0.1]), *cells("median", foe=[0.9]), bad)
    row = rows(made)["median"]
    assert row.cells[made.attacks.index("sf")].text() == status
    assert (row.worst.text(), row.rank) == ("≤ 90.0", None)
    assert made.footnotes == (f"{status}: too few clients (1 cell)",)


def test_a_row_that_is_refused_throughout_stays_visible() -> None:
    bad = [record(defense="krum", attack=a, status="refused", reason="krum: f=4") for a in ("sf", "foe")]
    row = rows(board(*cells("mean", sf=[0.1], foe=[0.1]), *bad))["krum"]
    assert (row.worst.text(), row.rank) == ("refused", None)


def test_divergences_that_differ_in_the_round_share_a_footnote() -> None:
    bad = [record(seed=i, status="diverged", reason=f"loss became non-finite in round {i}", round=i) for i in (3, 9)]
    assert board(*bad).footnotes == ("diverged: loss became non-finite in rounds 3–9 (2 cells)",)


# --- rows, blocks, labels --------------------------------------------------------------------------------------------


def test_each_task_has_a_ranking_of_its_own_and_overall_is_their_mean() -> None:
    values = {("a", "sf"): 0.2, ("a", "foe"): 0.6, ("b", "sf"): 0.9, ("b", "foe"): 0.4}
    made = board(*(record(partition=p, attack=a, sa=v) for (p, a), v in values.items()))
    assert made.blocks == ("overall", "a", "b")
    overall = made.select("sa").sections[0].rows[0]
    assert [e.mean for e in overall.cells] == pytest.approx([0.5, 0.55])
    assert overall.worst.mean == pytest.approx((0.2 + 0.4) / 2)


def test_tasks_are_ordered_by_the_numbers_in_their_names() -> None:
    made = board(*(record(partition=f"gamma(gamma={g})") for g in (0.5, 0.01, 0.0)))
    assert made.blocks[1:] == ("γ = 0", "γ = 0.01", "γ = 0.5")


@pytest.mark.parametrize(
    ("axis", "values", "words"),
    [
        ("dataset", ("mnist", "cifar10"), "cifar10"), ("model", ("cnn", "mlp"), "cnn"), ("f", (1, 3), "f = 1"),
        ("clients", (10, 20), "clients = 10"), ("rounds", (5, 20), "rounds = 5"),
        ("participation", (0.1, 1.0), "participation = 0.1"), ("scope", ("both", "update"), "scope = both"),
        ("partition", ("dirichlet(alpha=0.3)", "iid"), "Dirichlet α = 0.3"),
        ("algorithm", ("dsgd", "fedavg"), "dsgd"), ("schedule", ("constant(lr=0.1)", "constant(lr=1)"), None),
    ],
)  # fmt: skip
def test_what_varies_and_is_no_contestant_is_a_task(axis: str, values: tuple[Any, ...], words: str | None) -> None:
    records = [record(defense=d, sa=s, **{axis: v}) for v in values for d, s in (("mean", 0.2), ("median", 0.8))]
    made = board(*records)
    assert made.label_names == ("defense", "norm")
    assert made.task_names == (axis,)
    assert words is None or made.blocks[1] == words
    for section in made.sections:
        assert [(r.labels[0], r.rank) for r in section.rows] == [("median", 1), ("mean", 2)]


@pytest.mark.parametrize("label", ["statistics_defense", "objective", "propagation"])
def test_defenses_of_statistics_objectives_and_propagations_compete(label: str) -> None:
    made = board(record(**{label: "a"}, sa=0.5), record(**{label: "b"}, sa=0.6))
    assert made.label_names[2 if label != "statistics_defense" else 1] == label
    assert made.task_names == ()


def test_settings_of_training_that_each_contestant_has_its_own_of_are_no_task() -> None:
    rates = {"fbn": "constant(lr=0.1)", "gn": "constant(lr=0.01)"}
    made = board(*(record(norm=n, schedule=r, partition=p) for n, r in rates.items() for p in ("iid", "classes(k=2)")))
    assert (made.task_names, made.own_names) == (("partition",), ("schedule",))
    assert {r.labels[1]: r.own for r in made.sections[0].rows} == {n: (r,) for n, r in rates.items()}
    assert "own schedule" in " ".join(made.notes)
    assert "own.schedule" in to_csv(made).splitlines()[0]
    both = board(*(record(norm=n, schedule=r) for n in rates for r in rates.values()))
    assert (both.task_names, both.own_names) == (("schedule",), ())
    tied = board(*(record(norm=n, dataset=d, schedule=f"constant(lr={len(d)})") for n in rates for d in ("a", "bb")))
    assert (tied.task_names, tied.own_names) == (("dataset", "schedule"), ())


def test_a_label_may_be_compared_instead() -> None:
    records = [record(algorithm=a, sa=v) for a, v in (("fedavg", 0.8), ("fedprox", 0.6))]
    made = rank_board(frame(records), compare=["algorithm"])
    assert [(r.labels[2], r.rank) for r in made.sections[0].rows] == [("fedavg", 1), ("fedprox", 2)]


def versions(attack: str, axis: str, *methods: Any) -> list[CellResult]:
    one = record(attack=attack, sa=0.5)
    cells = [{**one.cell, "methods": {axis: method}} for method in methods]
    return [one.model_copy(update={"key": digest(cell), "cell": cell}) for cell in cells]


def test_versions_of_a_defense_compete() -> None:
    steps = [[{"name": "nnm", "version": 1}, {"name": "median", "version": v}] for v in (1, 2)]
    assert "methods.defense.1.version" in board(*versions("alie", "defense", *steps)).label_names


def test_versions_of_an_attack_stand_beside_the_cells_without_one() -> None:
    edited = [{"name": "my", "version": 1, "origin": f"my.py {digest}"} for digest in ("3f", "4e")]
    calm = record(attack="none", sa=0.9)
    made = board(calm, record(attack="sf", sa=0.6), *versions("my", "attack", *edited))
    assert made.task_names == ()
    assert made.attacks == ("none", "my (my.py 3f)", "my (my.py 4e)", "sf")
    assert made.sections[0].rows[0].cells[0].mean == 0.9
    assert not [c for c in made.constants if "methods" in c[0]]
    raised = board(*versions("alie", "attack", *({"name": "alie", "version": v} for v in (1, 2))))
    assert raised.attacks == ("alie (version 1)", "alie (version 2)")


def test_every_version_of_a_plug_in_is_named(tmp_path: Path) -> None:
    edited = [{"name": "my", "version": 1, "origin": f"my.py {digest}"} for digest in ("3f", "4e")]
    records = versions("my", "attack", *edited)
    stored(tmp_path, records)
    made = load_board(tmp_path)
    assert "Plug-ins: attack my: my.py 3f; attack my: my.py 4e." in made.notes[-1]
    needed = [line for line in scenario_toml(records, name="x").splitlines() if "plug-in" in line]
    assert needed == ["# needs plug-in attack my: my.py 3f", "# needs plug-in attack my: my.py 4e"]


def test_a_contestants_page_names_the_versions_of_an_attack() -> None:
    edited = [{"name": "my", "version": 1, "origin": f"my.py {digest}"} for digest in ("3f", "4e")]
    records = versions("my", "attack", *edited)
    assert [e.attack for e in entries(board(*records), records)] == ["my (my.py 3f)", "my (my.py 4e)"]


# --- attacks without effect ------------------------------------------------------------------------------------------


def certified(defense: str, attack: str, sa: float, seed: int = 0, **certificates: Any) -> CellResult:
    return record(defense=defense, attack=attack, sa=sa, seed=seed, certificates=certificates)


def test_an_attack_without_effect_is_named_and_counts_in_no_worst_case() -> None:
    made = board(certified("mean", "none", 0.9), certified("mean", "quiet", 0.6, **IDLE), certified("mean", "sf", 0.5))
    row = rows(made)["mean"]
    assert row.cells[made.attacks.index("quiet")].text() == "no effect"
    assert (row.worst.mean, row.worst.bound) == (0.5, False)
    assert "no effect: the attack did not move the honest mean" in " ".join(made.notes)
    line = made.select(metric="sa").frame().iloc[0]
    assert (line["quiet"], line["quiet status"]) == (pytest.approx(60.0), "no effect")


def test_a_number_below_all_others_counts_whatever_moved_the_mean() -> None:
    calm = [certified("mean", "none", 0.9, seed) for seed in (0, 1)]
    quiet = [certified("mean", "quiet", 0.2, 0, **IDLE), certified("mean", "quiet", 0.7, 1, **IDLE)]
    row = rows(board(*calm, *quiet, *(certified("mean", "sf", 0.5, seed) for seed in (0, 1))))["mean"]
    assert (row.cells[1].text(), [v for _, v in row.worst.values]) == ("45.0 (20.0–70.0)", [0.2, 0.5])
    lost = record(defense="mean", attack="sf", sa=0.5, status="diverged")
    row = rows(board(calm[0], quiet[0], lost))["mean"]
    assert (row.cells[1].text(), row.worst.status) == ("no effect", "diverged")


@pytest.mark.parametrize(("quiet", "text", "worst"), [(0.5, "no effect", 0.6), (0.45, "45.0", 0.45)])
def test_what_is_not_below_no_attack_has_no_effect_though_the_others_help(
    quiet: float, text: str, worst: float
) -> None:
    made = board(
        certified("mean", "none", 0.5), certified("mean", "quiet", quiet, **IDLE), certified("mean", "sf", 0.6)
    )
    row = rows(made)["mean"]
    assert (row.cells[1].text(), row.worst.mean) == (text, worst)


def test_costs_are_those_without_attack_where_every_row_has_such() -> None:
    took = {("mean", "none"): 1.0, ("mean", "opt"): 9.0, ("krum", "none"): 2.0, ("krum", "opt"): 40.0}
    measured = {k: record(defense=k[0], attack=k[1], seconds_per_round=v) for k, v in took.items()}
    made = board(*measured.values())
    assert [rows(made)[d].seconds_per_round for d in ("mean", "krum")] == [1.0, 2.0]
    assert "Costs: mean seconds per round without attack, highest peak memory." in made.notes
    del measured["krum", "none"]
    made = board(*measured.values())
    assert [rows(made)[d].seconds_per_round for d in ("mean", "krum")] == [5.0, 40.0]
    assert "Costs: mean seconds per round, highest peak memory." in made.notes


@pytest.mark.parametrize(("seeds", "bold"), [(2, 0), (5, 1)])
def test_worst_cases_that_may_be_the_first_are_bold_where_others_may_not(seeds: int, bold: int) -> None:
    low, high = [0.4, 0.41, 0.42, 0.43, 0.44][:seeds], [0.8, 0.81, 0.82, 0.83, 0.84][:seeds]
    made = board(*cells("mean", sf=low), *cells("median", sf=high))
    tables = len(made.sections)
    assert to_markdown(made).count("**") == 2 * bold * tables
    assert to_latex(made).count(r"\textbf{") == bold * tables


def test_too_few_seeds_have_no_p_value() -> None:
    few, enough = (cells("mean", sf=[0.5, 0.6, 0.7][:n]) + cells("median", sf=[0.8, 0.9, 0.9][:n]) for n in (2, 3))
    for made, tested in ((board(*few), False), (board(*enough), True)):
        (found,) = json.loads(to_json(made))["tables"][0]["comparisons"]["rows"]
        assert [found[name] is not None for name in ("p", "adjusted_p")] == [tested] * 2


def test_where_no_attack_has_an_effect_the_worst_case_is_that_of_no_attack() -> None:
    calm = board(certified("mean", "none", 0.9), certified("mean", "quiet", 0.9, **IDLE))
    assert (rows(calm)["mean"].cells[1].text(), rows(calm)["mean"].worst.mean) == ("no effect", 0.9)
    hurt = board(certified("mean", "none", 0.9), certified("mean", "quiet", 0.2, **IDLE))
    assert (rows(hurt)["mean"].cells[1].text(), rows(hurt)["mean"].worst.mean) == ("20.0", 0.2)
    alone = board(certified("mean", "quiet", 0.2, **IDLE))
    assert rows(alone)["mean"].worst.mean == 0.2


@pytest.mark.parametrize(
    ("certificates", "idle"),
    [
        (IDLE, True), ({"no_effect": True}, True), ({"attack_shift": 1e-3, "statistics": 0}, False), ({}, False),
        ({"attack_shift": 0.0, "statistics": 8}, False),  # the statistics may have been forged
        ({"attack_shift": 0.0, "statistics": 8, "statistics_shift": 0.0}, True),
        ({"attack_shift": 0.0, "statistics": 0, "dropped": 12}, False),  # broken rows were dropped
    ],
)  # fmt: skip
def test_only_certificates_say_that_an_attack_had_no_effect(certificates: dict[str, Any], idle: bool) -> None:
    made = board(certified("mean", "none", 0.9), certified("mean", "alie", 0.9, **certificates))
    assert rows(made)["mean"].cells[1].idle is idle


def test_an_attack_with_an_effect_in_one_seed_has_one() -> None:
    made = board(certified("mean", "sf", 0.2, seed=0, **IDLE), certified("mean", "sf", 0.3, seed=1, attack_shift=0.5))
    assert not rows(made)["mean"].cells[0].idle


def test_the_number_of_images_for_robust_accuracy_is_a_setting_and_no_accuracy() -> None:
    few, more = (record(ra_limit=limit, defense=d) for limit, d in ((50, "mean"), (100, "median")))
    made = board(few, more)
    assert {s.metric for s in made.sections} == {"sa", "ra_pgd"}
    assert made.task_names == ("ra_limit",)
    assert ("ra_limit", "50") in board(few).constants


def test_a_board_says_which_models_were_tested_on_what() -> None:
    plain = record(norm="fbn", metrics={"evaluation": "the global model"})
    own = record(norm="fedbn", metrics={"evaluation": "the users' own models"})
    assert "Tested: the global model." in board(plain).notes
    assert "the global model (fbn); the users' own models (fedbn)" in board(plain, own).notes[-1]


def test_only_settings_with_another_value_than_the_default_are_named_beside_data_set_and_model() -> None:
    made = dataclasses.replace(
        board(record()), constants=(("dataset", "digits"), ("clients", "10"), ("rounds", "50"), ("partition", "iid"),
                                    ("domains", ""), ("ra_limit", "–")),
        defaults={"dataset": "digits", "clients": "10", "rounds": "100", "partition": "iid"},
    )  # fmt: skip
    assert setting(made) == "dataset digits, rounds = 50"


def test_an_unattacked_cell_stands_beside_every_number_of_attackers() -> None:
    made = board(
        record(attack="none", f=0, f_declared=0, sa=0.9),
        record(attack="sf", f=1, f_declared=1, sa=0.8),
        record(attack="sf", f=2, f_declared=2, sa=0.7),
    )
    found = {s.block: s.rows[0].cells[0].mean for s in made.tasks if s.metric == "sa"}
    assert found == {"f = 1": 0.9, "f = 2": 0.9}


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_a_footnote_says_what_the_rule_of_an_unattacked_cell_was_told(form: str) -> None:
    attacked = record(attack="sf", sa=0.5)
    apart = board(record(attack="none", f=0, f_declared=0, sa=0.9), attacked)
    (section,) = (s for s in apart.sections if s.metric == "sa")
    assert [place.notes for place in section.rows[0].places] == [(1,), (), ()]
    assert apart.footnotes == ("none: the rule was told f_declared = 0 (1 cell)",)
    marked = {"text": "90.0 [a]", "markdown": "90.0 <sup>a</sup>", "latex": r"90.0\textsuperscript{a}"}[form]
    told = {"text": "f_declared = 0", "markdown": r"f\_declared = 0", "latex": r"f\_declared = 0"}[form]
    shown = {"text": to_text, "markdown": to_markdown, "latex": to_latex}[form](apart)
    assert marked in shown
    assert told in shown
    assert not board(record(attack="none", f=0, f_declared=3, sa=0.9), attacked).footnotes


def test_success_of_backdoors_is_told_below_the_tables() -> None:
    rates = {"mean": (1.0, 0.5), "krum": (0.02, 0.04)}
    hits = [
        record(defense=d, attack="badnets", seed=s, metrics={"asr": r}) for d in rates for s, r in enumerate(rates[d])
    ]
    made = board(*hits, record())
    words = "ASR, the share of images with the trigger that are taken for its target, in %: badnets: "
    assert f"{words}krum · fbn 3.0, mean · fbn 75.0." in made.notes
    assert not any("ASR" in note for note in board(record()).notes)


def test_means_over_tasks_are_over_those_in_which_an_attack_acts() -> None:
    still = {"attack_shift": 0.0, "statistics_shift": 0.0}
    cells = [record(attack="none", f=f, f_declared=f, sa=0.9) for f in (0, 1, 2)]
    cells += [record(attack="sf", f=f, f_declared=f, sa=sa) for f, sa in ((1, 0.6), (2, 0.4))]
    made = board(*cells)
    overall = next(s for s in made.sections if s.metric == "sa").rows[0]
    assert [place.mean for place in overall.places] == [0.9, 0.5, 0.5]
    words = (
        "over the tasks where the attack has an effect (sf acts in 2 of 3); the mean without attack is over all tasks."
    )
    assert any(note.endswith(words) for note in made.notes)
    idle = record(attack="sf", f=0, f_declared=0, sa=0.9, certificates=still)
    overall = next(s for s in board(*cells, idle).sections if s.metric == "sa").rows[0]
    assert [place.mean for place in overall.places] == [0.9, 0.5, 0.5]
    bitten = record(attack="sf", f=0, f_declared=0, sa=0.2)
    overall = next(s for s in board(*cells, bitten).sections if s.metric == "sa").rows[0]
    assert overall.worst.mean == pytest.approx(0.4)
    assert not any("leaves out" in words for words in board(*cells, bitten).notes)


def test_a_row_with_fewer_seeds_than_others_of_its_task_says_so() -> None:
    cells = [record(defense="mean", seed=seed, sa=0.5) for seed in range(5)]
    cells += [record(defense="median", seed=seed, sa=0.6) for seed in range(2)]
    made = board(*cells)
    (section,) = (s for s in made.sections if s.metric == "sa")
    shown = {row.labels[0]: row.worst.text(spread=False) for row in section.rows}
    assert shown == {"mean": "50.0", "median": "60.0 2/5"}
    assert made.caption.startswith("Mean over 2 to 5 seeds")
    assert "k/n: k of n seeds." in made.notes
    assert board(*cells[:5]).caption.startswith("Mean over 5 seeds")


def test_cells_with_equal_labels_and_different_settings_are_told_apart() -> None:
    first = record(sa=0.2)
    cell = {"cell": {**first.cell["cell"], "rounds": 5}}
    second = record(sa=0.8).model_copy(update={"key": "ab", "cell": cell})
    table = frame([first, second])
    assert "cell.cell.rounds" in table
    assert {s.block: s.rows[0].worst.mean for s in rank_board(table).tasks if s.metric == "sa"} == {
        "cell.rounds = 5": 0.8, "cell.rounds = –": 0.2,
    }  # fmt: skip


def test_they_are_told_apart_also_where_a_label_is_missing() -> None:
    one, two = record(ra_limit=None), record(ra_limit=None)
    object.__setattr__(two, "cell", {"cell": {**two.cell["cell"], "version": 2}})
    assert len(board(one, two).blocks) == 3


@pytest.mark.parametrize("apart", [{"origin": "rule-x.py 2"}, {"version": 3}])
def test_seeds_of_two_codes_of_one_name_are_no_seeds_of_one(apart: dict[str, Any]) -> None:
    def of(seed: int, sa: float, **code: Any) -> Any:
        made, method = (
            record(defense="rule-x", seed=seed, sa=sa),
            {"name": "rule-x", "version": 1, "origin": "rule-x.py 1"},
        )
        return made.model_copy(update={"cell": {**made.cell, "methods": {"defense": [{**method, **code}]}}})

    one = [of(seed, 0.2) for seed in (0, 1)]
    (section,) = (s for s in board(*one, *(of(seed, 0.2) for seed in (2, 3))).tasks if s.metric == "sa")
    assert [row.worst.mean for row in section.rows] == [0.2]
    (section,) = (s for s in board(*one, *(of(seed, 0.8, **apart) for seed in (2, 3))).tasks if s.metric == "sa")
    assert sorted(row.worst.mean for row in section.rows) == [0.2, 0.8]


def test_two_codes_are_told_apart_within_another_method_too() -> None:
    def of(seed: int, origin: str) -> Any:
        made = record(attack="opt(mine)", seed=seed)
        inner = {"name": "mine", "version": 1, "origin": origin}
        methods = {"attack": {"name": "opt", "version": 2, "attack": inner}}
        return made.model_copy(update={"cell": {**made.cell, "methods": methods}})

    assert "cell.methods.attack.attack.origin" not in frame([of(0, "mine.py 1"), of(1, "mine.py 1")])
    assert "cell.methods.attack.attack.origin" in frame([of(0, "mine.py 1"), of(1, "mine.py 2")])


def test_two_cells_that_share_every_label_are_an_error() -> None:
    table = frame([record()])
    with pytest.raises(UsageError, match="two cells"):
        rank_board(pd.concat([table, table]))


def test_the_frame_has_one_row_per_cell_with_labels_metrics_and_certificates() -> None:
    table = frame([record(sa=0.5, ra={"pgd": 0.25}), record(seed=1, status="refused", reason="r")])
    assert list(table["sa"].isna()) == [False, True]
    assert table.loc[0, "ra_pgd"] == 0.25
    assert table.loc[0, "certificates.versions.torch"] == "2.6.0"
    assert "attack" in label_columns(table)
    assert "reason" not in label_columns(table)


# --- the public table ------------------------------------------------------------------------------------------------


def test_the_public_table_is_in_percent_and_a_state_stands_beside_it(tmp_path: Path) -> None:
    stored(tmp_path, [record(attack="sf", sa=0.5), record(attack="foe", status="diverged", reason="x", round=1)])
    table = leaderboard(tmp_path, metric="SA")
    assert table.loc[0, "sf"] == 50.0
    assert math.isnan(table.loc[0, "foe"])
    assert table.loc[0, ["sf status", "foe status", "worst case status"]].tolist() == ["ok", "diverged", "diverged"]
    assert leaderboard(frame([record(sa=0.5)]), metric="ra").loc[0, "worst case"] == 25.0


def test_a_table_that_lacks_the_memory_of_a_cell_is_ranked() -> None:
    table = frame([record(defense="mean"), record(defense="median")]).astype({"peak_memory": "float64"})
    table.loc[0, "peak_memory"] = math.nan
    assert leaderboard(table, metric="sa")["peak memory (MiB)"].tolist() == [
        pytest.approx(math.nan, nan_ok=True),
        200.0,
    ]


def test_columns_of_the_public_table_stay_numbers_whatever_the_states(tmp_path: Path) -> None:
    bad = [record(defense=d, status=s, reason="x") for d, s in (("krum", "refused"), ("cc", "diverged"))]
    stored(tmp_path, [*cells("mean", sf=[0.2, 0.4]), *cells("median", sf=[0.6, 0.8]), *bad])
    table = leaderboard(tmp_path, metric="sa").sort_values("worst case", ascending=False)
    assert table["defense"].tolist()[:2] == ["median", "mean"]
    assert {str(table[c].dtype) for c in ("sf", "worst case", "sf low", "worst case high")} == {"float64"}
    assert table.iloc[0][["sf low", "sf high"]].tolist() == pytest.approx([60.0, 80.0])


def test_a_board_of_some_keys_or_labels_knows_no_other_cells(tmp_path: Path) -> None:
    short, long = (record(rounds=n, sa=n / 100) for n in (5, 20))
    store = stored(tmp_path, [short, long])
    store.describe({"cells": {r.key: dict(r.labels) for r in (short, long, record(rounds=7))}})
    assert load_board(tmp_path).counts == {"done": 2, "missing": 1}
    for made in (load_board(tmp_path, keys={short.key}), load_board(tmp_path, where={"rounds": "5"})):
        assert (made.counts, made.task_names, rows(made)["mean"].worst.mean) == ({"done": 1}, (), 0.05)
    assert len(leaderboard(tmp_path, metric="sa", where={"rounds": "20"})) == 1
    with pytest.raises(UsageError, match="did you mean 'rounds'"):
        load_board(tmp_path, where={"rouds": "5"})


def test_a_wrong_metric_or_block_label_suggests_the_right_one(tmp_path: Path) -> None:
    stored(tmp_path, [record()])
    with pytest.raises(UsageError, match="'ra_pgd'"):
        leaderboard(tmp_path, metric="ra_pdg")
    with pytest.raises(UsageError, match="'norm'"):
        rank_board(frame([record()]), compare=["nrom"])
    with pytest.raises(UsageError, match="cannot compare 'attack': every attack is a column already"):
        rank_board(frame([record()]), compare=["attack"])
    with pytest.raises(UsageError, match="cannot compare 'seed': a row is the mean over its seeds"):
        rank_board(frame([record()]), compare=["seed"])
    with pytest.raises(UsageError, match="no cells"):
        rank_board(frame([record()]).iloc[:0])


# --- written forms ---------------------------------------------------------------------------------------------------

AWKWARD = "my_def|50% & {x}$<b>\\^~#\n2"


def test_markdown_keeps_its_columns_when_names_hold_pipes_and_line_breaks() -> None:
    made = board(record(defense=AWKWARD, attack="a|b"), record(defense="mean", attack="a|b"))
    table = [line for line in to_markdown(made).splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "<b>" not in "".join(table)


def test_latex_knows_greek_letters_and_the_signs_of_labels() -> None:
    assert escape(in_words("partition", "dirichlet(alpha=0.3)")) == r"Dirichlet $\alpha$ = 0.3"
    assert escape("λ θ Σ ε → −1 é") == r"$\lambda$ $\theta$ $\Sigma$ $\varepsilon$ $\to$ $-$1 é"
    assert escape("中 Α") == "? ?"


def test_latex_escapes_special_characters_and_keeps_its_columns() -> None:
    made = board(record(defense=AWKWARD), record(defense="mean", sa=0.1))
    text = to_latex(made)
    line = next(t for t in text.splitlines() if "my" in t)
    assert r"my\_def|50\% \& \{x\}\$\textless{}b\textgreater{}\textbackslash{}\textasciicircum{}" in line
    assert line.replace(r"\&", "").count("&") == 6
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == len(made.sections)


def test_csv_has_one_line_per_place_at_full_precision() -> None:
    made = board(*cells(AWKWARD, sf=[1 / 3, 2 / 3]))
    lines = list(csv.DictReader(io.StringIO(to_csv(made))))
    first = next(x for x in lines if x["metric"] == "sa" and x["attack"] == "sf")
    assert first["defense"] == AWKWARD
    assert float(first["mean"]) == math.fsum([1 / 3, 2 / 3]) / 2
    assert (float(first["lowest"]), float(first["highest"]), first["low"]) == (1 / 3, 2 / 3, "")
    assert first["values"] == f"0:{1 / 3!r} 1:{2 / 3!r}"
    assert (first["status"], first["rank_low"], first["rank_high"]) == ("ok", "1", "1")


def test_json_carries_values_states_and_versions() -> None:
    made = board(record(sa=1 / 3), record(attack="foe", status="failed", reason="Boom: x"))
    data = json.loads(to_json(made))
    row = data["tables"][0]["rows"][0]
    assert data["schema_version"] == 2
    assert data["versions"] == {"torch": "2.6.0"}
    assert row["attacks"]["sf"]["seeds"] == {"0": 1 / 3}
    assert row["attacks"]["foe"]["states"] == {"failed": 1}
    assert data["footnotes"] == {"1": "failed: Boom: x (1 cell)"}


def test_unreadable_files_are_named_below_the_table(tmp_path: Path) -> None:
    store = stored(tmp_path, [record(), record(seed=1)])
    store.path(record().key).write_text("{")
    for form in (to_text, to_markdown, to_latex, to_json):
        assert "truncated or corrupt" in " ".join(form(load_board(tmp_path)).split())


@pytest.mark.slow
def test_reports_and_sites_are_the_same_bytes_whatever_the_hash_seed_and_the_order_of_records(tmp_path: Path) -> None:
    some = [r for r in grid(partitions=["iid"], points=3) if r.labels["attack"] == "sf" and r.labels["norm"] == "gn"]
    cells = [r.model_copy(update={"curve": [p.model_copy(update={"ra": None}) for p in r.curve]}) for r in some]
    code = "import sys; from robustfl.reports import report; report(*sys.argv[1:3], site=sys.argv[3])"
    for out, seed, records in (("a", "1", cells), ("b", "2", cells[::-1])):
        places = [str(tmp_path / out / name) for name in ("s", "report", "site")]
        stored(tmp_path / out / "s", records)
        env = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, *places], check=True, env=env)
    names = {p.name for p in (tmp_path / "a" / "report").iterdir()}
    assert {f"leaderboard.{suffix}" for suffix in FORMS} < names
    assert {n.split("-")[0] for n in names if n.endswith(".png")} == {"heatmap", "curves", "labels", "pareto.png"}
    for name in (p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.slow
def test_no_figure_of_an_older_report_stays(tmp_path: Path) -> None:
    cells = [
        r for r in grid(partitions=["iid"], points=3) if r.labels["norm"] == "gn" and r.labels["defense"] == "mean"
    ]
    stored(tmp_path / "s", cells)
    publish_store(tmp_path / "s")
    before = {p.name for p in (tmp_path / "s" / "report").iterdir()}
    for cell in cells:
        if cell.labels["attack"] == "sf":
            Store(tmp_path / "s").path(cell.key).unlink()
    made = publish_store(tmp_path / "s")
    after = {p.name for p in (tmp_path / "s" / "report").iterdir()}
    assert after == {p.name for p in made.files} | {".written"}
    assert "curves-sa-sf.png" in before - after


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], object]:
    """The files of a report on one cell that measured its robust accuracy once; a setting of the caller's after it."""
    import matplotlib

    item, folder = record(curve=[0.1, 0.2]), tmp_path_factory.mktemp("reported")
    curve = [item.curve[0].model_copy(update={"ra": None}), item.curve[1]]
    stored(folder, [item.model_copy(update={"curve": curve})])
    with matplotlib.rc_context({"axes.titlesize": 31}):
        return [p.name for p in report(folder)], matplotlib.rcParams["axes.titlesize"]


def test_a_robust_accuracy_measured_once_makes_no_curve(reported: tuple[list[str], object]) -> None:
    assert [n for n in reported[0] if n.startswith("curves")] == ["curves-sa-sf.png", "curves-sa-sf.pdf"]


def test_figures_leave_matplotlibs_settings_alone(reported: tuple[list[str], object]) -> None:
    assert reported[1] == 31


def test_reports_do_not_import_torch_and_the_store_does_not_import_pandas() -> None:
    code = (
        "import sys, robustfl.reports, robustfl.reports.store; assert 'pandas' not in sys.modules;"
        "import robustfl.reports.loading, robustfl.reports.tables, robustfl.reports.figures.plots;"
        "from robustfl.reports.figures import clients, curves, summaries;"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_import_no_table_no_plot_and_no_compiler() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import robustfl.scenarios.worker_pool;"
        "slow = {'pandas', 'matplotlib', 'scipy.special', 'torchvision', 'triton', 'torch._dynamo'};"
        "print(*(slow & set(sys.modules) - before))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize(("more", "metric", "count"), [
    ({}, "ra_pgd", 50), ({"domains": "a, b"}, "ra_pgd", 200), ({"domains": "a, b"}, "sa", 1_000),
    ({"domains": "a, b", "samples": 120}, "ra_pgd", 120), ({"samples": 30}, "ra_pgd", 30), ({"samples": 0}, "sa", None),
    ({"certificates.equal_samples": 120.6}, "sa", 120),  # unequal users
    ({"certificates.equal_samples": 120.6, "domains": "a, b", "ra_limit": 20}, "ra_pgd", 80),
    ({"certificates.equal_samples": math.nan}, "sa", 1_000),
])  # fmt: skip
def test_so_many_test_samples_are_behind_a_number(more: dict[str, Any], metric: str, count: int | None) -> None:
    assert samples_of({"samples": 1_000, "ra_limit": 50, "clients": 6, "f": 2, **more}, metric) == count


def test_why_unequal_users_make_a_test_set_smaller_is_said() -> None:
    made, unequal = (record(sa=0.5, ra={}, certificates=more) for more in ({}, {"equal_samples": 120.6}))
    said = "their mean is as uncertain as accuracy on 120 images, not on all 360."
    assert any(said in note for note in rank_board(frame([unequal])).notes)
    assert not any("weigh alike" in note for note in rank_board(frame([made])).notes)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"out": "s/cells"}, "out=.* is among the records of"),
        ({"out": "s/cells/r"}, "out=.* is among the records of"),
        ({"board": "s/cells/b.json"}, "board=.* is among the records of"),
        ({"board": "."}, "board=.* is a folder, where a file is needed"),
        ({"board": "pipe"}, "board=.* is a pipe or a device, where a regular file is needed"),
        ({"site": "s/cells/site"}, "site=.* is among the records of"),
    ],
)
def test_a_report_goes_to_a_place_of_its_own_or_nothing_is_written(
    tmp_path: Path, places: dict[str, str], words: str
) -> None:
    store = stored(tmp_path / "s", [record()])
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=words):
        publish_store(store.folder, figures=False, **{name: tmp_path / place for name, place in places.items()})
    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_others_are_refused_and_ones_own_are_replaced(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", cells("mean", sf=[0.5])).folder
    board, page = tmp_path / "p.txt", tmp_path / "site" / "index.html"
    page.parent.mkdir()
    for file, more in ((board, {"board": board}), (page, {"site": page.parent})):
        file.write_text("precious")
        with pytest.raises(UsageError, match="is there, and not robustfl's"):
            publish_store(store, tmp_path / "out", figures=False, **more)
        assert file.read_text() == "precious"
        file.unlink()
        for _ in range(2):
            publish_store(store, tmp_path / "out", figures=False, **more)
        assert file.read_text() != "precious"


def test_a_report_of_other_contestants_or_numbers_has_a_folder_of_its_own(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", cells("mean", sf=[0.5])).folder
    made = [
        publish_store(store, figures=False, **more) for more in ({}, {"compare": ["algorithm"]}, {"statistic": "tail"})
    ]
    assert len({one.files[0].parent for one in made}) == 3
