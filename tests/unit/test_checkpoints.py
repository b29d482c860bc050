"""Checkpoints: a resumed cell ends as an undisturbed one, bit for bit; what cannot be trusted is not used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robustfl.engine import initial_state
from robustfl.records import CellResult, CurvePoint, plain
from robustfl.reports.store import Store
from robustfl.scenarios import RunOptions, Scenario, grid, plan, run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.checkpoint import Checkpoint, IgnoredError, checkpoint_path, discard, packed, unpacked
from robustfl.scenarios.expand import expand, fingerprints
from robustfl.scenarios.measuring import Selection

BASE: dict[str, Any] = {
    "model": "mlp(hidden=(8,))", "norm": "fbn", "clients": 6, "f": 1, "rounds": 6, "batch": 8, "dtype": "float64",
    "evasions": [], "partition": "gamma(gamma=0.3)", "tail": 2,
}  # fmt: skip
ALWAYS = 1e-9  # minutes
AT = {
    "algorithm": "fedavg(local_steps=2)", "objective": "at", "at": "ratio(rho=0.5)",
    "train_evasion": "pgd(eps=0.1, steps=2)",
}  # fmt: skip
SELECTED = {
    "algorithm": "fedavg(local_steps=2)", "validation": 0.4, "select": "validation", "evaluate_every": 1,
    "schedule": {"kind": "step", "values": [0.2, 30.0], "milestones": [3]},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "momentum": {"algorithm": "dsgd(momentum=0.9)", "attack": "alie", "defense": "nnm+median"},
    "mimic": {"attack": "mimic"},
    "centered-clipping": {"attack": "ipm", "defense": "centered-clipping", "statistics_defense": "median"},
    "foolsgold": {"attack": "sf", "defense": "foolsgold", "statistics_defense": "median"},
    "flanders": {"attack": "timed(attack=sf, start=3)", "defense": "flanders(b=40)", "statistics_defense": "median"},
    "fldetector": {"attack": "sf", "defense": "fldetector(window=2)", "statistics_defense": "median"},
    "clipped-clustering": {"attack": "foe", "defense": "clipped-clustering", "statistics_defense": "median"},
    "deepsight": {"attack": "badnets(size=2)", "defense": "deepsight(inputs=5)", "statistics_defense": "median"},
    "crfl": {"algorithm": "crfl(local_steps=2)"},
    "poisonedfl": {"attack": "poisonedfl(period=2)", "defense": "trimmed-mean"},
    "partial participation": {"participation": 0.5, "algorithm": "dsgd(momentum=0.9)", "attack": "foe"},
    "scaffold": {"algorithm": "scaffold(local_steps=2)", "attack": "min-max", "defense": "median"},
    "fedadam": {"algorithm": "fedadam(local_steps=2)"},
    "fedacg": {"algorithm": "fedacg(local_steps=2)"},
    "moon": {"algorithm": "moon(local_steps=2)", "participation": 0.5},
    "fedbn": {"norm": "fedbn", "algorithm": "fedavg(local_steps=2)", "attack": "lazy"},
    "silobn": {"norm": "silobn", "algorithm": "fedavg(local_steps=2)"},
    "fixbn": {"norm": "fixbn", "attack": "alie"},
    "hbn": {"norm": "hbn", "algorithm": "fedavg(local_steps=2)"},
    "fedtan": {"norm": "fedtan", "algorithm": "fedavg(local_steps=2)", "attack": "sf"},
    "refreshed": {"norm": "fedavg-alg2", "algorithm": "fedavg(local_steps=2)"},
    "fltrust": {"defense": "fltrust", "server_samples": 40, "norm": "none", "algorithm": "fedavg(local_steps=2)"},
    "fltrust with momentum": {
        "defense": "fltrust", "server_samples": 40, "norm": "none", "algorithm": "dsgd(momentum=0.9)",
    },
    "backdoor": {"attack": "badnets"},
    "neurotoxin": {"attack": "neurotoxin"},
    "a3fl": {"attack": "a3fl(size=2, steps=2)"},
    "timed": {"attack": "timed(attack=mimic, start=2)"},
    "dropout and flips": {"model": "simple-cnn", "flip": True, "crop": 1, "norm": "naive-bn"},
    "adversarial training": AT,
    "propagation": AT | {
        "norm": "dual-bn(local=true)", "objective": "pnc", "propagation": "fedrbn", "attack": "alie", "byzantine": "at",
    },
    "robust curve": {"evaluate_ra": True, "evaluate_every": 1, "evasions": ["pgd(eps=0.1, steps=2)"]},
    "selected round": SELECTED | {"norm": "naive-bn"},
    "selected round of own models": SELECTED | {"norm": "fedbn"},
    "rotation": {"model": "simple-cnn", "rotate": 20.0, "norm": "naive-bn"},
    "forgetting of rounds": {"forgetting": [1, 2, 5], "validation": 0.2, "algorithm": "fedavg(local_steps=2)"},
    "forgetting": {"forgetting": True, "validation": 0.2, "algorithm": "fedavg(local_steps=2)"},
}  # fmt: skip


class KilledError(BaseException):
    pass


def cell(**settings: Any) -> Cell:
    return Cell.of({**BASE, **settings})


def run(chosen: Cell, store: Path | None = None, *, until: int | None = None, **more: Any) -> CellResult:
    """The cell's record; ``until``: killed after so many rounds."""

    def on_round(done: int, total: int, loss: float) -> None:
        if until is not None and done > until:
            raise KilledError

    known = fingerprints([chosen], None)[chosen]
    given = {"device": "cpu", "checkpoint_minutes": ALWAYS, "on_round": on_round} | more
    return run_cell(chosen, fingerprint=known, options=RunOptions(store=store, **given))


def kept(record: CellResult) -> Any:
    """The record without what may differ between two runs."""
    return plain(record.model_dump(exclude={"timing"}))


def killed(chosen: Cell, store: Path, *, at: int) -> Path:
    """The checkpoint of a cell that was killed after the round ``at``."""
    with pytest.raises(KilledError):
        run(chosen, store, until=at)
    (path,) = (store / "checkpoints").iterdir()
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_cell_ends_as_an_undisturbed_one(name: str, tmp_path: Path) -> None:
    chosen = cell(**CASES[name])
    expected = run(chosen)
    assert expected.status == "done", expected.reason
    killed(chosen, tmp_path, at=3)
    resumed = run(chosen, tmp_path)
    assert resumed.timing.notes == ["resumed at round 3"]
    assert kept(resumed) == kept(expected)


def test_who_follows_a_resumed_cell_hears_of_all_its_evaluations(tmp_path: Path) -> None:
    """Its tracker is a new one."""
    chosen, told = cell(evaluate_every=1), list[CurvePoint]()
    killed(chosen, tmp_path, at=3)
    record = run(chosen, tmp_path, on_point=told.append)
    assert record.timing.notes == ["resumed at round 3"]
    assert told == record.curve
    assert [point.round for point in told] == [1, 2, 3, 4, 5, 6]


def test_after_the_last_round_only_the_evaluation_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from robustfl.scenarios.evaluate import Evaluator

    chosen = cell(norm="fedavg-alg2", algorithm="fedavg(local_steps=2)")  # tested with refreshed statistics
    expected = run(chosen)

    def die(self: Evaluator, state: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "metrics", die)
        with pytest.raises(KilledError):
            run(chosen, tmp_path)
    resumed = run(chosen, tmp_path)
    assert resumed.timing.notes == ["resumed at round 6"]
    assert kept(resumed) == kept(expected)


def test_a_cell_killed_again_and_again_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    chosen = cell(attack="mimic", algorithm="scaffold(local_steps=2)")
    for at in (1, 2, 3, 5):
        killed(chosen, tmp_path, at=at)
    assert kept(run(chosen, tmp_path)) == kept(run(chosen))


def test_divergence_after_a_resume_is_the_same(tmp_path: Path) -> None:
    chosen = cell(attack="foe(eta=1e14)", norm="none", dtype="float32", rounds=20)
    expected = run(chosen)
    assert expected.status == "diverged"
    assert expected.round is not None
    assert expected.round > 2
    killed(chosen, tmp_path, at=expected.round - 2)
    assert kept(run(chosen, tmp_path)) == kept(expected)


def test_time_and_memory_are_those_of_all_runs(tmp_path: Path) -> None:
    chosen = cell()
    path = killed(chosen, tmp_path, at=3)
    content = torch.load(path, weights_only=True)
    run_facts = '"seconds": 1000.0, "peak": 123456789012345, "noted"'
    content["run"] = run_facts.join(["{", content["run"].partition('"noted"')[2]])
    torch.save(content, path)
    timing = run(chosen, tmp_path).timing
    assert timing.seconds > 1000
    assert timing.peak_memory_bytes == 123456789012345


@pytest.mark.parametrize("minutes", [0, 5])
def test_without_minutes_and_of_a_short_cell_nothing_is_written(minutes: float, tmp_path: Path) -> None:
    run(cell(), tmp_path, checkpoint_minutes=minutes)
    assert list(tmp_path.iterdir()) == []


# --- what is not used ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 1000, -1])
def test_a_torn_checkpoint_is_ignored_with_a_warning(keep: int, tmp_path: Path) -> None:
    chosen = cell()
    path = killed(chosen, tmp_path, at=3)
    path.write_bytes(path.read_bytes()[:keep])
    heard: list[str] = []
    record = run(chosen, tmp_path, on_note=heard.append)
    assert "ignored" in heard[0]
    assert "torn" in heard[0]
    assert kept(record) == kept(run(chosen))


def test_a_state_of_another_precision_does_not_fit() -> None:
    theirs, mine = (build(cell(dtype=dtype)).experiment for dtype in ("float64", "float32"))
    content = packed(theirs, initial_state(theirs, limit=2**30))
    with pytest.raises(ValueError, match=r"theta is torch.float64 .*, not torch.float32"):
        unpacked(mine, content, limit=2**30)


def test_a_view_is_packed_without_the_rest_of_its_memory() -> None:
    e = build(cell()).experiment
    state = replace(initial_state(e, limit=2**30), server={"part": torch.arange(100.0)[3:5]})
    kept_part = packed(e, state)["server"]["part"]
    assert kept_part.tolist() == [3, 4]
    assert kept_part.untyped_storage().nbytes() == kept_part.nbytes


def test_a_selection_that_is_resumed_has_the_best_round_and_what_its_attackers_handed_on() -> None:
    e = build(cell(norm="naive-bn")).experiment
    start = initial_state(e, limit=2**30)
    handed = {"propagated": {"row": torch.ones(2)}}
    first = Selection(e, 2**30)
    for round, value in ((1, 0.5), (2, 0.9), (3, 0.9), (4, 0.2)):
        first.see(replace(start, round=round, theta=start.theta + round, attack=handed if round == 2 else {}), value)
    again = Selection(e, 2**30)
    again.resume(first.progress(), start)
    for selection in (first, again):
        assert (selection.round, selection.value) == (2, 0.9)
        with selection.lent(start) as chosen:
            assert chosen.round == 2
            assert chosen.attack == handed
            assert torch.equal(start.theta, first.progress()["kept"]["theta"])
    again.see(replace(start, round=5, theta=start.theta + 5), 0.95)
    assert (again.round, again.value) == (5, 0.95)


def test_a_damaged_number_is_noticed(tmp_path: Path) -> None:
    chosen = cell()
    path = killed(chosen, tmp_path, at=3)
    theta = torch.load(path, weights_only=True)["state"]["theta"].numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(theta)] ^= 1
    path.write_bytes(content)
    assert "damaged" in run(chosen, tmp_path).timing.notes[0]


def test_a_checkpoint_of_another_format_is_ignored(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "a.pt", {"key": "a"})
    saved.save({"theta": torch.ones(2)}, {})
    torch.save({**torch.load(saved.path, weights_only=True), "format": 0}, saved.path)
    with pytest.raises(IgnoredError, match="none of this robustfl's"):
        saved.load(torch.device("cpu"))


def test_a_checkpoint_of_another_cell_or_software_is_ignored(tmp_path: Path) -> None:
    theirs = killed(cell(seed=1), tmp_path, at=3)
    chosen = cell()
    mine = theirs.with_name(f"{run(chosen).key}.pt")
    theirs.rename(mine)
    assert "other key" in run(chosen, tmp_path).timing.notes[0]
    other = run(chosen, tmp_path, threads=2)
    assert other.timing.notes == [
        "a checkpoint was ignored and the cell started anew: it was written with other threads (1, now 2)"
    ]


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "touched"),))  # type: ignore[return-value]

    chosen = cell()
    path = killed(chosen, tmp_path, at=3)
    torch.save({"state": Evil()}, path)
    assert "torn or none" in run(chosen, tmp_path).timing.notes[0]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(Evil()))
    assert "torn or none" in run(chosen, tmp_path).timing.notes[0]
    assert not (tmp_path / "touched").exists()


def test_a_disk_without_room_costs_the_checkpoint_and_not_the_cell(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    record = run(cell(), tmp_path)
    assert record.status == "done"
    assert "no checkpoint: cannot write" in record.timing.notes[0]
    assert len(record.timing.notes) == 1


def test_a_method_that_keeps_something_else_than_tensors_has_no_checkpoints(tmp_path: Path) -> None:
    experiment = build(cell()).experiment
    state = initial_state(experiment)
    state.defense["odd"] = object()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="state defense odd holds object"):
        packed(experiment, state)


# --- in a grid -------------------------------------------------------------------------------------------------------


def test_a_grid_goes_on_within_a_cell_and_says_so(tmp_path: Path) -> None:
    scenario = Scenario.of({"name": "s", "cell": {**BASE, "seed": [0, 1]}})
    first = expand(scenario)[0]
    killed(first, tmp_path / "s", at=4)
    assert plan(scenario, out=tmp_path).begun == 1
    seen = []
    results = grid(scenario, out=tmp_path, jobs=0, on_cell=seen.append)
    assert [f.notes for f in seen] == [("resumed at round 4",), ()]
    assert results.statuses == {"done": 2}
    assert not (tmp_path / "s" / "checkpoints").exists()


def test_a_checkpoint_left_beside_its_record_goes_with_the_next_grid(tmp_path: Path) -> None:
    scenario = Scenario.of({"name": "s", "cell": BASE})
    killed(expand(scenario)[0], tmp_path / "s", at=4)
    (path,) = (tmp_path / "s" / "checkpoints").iterdir()
    content = path.read_bytes()
    key = next(iter(plan(scenario, out=tmp_path).cells))
    assert path == checkpoint_path(tmp_path / "s", key)
    grid(scenario, out=tmp_path, jobs=0)
    assert Store(tmp_path / "s").path(key).is_file()
    path.parent.mkdir()
    path.write_bytes(content)
    grid(scenario, out=tmp_path, jobs=0)
    assert not path.parent.exists()


def test_with_the_record_goes_also_what_a_killed_write_of_the_checkpoint_left(tmp_path: Path) -> None:
    path, other = checkpoint_path(tmp_path, "a1"), checkpoint_path(tmp_path, "b2")
    left = [path, path.with_name(f".{path.name}.{'0' * 32}.tmp"), path.with_name(f".{other.name}.{'1' * 32}.tmp")]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    discard(tmp_path, "a1")
    assert [file.exists() for file in left] == [False, False, True]
    left[2].unlink()
    discard(tmp_path, "b2")
    assert not path.parent.exists()
