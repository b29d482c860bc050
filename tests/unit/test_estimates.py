"""A dry run times a batch of every network, however many cells there are, and refuses what data refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robustfl.data.partitions import Iid
from robustfl.errors import Refused
from robustfl.scenarios import Cell, RunOptions, Scenario, dry_run, grid
from robustfl.scenarios.dry_run import Estimate, estimate
from robustfl.scenarios.run import run_cell

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=20)", "model": "mlp(hidden=(8,))", "clients": 7, "rounds": 2, "batch": 8,
    "evasions": [],
}  # fmt: skip


def scenario(**axes: Any) -> Scenario:
    return Scenario.of({"name": "s", "cell": {**SMALL, **axes}})


def estimated(tmp_path: Path, **axes: Any) -> Estimate:
    return estimate(scenario(**axes), out=tmp_path, options=RunOptions(jobs=1, device="cpu"))


def test_of_every_network_a_batch_is_timed_and_rounds_of_one_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Cell] = []
    build = dry_run.build
    monkeypatch.setattr(dry_run, "build", lambda cell, **how: built.append(cell) or build(cell, **how))
    axes = {"attack": ["none", "sf", "foe", "alie", "ipm"], "defense": ["mean", "median", "krum", "nnm+median"],
            "norm": ["gn", "fbn"], "f": 1, "seed": [0, 1, 2]}  # fmt: skip
    found = estimated(tmp_path, **axes)
    assert len(found.cells) == 120
    assert all(cell.seconds for cell in found.cells)
    assert [cell.norm for cell in built[:2]] == ["gn", "fbn"]
    assert len(built) == 3
    assert "Rough: from one batch of 2 network(s) and 2 rounds of the smallest cell." in found.note


def test_rounds_that_are_too_much_work_are_not_timed_and_cost_their_images(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dry_run, "SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "train", None)
    monkeypatch.setattr(dry_run.Costs, "_network", lambda self, cell: (dry_run.build(cell), 1.0))
    users = {"at": "users(ids=(0,))", "objective": "at", "train_evasion": "fgsm"}
    fed = {"algorithm": "fedavg(local_steps=3)"}
    tested = 12 * 20 / 3
    for more, seconds in (
        ({}, 2 * 7 * 8), ({"batch": 16}, 2 * 7 * 16), (fed, 2 * 7 * 24), ({**fed, "batch": 16}, 2 * 7 * 48),
        ({**fed, **users}, 2 * 24 * (6 + 1 + 4 / 3)),
    ):  # fmt: skip
        (cell,) = estimated(tmp_path, **more, evaluate_every=1).cells
        assert cell.seconds == pytest.approx(seconds + tested / 4)


def test_each_user_with_a_model_of_its_own_is_tested_on_the_whole_test_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dry_run, "SECONDS", 0.0)
    monkeypatch.setattr(dry_run.Costs, "_network", lambda self, cell: (dry_run.build(cell), 1.0))
    fed = {"algorithm": "fedavg(local_steps=1)", "evasions": ["fgsm"]}
    common, own = (estimated(tmp_path, **fed, norm=norm).cells[0].seconds for norm in ("naive-bn", "fedbn"))
    trained, passes = 2 * 7 * 8, 11 + 4
    assert common == pytest.approx(trained + passes * 20 / 3)
    assert own == pytest.approx(trained + passes * 20 * 7 / 3)
    looked = estimated(tmp_path, **fed, validation=0.5, select="validation", evaluate_every=1, at="all", objective="at",
                       train_evasion="fgsm").cells[0].seconds  # fmt: skip
    assert looked == pytest.approx(trained * (1 + 4 / 3) + (3 * 20 + 4 * 20 + 3 * 100 * 4 + 20 + 4 * 20) / 3)


def test_stored_cells_are_not_estimated(tmp_path: Path) -> None:
    results = grid(scenario(seed=0), out=tmp_path, jobs=0, device="cpu")
    assert results.statuses["done"] == 1
    found = estimated(tmp_path, seed=[0, 1])
    assert [(cell.state, cell.seconds is None) for cell in found.cells] == [("stored", True), ("to run", False)]
    assert estimated(tmp_path, seed=0).note == "No cell is left to run."


@pytest.mark.parametrize(
    ("evasion", "passes"),
    [("fgsm", 4), ("pgd(steps=7)", 22), ("mia(steps=3)", 10)],
)
def test_an_evasion_costs_three_passes_a_step_and_one_to_see_what_it_did(evasion: str, passes: int) -> None:
    assert dry_run.passes(evasion) == passes


def test_an_evasion_that_does_not_tell_its_passes_costs_three_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, passes in (
        ({"steps": 4, "restarts": 2}, 25),
        ({"steps": 4}, 13),
        ({}, 4),
        ({"steps": 4, "passes": 5}, 6),
    ):
        monkeypatch.setattr(dry_run, "method", lambda setting, text, given=given: SimpleNamespace(**given))
        assert dry_run.passes("mine") == passes


# --- refusals that only the data tell --------------------------------------------------------------------------------


@pytest.mark.parametrize(("axes", "words"), [
    ({"batch": [8, 100]}, "batch=100 is larger than client 4's 28 training samples; use batch ≤ 28, or fewer clients"),
    ({"clients": [7, 300]}, "clients=300 are more than the 200 training images"),
    ({"partition": ["iid", "dirichlet(alpha=0.01)"]}, "a larger min_size or mode=equal of dirichlet"),
    ({"partition": ["iid", "dirichlet(alpha=0.01, min_size=9)"], "clients": 20}, "use mode=equal, a smaller min_size"),
    ({"partition": ["iid", "dirichlet(alpha=1, min_size=99)"]}, "min_size ≤ 28 can be met"),
    ({"server_samples": [0, 200]}, "server_samples=200 leaves clients nothing"),
    ({"norm": ["none", "gn(groups=5)"]}, "groups"),
    ({"norm": ["none", "naive-bn"], "algorithm": "fedavg(local_steps=1)", "batch": 1}, "on batches of 1 sample"),
    ({"select": ["last", "validation"], "validation": 0.01, "evaluate_every": 1}, "keeps a sample for validation"),
])  # fmt: skip
def test_a_dry_run_refuses_what_a_run_refuses_for_its_data(axes: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = estimated(tmp_path, **axes)
    assert [cell.state for cell in found.cells] == ["to run", "refused"]
    (reason,) = (cell.reason for cell in found.cells if cell.reason)
    assert words in reason
    record = run_cell(found.cells[1].cell, fingerprint="x")
    assert (record.status, record.reason) == ("refused", reason)


def test_a_dry_run_draws_every_partition_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = []
    split = Iid.split
    monkeypatch.setattr(dry_run.Costs, "__init__", lambda self, *_: None)
    monkeypatch.setattr(dry_run.Costs, "seconds", lambda self, cell: 1.0)
    monkeypatch.setattr(dry_run.Costs, "note", "")
    for name in ("memory", "failed"):
        monkeypatch.setattr(dry_run.Costs, name, 0, raising=False)
    monkeypatch.setattr(Iid, "split", lambda self, *a, **how: drawn.append(how["clients"]) or split(self, *a, **how))
    axes = {"attack": ["none", "sf"], "defense": ["mean", "median"], "batch": [4, 8], "clients": [5, 7], "seed": [0, 1]}
    estimated(tmp_path, **axes, f=1)
    assert sorted(drawn) == [5, 5, 7, 7]


def test_a_dry_run_without_the_data_says_that_it_could_not_look_at_them(tmp_path: Path) -> None:
    found = estimate(scenario(dataset="cifar10"), out=tmp_path, options=RunOptions(root=tmp_path, device="cpu"))
    assert "Partitions were not drawn either: they may leave clients too few images." in found.summary()


def test_a_refusal_that_only_training_tells_is_no_promise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object) -> float:
        raise Refused("too few rows")

    monkeypatch.setattr(dry_run, "train", refused)
    found = estimated(tmp_path, seed=[0, 1])
    assert "A cell could not be timed, and cells like it may be refused: too few rows" in found.summary()
    assert found.untimed == 0
