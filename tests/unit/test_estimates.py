"""A dry run times a bounded number of rounds and batches, however many cells there are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robustfl.data.partitions import Iid
from robustfl.errors import Refused
from robustfl.scenarios import Cell, RunOptions, Scenario, dry_run, expand, grid
from robustfl.scenarios.dry_run import estimate
from robustfl.scenarios.run import run_cell

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=20)", "model": "mlp(hidden=(8,))", "clients": 7, "rounds": 2, "batch": 8,
    "evasions": [],
}  # fmt: skip


def scenario(**axes: Any) -> Scenario:
    return Scenario.of({"name": "s", "cell": {**SMALL, **axes}})


class Counted:
    """What was built, and of which cells rounds were timed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[Cell] = []
        self.timed: list[Cell] = []
        build, timed = dry_run.build, dry_run.Costs._timed

        def counted(cell: Cell, **options: Any) -> Any:
            self.built.append(cell)
            return build(cell, **options)

        def noted(self_: dry_run.Costs, cell: Cell) -> float:
            self.timed.append(cell)
            return timed(self_, cell)

        monkeypatch.setattr(dry_run, "build", counted)
        monkeypatch.setattr(dry_run.Costs, "_timed", noted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def rounds(cells: Iterable[Cell]) -> dict[Cell, float]:
    listed = list(cells)
    found = dry_run.Costs(RunOptions(device="cpu"), {}).of(listed, lambda done: None)
    return {cell: found[dry_run.kind_of(cell)].round for cell in listed}


def test_of_many_kinds_of_cells_a_few_are_timed_and_all_have_an_estimate(counted: Counted, tmp_path: Path) -> None:
    axes = {"attack": ["none", "sf", "foe", "alie", "ipm"], "defense": ["mean", "median", "krum", "nnm+median"],
            "norm": ["gn", "fbn"], "f": 1, "seed": [0, 1, 2]}  # fmt: skip
    found = estimate(scenario(**axes), out=tmp_path, options=RunOptions(jobs=1, device="cpu"))
    assert len(found.cells) == 120
    assert all(cell.seconds for cell in found.cells)
    assert len(counted.timed) == dry_run.MOST_TIMED
    assert {cell.norm for cell in counted.timed[:2]} == {"gn", "fbn"}  # every shape before a second of one
    assert len(counted.built) == dry_run.MOST_TIMED + 2  # the networks
    assert f"Timed: 2 rounds of {dry_run.MOST_TIMED} of 40 kind(s) of cells, and a batch of 1 network(s)" in found.note


def test_what_is_too_much_work_costs_its_work_at_the_networks_pace(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "WORK", 0.0)
    monkeypatch.setattr(dry_run, "STEP_WORK", 0.0)
    users = {"at": "users(ids=(0,))", "objective": "at", "train_evasion": "fgsm"}
    fed = {"algorithm": "fedavg(local_steps=3)"}
    plain, twice, local, adversarial = (
        Cell.of({**SMALL, **more}) for more in ({}, {"batch": 16}, fed, {**fed, **users, "batch": 16})
    )
    found = rounds([plain, twice, local, adversarial])
    assert counted.timed == []
    assert found[plain] > 0
    assert found[twice] == pytest.approx(2 * found[plain])
    assert found[local] == pytest.approx(3 * found[plain])
    assert found[adversarial] > 6.5 * found[plain]  # one user's batches are attacked first


def test_cells_that_train_on_fewer_images_have_costs_of_their_own(counted: Counted, tmp_path: Path) -> None:
    options = RunOptions(jobs=1, device="cpu")
    found = estimate(scenario(algorithm="dsgd", validation=[0.0, 0.8]), out=tmp_path, options=options)
    assert [cell.seconds is None for cell in found.cells] == [False, True]  # a batch is larger than a client's images


def test_what_stored_cells_took_is_timed_no_more(counted: Counted, tmp_path: Path) -> None:
    results = grid(scenario(seed=0), out=tmp_path, jobs=0, device="cpu")
    assert results.statuses["done"] == 1
    found = estimate(scenario(seed=[0, 1]), out=tmp_path, options=RunOptions(jobs=1, device="cpu"))
    assert [cell.state for cell in found.cells] == ["stored", "to run"]
    assert counted.timed == []
    assert "Timed: 2 rounds of 0 of 1 kind(s)" in found.note
    assert "Of 1 kind(s), what stored cells took." in found.note
    assert estimate(scenario(seed=0), out=tmp_path, options=RunOptions(device="cpu")).note == "No cell is left to run."


def test_a_cell_of_known_shape_is_not_timed_when_it_is_too_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "WORK", 0.0)
    one, other = expand(scenario(defense=["mean", "median"]))
    known = {dry_run.shape_of(one): 3.25}
    found = dry_run.Costs(RunOptions(device="cpu"), known).of([one, other], lambda done: None)
    assert [found[dry_run.kind_of(cell)].round for cell in (one, other)] == [3.25, 3.25]


def test_each_user_with_a_model_of_its_own_is_tested_on_the_whole_test_set() -> None:
    fed = {"algorithm": "fedavg(local_steps=1)"}
    for norm, users in (("naive-bn", 1), ("fedbn", 7)):
        cell = Cell.of({**SMALL, **fed, "norm": norm})
        found = dry_run.Costs(RunOptions(device="cpu"), {}).of([cell], lambda done: None)[dry_run.kind_of(cell)]
        assert found.images == 20 * users


def test_a_look_at_validation_data_attacks_those_of_at_users() -> None:
    images = 200 * 0.4
    for at, share in (("none", 0.0), ("users(ids=(0,))", 1 / 7), ("all", 1.0)):
        chosen = {"algorithm": "fedavg(local_steps=1)", "validation": 0.4, "select": "validation", "objective": "at",
                  "at": at, "train_evasion": "pgd(eps=0.1, steps=2)"}  # fmt: skip
        cell = Cell.of({**SMALL, **chosen})
        found = dry_run.Costs(RunOptions(device="cpu"), {}).of([cell], lambda done: None)[dry_run.kind_of(cell)]
        attacked = share * dry_run.passes(cell.train_evasion)
        assert found.validated == pytest.approx(images * (attacked + 1 - share))


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
    found = estimate(scenario(**axes), out=tmp_path, options=RunOptions(jobs=1, device="cpu"))
    assert [cell.state for cell in found.cells] == ["to run", "refused"]
    (reason,) = found.refusals
    assert words in reason
    record = run_cell(found.cells[1].cell, fingerprint="x")
    assert (record.status, record.reason) == ("refused", reason)


def test_a_dry_run_draws_every_partition_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = []
    split = Iid.split
    monkeypatch.setattr(dry_run, "build", None)  # no cell is timed
    monkeypatch.setattr(Iid, "split", lambda self, *a, **how: drawn.append(how["clients"]) or split(self, *a, **how))
    axes = {"attack": ["none", "sf"], "defense": ["mean", "median"], "batch": [4, 8], "clients": [5, 7], "seed": [0, 1]}
    estimate(scenario(**axes, f=1), out=tmp_path, options=RunOptions(jobs=1, device="cpu"))
    assert sorted(drawn) == [5, 5, 7, 7]


def test_a_dry_run_without_the_data_says_that_it_could_not_look_at_them(tmp_path: Path) -> None:
    found = estimate(scenario(dataset="cifar10"), out=tmp_path, options=RunOptions(root=tmp_path, device="cpu"))
    assert "Partitions were not drawn either: they may leave clients too few images." in found.summary()


def test_a_refusal_that_only_training_tells_is_no_promise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object) -> float:
        raise Refused("too few rows")

    monkeypatch.setattr(dry_run.Costs, "_timed", refused)
    found = estimate(scenario(seed=[0, 1]), out=tmp_path, options=RunOptions(jobs=1, device="cpu"))
    assert "2 cells of 1 kind(s) could not be timed, and may be refused" in found.summary()
    assert "too few rows" in found.summary()
