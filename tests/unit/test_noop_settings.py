"""Attacks and settings that change nothing: what is told before training, and what a run and its board then show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import robustfl
from robustfl.reports import load_board
from robustfl.scenarios import Scenario, grid, run_cell
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import expand
from robustfl.scenarios.noop_settings import (
    SETTINGS,
    cell_warnings,
    facts_of,
    no_effect,
    noop_settings,
    scenario_warnings,
)  # fmt: skip
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.spec import preset_names

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=40)", "model": "mlp(hidden=(8,))", "norm": "gn", "clients": 5,
    "batch": 8, "dtype": "float64", "evasions": [], "partition": "dirichlet(alpha=1)",
}  # fmt: skip
UNTOLD = "rop(z=0, location=0)"
"""Sends the honest mean, and no name or certificate but the measured shift says so."""
TEN = {**SMALL, "clients": 10, "rounds": 2, "partition": "iid"}
LOCAL = {"algorithm": "fedavg(local_steps=2)"}
USERS = {**LOCAL, "norm": "dual-bn(local=true)", "at": "users(ids=(0, 1))", "train_evasion": "pgd(steps=1)",
         "propagation": "fedrbn", "defense": "mean"}  # fmt: skip
AT = {"at": "users(ids=(0, 1))", "norm": "dual-bn(local=true)", "algorithm": "fedavg"}


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
    (words,) = cell_warnings(cells)
    assert words.startswith("alie has no effect with n = 10 and f = 2: its z is 0")
    assert "(3 cells)" in words


def test_one_reason_is_told_of_a_setting() -> None:
    (words,) = noop_settings(Cell.of({"attack": "sf", "f": 2, "norm": "gn", "scope": "update", "target": "var"}))
    assert words == "target = 'var' changes nothing: with scope = 'update' attackers leave statistics alone"


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
    told = [words for words in scenario_warnings(scenario, expand(scenario)) if words.endswith("statistics (2 cells)")]
    expected = f"scope = 'update' changes nothing: gn sends no statistics ({cells} cells)"
    assert told == [expected] * (cells > 0)


def rates(*values: float, at: list[int]) -> dict[str, Any]:
    return {"kind": "step", "values": list(values), "milestones": at}


TUNED = {"clients": 20, "f": 4, "participation": 0.5, "quota": True, "attack": "sf", "defense": "trimmed-mean"}
CHOSEN = {"select": "validation", "validation": 0.2, "rounds": 5}
LOOKED_AT = {"evaluate_ra": True, "evasions": ["fgsm"], "rounds": 5}

# What is set, and the words, or None.
TOLD: list[tuple[dict[str, Any], str | None]] = [
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
    ({"schedule": {"kind": "cosine"}, "rounds": 1}, "schedule: cosine changes no rate in 1 round"),
    ({"clients": 10, "participation": 0.33}, "participation = 0.33 of 10 clients is 3.3; 3 take part"),
    ({"attack": "sf", "f": 2, "defense": "bucketing(s=1)+median"}, "buckets of one row change nothing"),
    ({"attack": "sf", "f": 2, "norm": "gn", "target": "var"}, "gn sends no statistics"),
    ({"attack": "timed(altermin)", "f": 2}, "only its first stage is left; parameters of the others change nothing"),
    ({"attack": "altermin", "f": 2, "algorithm": "fedavg"}, None),
    ({"attack": "label-flip", "f": 2, "scope": "statistics"}, "label-flip forges no message"),
    ({"attack": "label-flip", "f": 2, "target": "both"}, "label-flip forges no message"),
    ({"attack": "neurotoxin", "f": 2, "scope": "statistics"}, "forges updates alone"),
    ({"attack": "timed(model-replacement)", "f": 2, "scope": "statistics"}, "forges updates alone"),
    ({"attack": "opt(model-replacement)", "f": 2, "target": "both"}, "forges no statistics"),
    ({"byzantine": "st", "attack": "sf", "f": 2}, "that is everybody"),
    ({"byzantine": "at", "at": "all", "objective": "at"}, "f = 0"),
    ({"at": "all"}, "with objective = 'ce' nobody trains adversarially"),
    ({**AT, "objective": "free-at", "train_evasion": "fgsm"}, "makes adversarial examples of its own"),
    ({**AT, "objective": "ce", "branch": "clean", "propagation": "fedrbn"}, "propagation = 'fedrbn' changes nothing"),
    ({**AT, "norm": "dual-bn", "at": "none"}, "which nobody trains"),
    ({**AT, "norm": "dual-bn(local=true)", "objective": "at"}, "users never train the adversarial branch"),
    ({"norm": "centralised-bn", "defense": "median"}, "is one machine"),
    ({"norm": "singlenet", "defense": "median"}, "with singlenet clients send nothing"),
    ({"norm": "singlenet", "algorithm": "fedadam"}, "its server changes nothing: with singlenet"),
    ({"norm": "dual-bn(share_affine=false)", "branch": "clean"}, "share_affine=False changes nothing"),
    (TUNED, "quota = true: 2 of 10 attack in every round, and the defense is told f = 4; f_declared=2 tells it"),
    ({**TUNED, "f_declared": 2}, None),
    ({**TUNED, "defense": "mean"}, None),
    (CHOSEN | {"evaluate_every": 2}, None),
    (CHOSEN | {"evaluate_every": 5}, "select = 'validation' changes nothing: of 5 rounds only the last is evaluated"),
    (CHOSEN | {"evaluate_every": 9}, "only the last is evaluated (evaluate_every = 9)"),
    (CHOSEN | {"evaluate_every": 9, "tail": 2}, None),
    (LOOKED_AT | {"evaluate_every": 2}, None),
    (LOOKED_AT | {"evaluate_every": 5}, "evaluate_ra = true changes nothing: of 5 rounds only the last is evaluated"),
    ({"precision": "tf32"}, None),
    ({"precision": "tf32", "dtype": "float64"}, "dtype = 'float64', not float32"),
    ({"norm": "fixbn(switch=0)"}, "freezes the statistics before the first round: mean 0 and variance 1, or a file's"),
    ({"norm": "fixbn(switch=0.95)", "rounds": 10}, None),
    ({"norm": "fixbn(switch=1)", "rounds": 10}, "its switch is never reached in 10 rounds, so it is naive-bn"),
    ({"schedule": rates(0.1, 0.01, at=[9]), "rounds": 9}, "milestones [9] are never reached in 9 rounds"),
    ({"evasions": ["pgd(eps=0.1, steps=3)"]}, "pgd(eps=0.1, steps=3) does not cross its ball"),
]


@pytest.mark.parametrize(("settings", "words"), TOLD)
def test_a_setting_that_changes_nothing_is_told(settings: dict[str, Any], words: str | None) -> None:
    told = cell_warnings([Cell.of(settings)] * 2)
    assert any(words in line for line in told) if words else told == []
    assert all(line.endswith(("(2 cells)", "worst case")) for line in told)


def test_every_rule_about_a_setting_has_an_example() -> None:
    facts = [facts_of(Cell.of(settings)) for settings, words in TOLD if words]
    late = [facts_of(Cell.of({**SMALL, **settings, "rounds": enough - 1})) for settings, _, enough, _ in LATE]
    assert [words for _, when, words in SETTINGS if not any(map(when, [*facts, *late]))] == []


# Per case: what is put on SMALL, what it is the same as, the rounds in which the first differs, the words.
LATE: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({"schedule": rates(0.1, 0.01, at=[3])}, {"schedule": {"lr": 0.1}}, 4, "milestones [3] are never reached"),
    ({**USERS, "objective": "pnc(warmup=3)"}, {**USERS, "objective": "pnc(lam=0)"}, 4, "its warm-up never ends"),
    ({**LOCAL, "norm": "fedtan-ii(switch_round=3)"}, {**LOCAL, "norm": "fedtan"}, 4, "never reached in 3 rounds"),
    ({"defense": "flanders", "f_declared": 1}, {"defense": "mean", "f_declared": 1}, 3,
     "nobody is judged before round 3"),
    ({"schedule": {"kind": "geometric", "factor": 0.5}}, {"schedule": {"lr": 0.1}}, 2, "factor = 0.5 changes no rate"),
]  # fmt: skip


def losses(settings: dict[str, Any], rounds: int) -> list[float]:
    """The test loss after every round. Weights of clients are alike: rules beside the mean know none."""
    torch.set_num_threads(1)
    cell = Cell.of({**SMALL, "evaluate_every": 1, **settings, "rounds": rounds, "partition": "iid"})
    record = run_cell(cell, fingerprint="x")
    assert record.status == "done", record.reason
    return [point.loss for point in record.curve]


@pytest.mark.parametrize(("settings", "same", "enough", "words"), LATE, ids=[words for *_, words in LATE])
def test_what_too_few_rounds_never_come_to_is_told_and_changes_nothing(settings, same, enough, words):
    few = enough - 1
    told, silent = (list(noop_settings(Cell.of({**SMALL, **settings, "rounds": r}))) for r in (few, enough))
    assert told
    assert all(words in line for line in told)
    assert silent == []
    assert losses(settings, few) == pytest.approx(losses(same, few), rel=1e-9)
    assert losses(settings, enough) != pytest.approx(losses(same, enough), rel=1e-9)


def test_fldetector_judges_from_the_round_that_is_told() -> None:
    """With a window of 2 in the fourth round, when everybody has two scores."""
    rule, state, judged = robustfl.defense("fldetector(window=2)"), None, []
    for t in range(6):
        rows = torch.tensor([[4.0], [4.1], [3.9], [4.05]]) * 0.5**t
        rows[3] *= (-1) ** t
        vector, state = rule.stateful(rows, f=1, state=state, generator=torch.Generator().manual_seed(t))
        judged.append(not torch.allclose(vector, rows.mean(0)))
    first = judged.index(True) + 1
    told = {r: list(noop_settings(Cell.of({"defense": "fldetector(window=2)", "rounds": r}))) for r in (3, 4)}
    assert first >= 4
    assert "nobody is judged before round 4" in told[3][0]
    assert told[4] == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("defense", "flanders"), ("objective", "pnc(warmup=3)"),
    ],
)  # fmt: skip
def test_a_pilot_that_stops_before_a_method_does_anything_is_told(setting: str, value: str) -> None:
    base = {**SMALL, "f": 1, setting: value} | (
        {"norm": "dual-bn(local=true)", "at": "ratio(rho=0.5)"} if setting == "objective" else {}
    )
    begins = f"{setting} = "
    whole, one, pilot = (
        [words for words in noop_settings(Cell.of({**base, **rounds})) if words.startswith(begins)]
        for rounds in ({"rounds": 8}, {"rounds": 1}, {"rounds": 8, "stop": 1})
    )
    assert whole == []
    assert len(one) == 1
    assert pilot == one


def test_a_pilot_has_the_schedule_and_the_phases_of_the_whole_training() -> None:
    pilot = Cell.of({**SMALL, "norm": "fixbn", "rounds": 8, "stop": 1,
                     "schedule": {"kind": "step", "values": [0.1, 0.2], "milestones": [4]}})  # fmt: skip
    assert list(noop_settings(pilot)) == []


def test_statistics_that_are_frozen_before_the_first_round_cannot_be_attacked() -> None:
    settings = {**SMALL, "f": 1, "attack": "sf", "scope": "statistics"}
    first, later = (Cell.of({**settings, "norm": f"fixbn(switch={s})", "rounds": 2}) for s in (0, 0.5))
    assert "mean 0 and variance 1, or a file's" in next(iter(noop_settings(first)))
    assert "sends no statistics in 2 rounds" in str(no_effect(first))
    assert (list(noop_settings(later)), no_effect(later)) == ([], None)
    calm = Cell.of({**SMALL, "f": 1, "norm": "fixbn(switch=0)", "rounds": 2})
    losses = [run_cell(cell, fingerprint="x").metrics.loss for cell in (first, calm)]  # type: ignore[union-attr]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("attack", ["sf", "badnets"])
def test_an_attack_that_never_begins_has_no_effect(attack: str) -> None:
    settings = {**SMALL, "f": 1, "rounds": 2}
    late, once = (Cell.of({**settings, "attack": f"timed(attack={attack}, start={s})"}) for s in (2, 1))
    assert no_effect(once) is None
    assert "it does not begin in 2 rounds" in str(no_effect(late))
    assert "ignore them unless" in cell_warnings([late])[0]
    certificates = run_cell(late, fingerprint="x").certificates
    assert certificates["no_effect"] is True
    assert "no_effect" not in run_cell(once, fingerprint="x").certificates


MEANT = {"fedrbn-figure9": "participation = 0.5 of 25"}
"""Presets with a word on a setting that is meant: half of 25 users are in print."""


@pytest.mark.parametrize("scales", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_no_preset_has_a_setting_that_changes_nothing(scales: bool) -> None:
    """But for a bound on images under attack where a scale attacks none: it cannot take settings away."""
    for name in preset_names():
        for settings in [[f"scale={scale}"] for scale in Scenario.load(name).scales] if scales else [[]]:
            cells = [cell for cell in expand(Scenario.load(name, settings=settings)) if refusal(cell) is None]
            told = {words for cell in cells for words in noop_settings(cell)}
            known = MEANT.get(name, "ra_limit" if scales else "nothing")
            assert not {words for words in told if known not in words}, (name, settings)


@pytest.mark.parametrize(("f", "settings"), [(2, {}), (2, {"norm": "naive-bn"}), (2, {"attack": UNTOLD})])
def test_a_run_certifies_it_and_the_measured_shift_agrees(f: int, settings: dict[str, Any]) -> None:
    told = run_cell(Cell.of({**TEN, "attack": "alie", "f": f, **settings}), fingerprint="x").certificates
    assert told["attack_shift"] < 1e-5
    assert told.get("no_effect", False) is ("attack" not in settings)
    assert run_cell(Cell.of({**TEN, "attack": "sf", "f": f}), fingerprint="x").certificates["attack_shift"] > 0.1


@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "hbn"])
def test_the_shift_of_the_statistics_is_measured_too(norm: str) -> None:
    cell = {**TEN, "model": "digits-cnn", "norm": norm, "clients": 5, "f": 1, "dtype": "float64"}
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
    cell = {**TEN, "attack": ["none", "sf", "alie", UNTOLD], "f": 2}
    results = grid(Scenario.of({"name": "s", "cell": cell}), out=tmp_path, jobs=0, on_note=heard.append)
    assert [h for h in heard if "no effect" in h] == [
        "warning: alie has no effect with n = 10 and f = 2: its z is 0, so the attackers send the honest mean "
        "(1 cell); boards ignore them unless they give the lowest accuracy"
    ]
    board = load_board(results.folder)
    row = board.sections[0].rows[0]
    shown = dict(zip(board.attacks, (e.status for e in row.cells), strict=True))
    assert shown == {"none": "ok", "sf": "ok", "alie": "no effect", UNTOLD: "no effect"}
    assert row.worst.values == row.cells[board.attacks.index("sf")].values
    assert "ranked by accuracy under sf (" in board.caption


def test_a_refusal_under_partial_participation_names_both_numbers() -> None:
    cell = Cell.of({"clients": 20, "f": 8, "participation": 0.5, "attack": "sf", "defense": "trimmed-mean"})
    assert refusal(cell) == "trimmed-mean: f=8 needs at least 17 clients (2f + 1); of 20 clients a round has 10."
