"""Attacks without effect: what is known before training, and what a run and its board say afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_store import record

from robustfl.records import CellResult
from robustfl.reports import load_board
from robustfl.scenarios import Scenario, grid
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.claims_check import false_claims, unexplained
from robustfl.scenarios.effect import effect_warnings, idle_settings, no_effect, scenario_warnings
from robustfl.scenarios.expand import expand, refusal
from robustfl.scenarios.run import run_cell
from robustfl.scenarios.spec import preset_names

SMALL = {"dataset": "digits(limit=200, test_limit=40)", "model": "mlp(hidden=(8,))", "norm": "gn", "rounds": 2,
         "batch": 8, "evasions": []}  # fmt: skip
UNTOLD = "rop(z=0, location=0)"
"""Sends the honest mean, and no name or certificate but the measured shift says so."""


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"attack": "alie", "clients": 10, "f": 2}, True),
        ({"attack": "alie", "clients": 20, "f": 2}, True),
        ({"attack": "alie", "clients": 10, "f": 3}, False),
        ({"attack": "alie(z=1.5)", "clients": 10, "f": 2}, False),
        ({"attack": "alie(z=0)", "clients": 10, "f": 4}, True),
        ({"attack": "alie", "clients": 20, "f": 4, "participation": 0.5, "quota": True}, True),
        ({"attack": "alie", "clients": 20, "f": 4, "participation": 0.5}, False),  # another number every round
        ({"attack": "opt(attack=alie)", "clients": 10, "f": 2}, False),  # searches its strength
        ({"attack": "sf", "clients": 10, "f": 0}, True),
        ({"attack": "label-flip", "clients": 10, "f": 0}, True),
        ({"attack": "sf", "clients": 10, "f": 1}, False),
        ({"attack": "foe(eta=0)", "f": 2}, True),
        ({"attack": "foe(eta=0.1)", "f": 2}, False),
        ({"attack": "none", "clients": 10, "f": 2}, False),
        ({"attack": "sf", "f": 2, "norm": "singlenet"}, True),
        ({"attack": "label-flip", "f": 2, "norm": "singlenet"}, True),
        ({"attack": "timed(attack=sf, start=3)", "f": 2, "rounds": 5}, False),
        ({"attack": "timed(attack=sf, start=3)", "f": 2, "rounds": 5, "stop": 3}, True),
        ({"attack": "sf", "f": 2, "norm": "fedbn"}, False),
        ({"attack": "alie", "clients": 10, "f": 2, "algorithm": "fedavg"}, False),  # it moves the weighted mean
        ({"attack": "alie", "clients": 10, "f": 2, "algorithm": "fedavg(weighting=uniform)"}, True),
    ],
)
def test_what_a_certificate_says_before_training(settings: dict[str, Any], idle: bool) -> None:
    assert (no_effect(Cell.of(settings)) is not None) is idle


def test_a_reason_is_told_once_with_its_cells() -> None:
    cells = [Cell.of({"attack": "alie", "f": 2, "seed": s}) for s in range(3)]
    (words,) = effect_warnings(cells)
    assert words.startswith("alie has no effect with n = 10 and f = 2: its z is 0")
    assert "(3 cells)" in words


@pytest.mark.parametrize(
    ("axes", "cells"),
    [
        ({"norm": ["naive-bn", "gn"]}, 2),
        ({"norm": "gn", "attack": ["sf", "none"], "scope": ["both", "update"]}, 2),
        ({"norm": "gn", "scope": "update"}, 0),
        ({"norm": "fbn"}, 0),
        ({"norm": "gn", "f": 0}, 0),
        ({"norm": "gn", "attack": "label-flip"}, 0),
    ],
)
def test_cells_that_differ_in_a_scope_without_statistics_are_told_of(axes: dict[str, Any], cells: int) -> None:
    settings = {"attack": "sf", "f": 1, "seed": [0, 1], "scope": ["update", "both"], **axes}
    scenario = Scenario.of({"name": "s", "cell": settings})
    told = [words for words in scenario_warnings(scenario, expand(scenario)) if words.startswith("scope changes")]
    expected = f"scope changes nothing: gn sends no statistics, so cells train as others do ({cells} cells)"
    assert told == [expected] * (cells > 0)


AT = {"at": "users(ids=(0, 1))", "norm": "dual-bn(local=true)", "algorithm": "fedavg"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attack": "sf", "f": 2, "scope": "update", "target": "var"}, "leave statistics alone"),
        ({"branch": "clean", "norm": "fbn"}, "fbn has no branches"),
        ({"train_evasion": "fgsm"}, "nobody trains adversarially"),
        ({"quota": True, "f": 0, "participation": 0.5}, "f = 0"),
        ({"attackers_data": "copied", "f": 0}, "f = 0"),
        ({"quota": True, "attack": "sf", "f": 2}, "every client takes part"),
        ({"evaluate_ra": True, "evasions": []}, "evasions = []"),
        ({"evasions": ["pgd(eps=8)"]}, "is eps = 8/255 meant?"),
        ({"evasions": ["fgsm(eps=0)"]}, "fgsm(eps=0) changes no image"),
        ({**AT, "objective": "at", "train_evasion": "pgd(eps=0)"}, "train_evasion: pgd(eps=0) changes no image"),
        ({**AT, "objective": "at", "train_evasion": "fgsm(eps=4)"}, "is eps = 4/255 meant?"),
        ({"tail": 9, "rounds": 5}, "more than 5 rounds"),
        ({"ra_limit": 9, "evasions": []}, "evasions = []"),
        ({"schedule": {"kind": "geometric", "lr": 0.1, "factor": 1.0}}, "factor = 1 changes no rate"),
        ({"clients": 10, "participation": 0.33}, "participation = 0.33 of 10 clients is 3.3; 3 take part"),
        ({"attack": "sf", "f": 2, "defense": "bucketing(s=1)+median"}, "s=1 changes nothing: every bucket is one row"),
        ({"attack": "sf", "f": 2, "norm": "gn", "target": "var"}, "gn sends no statistics"),
        ({"attack": "label-flip", "f": 2, "scope": "statistics"}, "label-flip forges no message"),
        ({"attack": "label-flip", "f": 2, "target": "both"}, "label-flip forges no message"),
        ({"attack": "neurotoxin", "f": 2, "scope": "statistics"}, "forges updates alone"),
        ({"attack": "timed(model-replacement)", "f": 2, "scope": "statistics"}, "forges updates alone"),
        ({"attack": "opt(model-replacement)", "f": 2, "target": "both"}, "forges no statistics"),
        ({"byzantine": "st", "attack": "sf", "f": 2}, "that is everybody"),
        ({"byzantine": "at", "at": "all", "objective": "at"}, "f = 0"),
        ({"at": "all"}, "with objective = 'ce' nobody trains adversarially"),
        ({**AT, "objective": "free-at", "train_evasion": "fgsm"}, "makes adversarial examples of its own"),
        (
            {**AT, "objective": "ce", "branch": "clean", "propagation": "fedrbn"},
            "propagation = 'fedrbn' changes nothing",
        ),
        ({**AT, "norm": "dual-bn", "at": "none"}, "which nobody trains"),
        ({**AT, "norm": "dual-bn(local=true)", "objective": "at"}, "users never train the adversarial branch"),
        ({"norm": "centralised-bn", "defense": "median"}, "is one machine"),
        ({"norm": "singlenet", "defense": "median"}, "with singlenet clients send nothing"),
        ({"norm": "singlenet", "algorithm": "fedadam"}, "its server changes nothing: with singlenet"),
        ({"norm": "dual-bn(share_affine=false)", "branch": "clean"}, "share_affine=False changes nothing"),
    ],
)
def test_a_setting_that_changes_nothing_is_told(settings: dict[str, Any], words: str) -> None:
    told = effect_warnings([Cell.of(settings)] * 2)
    assert any(words in line for line in told)
    assert all(line.endswith("(2 cells)") for line in told)


@pytest.mark.slow
def test_no_preset_has_a_setting_that_changes_nothing() -> None:
    for name in preset_names():
        cells = [cell for cell in expand(Scenario.load(name)) if refusal(cell) is None]
        assert not {words for cell in cells for words in idle_settings(cell)}, name


@pytest.mark.parametrize(("f", "settings"), [(2, {}), (2, {"norm": "naive-bn"}), (2, {"attack": UNTOLD})])
def test_a_run_certifies_it_and_the_measured_shift_agrees(f: int, settings: dict[str, Any]) -> None:
    told = run_cell(Cell.of({**SMALL, "attack": "alie", "f": f, **settings}), fingerprint="x").certificates
    assert told["attack_shift"] < 1e-5
    assert told.get("no_effect", False) is ("attack" not in settings)
    assert run_cell(Cell.of({**SMALL, "attack": "sf", "f": f}), fingerprint="x").certificates["attack_shift"] > 0.1


@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "hbn"])
def test_the_shift_of_the_statistics_is_measured_too(norm: str) -> None:
    cell = {**SMALL, "model": "digits-cnn", "norm": norm, "clients": 5, "f": 1, "dtype": "float64"}
    idle = run_cell(Cell.of({**cell, "attack": "foe(eta=0)"}), fingerprint="x").certificates
    assert max(idle["attack_shift"], idle["statistics_shift"]) < 1e-9
    halved = {**cell, "attack": "foe(eta=0.5)", "scope": "statistics", "target": "both"}
    told = run_cell(Cell.of(halved), fingerprint="x").certificates
    assert told["attack_shift"] == 0
    assert told["statistics_shift"] == pytest.approx(0.1, abs=1e-9)  # one of five sends half of the honest mean
    updates = run_cell(Cell.of({**cell, "attack": "sf", "scope": "update"}), fingerprint="x").certificates
    assert "statistics_shift" not in updates


def test_the_grid_warns_and_its_board_counts_it_in_no_worst_case(tmp_path: Path) -> None:
    heard: list[str] = []
    cell = {**SMALL, "attack": ["none", "sf", "alie", UNTOLD], "f": 2}
    results = grid(Scenario.of({"name": "s", "cell": cell}), out=tmp_path, jobs=0, on_note=heard.append)
    assert [h for h in heard if "no effect" in h] == [
        "warning: alie has no effect with n = 10 and f = 2: its z is 0, so the attackers send the honest mean "
        "(1 cell); they count in no worst case"
    ]
    board = load_board(results.folder)
    row = board.sections[0].rows[0]
    shown = dict(zip(board.attacks, (e.status for e in row.cells), strict=True))
    assert shown == {"none": "ok", "sf": "ok", "alie": "no effect", UNTOLD: "no effect"}
    assert row.worst.values == row.cells[board.attacks.index("sf")].values
    assert "ranked by accuracy under sf (" in board.caption


# --- what records claim ----------------------------------------------------------------------------------------------


def said(status: str = "done", no_effect: bool = False, **settings: Any) -> CellResult:
    made = record(status=status)
    certificates = {"no_effect": True} if no_effect else {}
    return made.model_copy(update={"cell": {"cell": settings}, "certificates": certificates})


KRUM: dict[str, Any] = {"defense": "krum", "attack": "sf", "clients": 10, "f": 4}
"""It takes 11 clients with four attackers."""


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (said(**KRUM), "it says done, where such a cell is refused: krum"),
        (said("diverged", **KRUM), "it says diverged, where such a cell is refused"),
        (said(no_effect=True, attack="sf", f=2), "it says that its attack has no effect, which nothing"),
        (said("refused", **KRUM), None),
        (said(attack="sf", f=2), None),
        (said(attack="alie", f=2, clients=10), None),
        (said(no_effect=True, attack="alie", f=2, clients=10), None),
        (said(no_effect=True, attack="somebody's-own", f=2), None),
    ],
)
def test_what_a_record_claims_of_its_settings_is_held_against_them(claim: CellResult, words: str | None) -> None:
    found = false_claims([claim])
    assert found == [] if words is None else words in found[0]


def test_of_many_false_claims_the_first_are_told() -> None:
    assert len(false_claims([said(**KRUM)] * 5)) == 5
    found = false_claims([said(**KRUM)] * 7)
    assert len(found) == 6
    assert found[-1] == "and 2 more like these"


@pytest.mark.parametrize(
    ("claim", "unknown"),
    [
        (said("refused", **KRUM), False),
        (said("refused", attack="sf", f=2), True),
        (said("refused", attack="somebody's-own"), True),
        (said(attack="sf", f=2), False),
    ],
)
def test_only_a_run_can_tell_of_a_refusal_that_no_setting_explains(claim: CellResult, unknown: bool) -> None:
    assert unexplained(claim) is unknown


def test_a_quota_whose_number_the_defense_is_not_told_is_named() -> None:
    settings = {"clients": 20, "f": 4, "participation": 0.5, "quota": True, "attack": "sf", "defense": "trimmed-mean"}
    (words,) = idle_settings(Cell.of(settings))
    assert words.startswith("quota = true: 2 of 10 attack in every round, and the defense is told f = 4; f_declared=2")
    assert not list(idle_settings(Cell.of({**settings, "f_declared": 2})))
    assert not list(idle_settings(Cell.of({**settings, "defense": "mean"})))


def test_a_refusal_under_partial_participation_names_both_numbers() -> None:
    cell = Cell.of({"clients": 20, "f": 8, "participation": 0.5, "attack": "sf", "defense": "trimmed-mean"})
    assert refusal(cell) == "trimmed-mean: f=8 needs at least 17 clients (2f + 1); of 20 clients a round has 10."
