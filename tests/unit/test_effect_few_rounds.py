"""What a training ends before it comes to is told, and so is robust accuracy on some classes only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import robustfl
from robustfl.evaluation import limit_doubt
from robustfl.scenarios import Scenario, run_cell
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.effect import effect_warnings, idle_settings, no_effect
from robustfl.scenarios.expand import expand, refusal
from robustfl.scenarios.spec import preset_names

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=40)", "model": "mlp(hidden=(8,))", "norm": "gn", "clients": 5,
    "batch": 8, "dtype": "float64", "evasions": [], "partition": "dirichlet(alpha=1)",
}  # fmt: skip
LOCAL = {"algorithm": "fedavg(local_steps=2)"}
USERS = {**LOCAL, "norm": "dual-bn(local=true)", "at": "users(ids=(0, 1))", "train_evasion": "pgd(steps=1)",
         "propagation": "fedrbn", "defense": "mean"}  # fmt: skip


def rates(*values: float, at: list[int]) -> dict[str, Any]:
    return {"kind": "step", "values": list(values), "milestones": at}


# Per case: what is put on SMALL, what it is the same as, the rounds in which the first differs, the words.
LATE: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({"schedule": rates(0.1, 0.01, at=[3])}, {"schedule": {"lr": 0.1}}, 4, "milestones [3] are never reached"),
    ({**USERS, "objective": "pnc(warmup=3)"}, {**USERS, "objective": "pnc(lam=0)"}, 4, "warmup=3 never ends"),
    ({**LOCAL, "norm": "fedtan-ii(switch_round=3)"}, {**LOCAL, "norm": "fedtan"}, 4, "switch_round=3 is never reached"),
    ({"algorithm": "crfl(local_steps=2, sigma=0.1)"}, {"algorithm": "crfl(local_steps=2, sigma=0)"}, 2,
     "covers no model"),
    ({"algorithm": "fedavgm(local_steps=2)"}, LOCAL, 2, "server_momentum=0.9 changes nothing"),
    ({"algorithm": "fedacg(local_steps=2, beta=0)"}, LOCAL, 2, "server_momentum=0.85 changes nothing"),
    ({"algorithm": "fedavg(local_steps=2, momentum=0.5, keep_momentum=true)"},
     {"algorithm": "fedavg(local_steps=2, momentum=0.5)"}, 2, "keeps a momentum for no round"),
    ({"algorithm": "moon(local_steps=2)"}, LOCAL, 2, "nobody has a previous model"),
    ({**LOCAL, "norm": "hbn(lam=0.5)"}, {**LOCAL, "norm": "hbn"}, 2, "lam=0.5 changes nothing"),
    ({"defense": "flanders", "f_declared": 1}, {"defense": "mean", "f_declared": 1}, 3,
     "nobody is judged before round 3"),
    ({"attack": "poisonedfl(period=3, scale=1, decay=0.1, least=0)", "f": 1, "defense": "median"},
     {"attack": "poisonedfl(period=3, scale=1, decay=1)", "f": 1, "defense": "median"}, 4,
     "decay and period and least change nothing before round 4"),
    ({"schedule": {"kind": "geometric", "factor": 0.5}}, {"schedule": {"lr": 0.1}}, 2, "factor=0.5 changes no rate"),
    ({"attack": "timed(sf, every=2)", "f": 1}, {"attack": "timed(sf, stop=1)", "f": 1}, 3, "no second attack"),
    ({"attack": "timed(sf, stop=2)", "f": 1}, {"attack": "sf", "f": 1}, 3, "stop=2 is never reached"),
    ({"attack": "lazy(period=2)", "f": 1}, {"attack": "lazy", "f": 1}, 3, "period=2 is never over"),
    ({"attack": "neurotoxin(ratio=0.5, scale=1)", "f": 1}, {"attack": "badnets", "f": 1}, 2,
     "ratio=0.5 changes nothing"),
    ({"attack": "rop(location=0.5, reference=0.1)", "f": 1}, {"attack": "rop", "f": 1}, 2,
     "location and reference change nothing"),
]  # fmt: skip


def losses(settings: dict[str, Any], rounds: int) -> list[float]:
    """The test loss after every round. Weights of clients are alike: rules beside the mean know none."""
    torch.set_num_threads(1)
    cell = Cell.of({**SMALL, "evaluate_every": 1, **settings, "rounds": rounds, "partition": "iid"})
    record = run_cell(cell, fingerprint="x")
    assert record.status == "done", record.reason
    return [point.loss for point in record.curve]


@pytest.mark.parametrize(("settings", "same", "enough", "words"), LATE, ids=[words for *_, words in LATE])
def test_what_too_few_rounds_never_come_to_is_told_and_changes_nothing(
    settings: dict[str, Any], same: dict[str, Any], enough: int, words: str
) -> None:
    few = enough - 1
    told, silent = (list(idle_settings(Cell.of({**SMALL, **settings, "rounds": r}))) for r in (few, enough))
    assert [line for line in told if words in line] == told
    assert len(told) == 1
    assert silent == []
    assert losses(settings, few) == pytest.approx(losses(same, few), rel=1e-9)
    assert losses(settings, enough) != pytest.approx(losses(same, enough), rel=1e-9)


def test_a_target_that_is_never_final_is_told() -> None:
    attacks = {w: {**SMALL, "attack": f"mimic(variant=variance, warm_up={w})", "f": 1, "rounds": 4} for w in (3, 4, 10)}
    told = {w: list(idle_settings(Cell.of(settings))) for w, settings in attacks.items()}
    assert [len(lines) for lines in told.values()] == [0, 1, 0]  # ten rounds are the usual warm-up
    assert "warm_up=4 never ends" in told[4][0]


@pytest.mark.parametrize(("when", "lines"), [("round", 0), ("test", 1)])
def test_an_attacker_who_never_sent_anything_has_no_old_message(when: str, lines: int) -> None:
    told = list(idle_settings(Cell.of({
        **SMALL, "norm": "dual-bn(local=true)", "objective": "at", "at": "users(ids=(0, 1))", "byzantine": "at", "f": 1,
        "propagation": f"fedrbn(when={when})", "algorithm": "fedavg", "attack": "lazy", "scope": "statistics",
    })))  # fmt: skip
    assert len([line for line in told if "no old message yet" in line]) == lines
    assert not told or "handed on for tests alone" in told[0]


def test_flanders_forgets_from_the_round_that_is_told() -> None:
    """With a window of 3 before the fifth round, the first that four others came before."""
    windows, kept = (3, 9), {}
    for window in windows:
        rule, state = robustfl.defense(f"flanders(window={window}, steps=2)"), None
        for t in range(4):
            rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(t))
            _, state = rule.stateful(rows, f=1, state=state, generator=torch.Generator().manual_seed(0))
            kept[window, t] = max(len(value) for name, value in state.items() if name not in ("columns", "clients"))
    assert [kept[3, t] == kept[9, t] for t in range(4)] == [True, True, True, False]
    told = {r: list(idle_settings(Cell.of({"defense": "flanders(window=3)", "rounds": r}))) for r in (4, 5)}
    assert [len(lines) for lines in told.values()] == [1, 0]
    assert "window=3 is never full" in told[4][0]


def test_a_replay_in_the_first_round_is_told() -> None:
    lazy = {"attack": "lazy(source=aggregate)", "f": 1}
    told, silent = (list(idle_settings(Cell.of({**SMALL, **lazy, "rounds": r}))) for r in (1, 2))
    assert [("no old message" in told[0], len(told)), silent] == [(True, 1), []]
    assert losses(lazy, 1) == pytest.approx(losses({}, 1), rel=1e-12)


def test_robust_accuracy_on_the_way_of_a_training_that_is_not_looked_at_on_the_way_is_told() -> None:
    asked = {"evaluate_ra": True, "evasions": ["fgsm"], "rounds": 5}
    told = {e: list(idle_settings(Cell.of({**asked, "evaluate_every": e}))) for e in (0, 2, 5)}
    assert [len(lines) for lines in told.values()] == [0, 0, 1]
    assert "evaluate_ra = true changes nothing: of 5 rounds only the last is evaluated" in told[5][0]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attack", "lazy(period=3)"), ("defense", "flanders"), ("algorithm", "fedavgm(local_steps=1)"),
        ("algorithm", "crfl(local_steps=1)"), ("objective", "pnc(warmup=3)"),
    ],
)  # fmt: skip
def test_a_pilot_that_stops_before_a_method_does_anything_is_told(setting: str, value: str) -> None:
    base = {**SMALL, "f": 1, setting: value} | (
        {"norm": "dual-bn(local=true)", "at": "ratio(rho=0.5)"} if setting == "objective" else {}
    )
    begins = f"{setting} = "
    whole, one, pilot = (
        [words for words in idle_settings(Cell.of({**base, **rounds})) if words.startswith(begins)]
        for rounds in ({"rounds": 8}, {"rounds": 1}, {"rounds": 8, "stop": 1})
    )
    assert whole == []
    assert len(one) == 1
    assert pilot == one


def test_a_pilot_has_the_schedule_and_the_phases_of_the_whole_training() -> None:
    pilot = Cell.of({**SMALL, "norm": "fixbn", "rounds": 8, "stop": 1,
                     "schedule": {"kind": "step", "values": [0.1, 0.2], "milestones": [4]}})  # fmt: skip
    assert list(idle_settings(pilot)) == []


def test_a_switch_of_fixbn_at_the_end_is_told() -> None:
    told = {s: list(idle_settings(Cell.of({"norm": f"fixbn(switch={s})", "rounds": 10}))) for s in (0.9, 0.95, 1)}
    assert {s: len(lines) for s, lines in told.items()} == {0.9: 0, 0.95: 0, 1: 1}
    assert "it is naive-bn" in told[1][0]


def test_statistics_that_are_frozen_before_the_first_round_cannot_be_attacked() -> None:
    settings = {**SMALL, "f": 1, "attack": "sf", "scope": "statistics"}
    first, later = (Cell.of({**settings, "norm": f"fixbn(switch={s})", "rounds": 2}) for s in (0, 0.5))
    assert "mean 0 and variance 1, or a file's" in next(iter(idle_settings(first)))
    assert "sends no statistics in 2 rounds" in str(no_effect(first))
    assert (list(idle_settings(later)), no_effect(later)) == ([], None)
    calm = Cell.of({**SMALL, "f": 1, "norm": "fixbn(switch=0)", "rounds": 2})
    losses = [run_cell(cell, fingerprint="x").metrics.loss for cell in (first, calm)]  # type: ignore[union-attr]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_share_for_validation_that_keeps_nothing_is_told() -> None:
    told = {}
    for share in (0.001, 0.2):
        warnings = run_cell(Cell.of({**SMALL, "validation": share, "rounds": 1}), fingerprint="x").certificates[
            "warnings"
        ]
        told[share] = any("keeps none of any client" in words for words in warnings)
    assert told == {0.001: True, 0.2: False}


def test_fldetector_judges_from_the_round_that_is_told() -> None:
    """With a window of 2 in the fourth round, when everybody has two scores."""
    rule, state, judged = robustfl.defense("fldetector(window=2)"), None, []
    for t in range(6):
        rows = torch.tensor([[4.0], [4.1], [3.9], [4.05]]) * 0.5**t
        rows[3] *= (-1) ** t
        vector, state = rule.stateful(rows, f=1, state=state, generator=torch.Generator().manual_seed(t))
        judged.append(not torch.allclose(vector, rows.mean(0)))
    first = judged.index(True) + 1
    told = {r: list(idle_settings(Cell.of({"defense": "fldetector(window=2)", "rounds": r}))) for r in (3, 4)}
    assert first >= 4
    assert "nobody before round 4" in told[3][0]
    assert told[4] == []


@pytest.mark.parametrize("attack", ["sf", "badnets"])
def test_an_attack_that_never_begins_has_no_effect(attack: str) -> None:
    settings = {**SMALL, "f": 1, "rounds": 2}
    late, once = (Cell.of({**settings, "attack": f"timed(attack={attack}, start={s})"}) for s in (2, 1))
    assert no_effect(once) is None
    assert "it does not begin in 2 rounds" in str(no_effect(late))
    assert "count in no worst case" in effect_warnings([late])[0]
    certificates = run_cell(late, fingerprint="x").certificates
    assert certificates["no_effect"] is True
    assert "no_effect" not in run_cell(once, fingerprint="x").certificates


def test_selection_among_one_round_and_short_products_of_float64_are_told() -> None:
    chosen = {"select": "validation", "validation": 0.2, "rounds": 5}
    told = {e: list(idle_settings(Cell.of({**chosen, "evaluate_every": e}))) for e in (2, 5, 9)}
    assert [len(lines) for lines in told.values()] == [0, 1, 1]
    assert not list(idle_settings(Cell.of({**chosen, "evaluate_every": 9, "tail": 2})))
    assert "dtype = 'float64'" in next(iter(idle_settings(Cell.of({"precision": "tf32", "dtype": "float64"}))))
    assert not list(idle_settings(Cell.of({"precision": "tf32"})))


def test_no_scale_of_a_preset_has_a_setting_that_changes_nothing() -> None:
    """But for a bound on images under attack where the scale attacks none: a scale cannot take settings away."""
    for name in preset_names():
        for scale in Scenario.load(name).scales:
            cells = expand(Scenario.load(name, settings=[f"scale={scale}"]))
            told = {words for cell in cells if refusal(cell) is None for words in idle_settings(cell)}
            assert not {words for words in told if not words.startswith("ra_limit")}, (name, scale)


# --- which images are attacked ---------------------------------------------------------------------------------------


def test_classes_that_a_random_part_would_hold_are_missed() -> None:
    ordered = torch.arange(10).repeat_interleave(100)
    assert "first 300 of 1000 test images, which lack 7 of 10 classes" in limit_doubt(ordered, 300)
    assert limit_doubt(ordered[torch.randperm(1000, generator=torch.Generator().manual_seed(0))], 300) == ""
    assert limit_doubt(ordered, 1000) == ""
    late = torch.cat([torch.zeros(60, dtype=torch.int64), torch.ones(40, dtype=torch.int64)])
    assert "first 50 of 100 test images, which lack 1 of 2 classes" in limit_doubt(
        late, 50
    )  # 20 of it were to be expected
    assert limit_doubt(late, 49) == ""
    assert limit_doubt(ordered, 50) == ""  # of so few, five of a class, some may well be missing
    assert limit_doubt(torch.cat([torch.zeros(990, dtype=torch.int64), torch.ones(10, dtype=torch.int64)]), 500) == ""


def archive(folder: Path, *, ordered: bool) -> Path:
    """Images of two classes, the test images in the order of their classes or by turns."""
    draws = np.random.default_rng(0)
    y = np.arange(200) % 2
    file = folder / f"{ordered}.npz"
    test_y = np.sort(y) if ordered else y
    x = {f"{part}_x": draws.random((200, 4, 4, 1)).astype(np.float32) for part in ("train", "test")}
    np.savez(file, train_y=y, test_y=test_y, **x)
    return file


@pytest.mark.parametrize("ordered", [True, False])
def test_robust_accuracy_on_some_classes_only_is_told(tmp_path: Path, ordered: bool) -> None:
    file = archive(tmp_path, ordered=ordered)
    settings = {**SMALL, "dataset": f"npz:{file}", "rounds": 1, "evasions": ["fgsm"]}
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for limit, told in ((80, ordered), (None, False)):
        warnings = run_cell(Cell.of({**settings, "ra_limit": limit}), fingerprint="x").certificates["warnings"]
        assert any("lack 1 of 2 classes" in words for words in warnings) is told
        notes = robustfl.evaluate(model, f"npz:{file}", ["fgsm"], ra_limit=limit, batch=30).notes
        assert any("lack 1 of 2 classes" in words for words in notes) is told


def test_a_bound_beyond_the_test_images_is_told(tmp_path: Path) -> None:
    file = archive(tmp_path, ordered=False)
    settings = {**SMALL, "dataset": f"npz:{file}", "rounds": 1, "evasions": ["fgsm"]}
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for limit, told in ((201, True), (200, False)):
        words = "ra_limit = 201 changes nothing: there are 200 test images"
        assert (
            words in run_cell(Cell.of({**settings, "ra_limit": limit}), fingerprint="x").certificates["warnings"]
        ) is told
        assert (words in robustfl.evaluate(model, f"npz:{file}", ["fgsm"], ra_limit=limit, batch=30).notes) is told
