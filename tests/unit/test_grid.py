"""The grid: determinism, resume, workers, kills, crashes, plug-ins."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_plugin import attack_plugin

from robustfl import registry
from robustfl.errors import StoreError, UsageError
from robustfl.file_io import LONGEST_REASON
from robustfl.records import CellResult
from robustfl.reports.store import Store
from robustfl.scenarios import Finished, RunOptions, Scenario, grid, plan
from robustfl.scenarios.worker_pool import Died

# Cells here are small: with five clients alie does nothing, and two steps of PGD do not cross its ball.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}:UserWarning") for words in ("alie has no effect", "evasions. pgd")
]
engine = importlib.import_module("robustfl.scenarios.grid")
CELL = {
    "attack": ["none", "alie"], "defense": ["mean", "nnm+median"], "norm": "fbn", "model": "mlp(hidden=(8,))",
    "f": 1, "clients": 5, "batch": 8, "rounds": 4, "evasions": ["pgd(eps=0.1, steps=2)"], "validation": 0.2,
}  # fmt: skip


def scenario(name: str = "tiny", **cell: Any) -> Scenario:
    return Scenario.of({"name": name, "cell": {**CELL, **cell}})


def with_plugin(folder: Path, name: str, body: str, **cell: Any) -> Scenario:
    """The scenario of ``cell`` with an attack of this name, from a file in the folder, that does this."""
    (folder / f"{name}.py").write_text(attack_plugin(name, body))
    return scenario(**{"attack": name, "defense": "mean", **cell}).beside([folder / f"{name}.py"])


def contents(folder: Path) -> dict[str, dict[str, Any]]:
    """The records without what may differ between two runs."""
    found = {p.stem: json.loads(p.read_text()) for p in (folder / "cells").glob("*.json")}
    for record in found.values():
        record.pop("timing")
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the tiny scenario, run in this process."""
    out = tmp_path_factory.mktemp("undisturbed")
    return grid(scenario(), out=out, jobs=0).folder


def test_every_cell_is_stored_with_its_numbers(undisturbed: Path) -> None:
    records = contents(undisturbed)
    assert len(records) == 4
    for record in records.values():
        assert record["status"] == "done"
        assert 0 <= record["metrics"]["ra_worst"] <= record["metrics"]["sa"] <= 1
        assert record["curve"][-1]["round"] == 4
        assert len(record["metrics"]["per_client"]["sa"]) == 5
        assert sum(map(sum, record["label_counts"])) > 1000


def test_a_second_grid_in_a_store_begins_at_the_end(tmp_path: Path) -> None:
    todo = plan(scenario(rounds=1), out=tmp_path)
    Store(todo.folder).describe({"name": "tiny"})
    seen: list[Finished] = []
    notes: list[str] = []
    with Store(todo.folder).held() as first:
        grid(scenario(rounds=1), out=tmp_path, jobs=0, on_cell=seen.append, on_note=notes.append)
    assert first
    assert [cell.key for cell in seen] == list(reversed(todo.missing))
    assert any("another grid works in" in note for note in notes)
    with Store(todo.folder).held() as again:
        assert again


def test_a_cell_that_another_grid_stored_meanwhile_does_not_run(undisturbed: Path, tmp_path: Path) -> None:
    *_, last = plan(scenario(), out=tmp_path).missing
    theirs = undisturbed / "cells" / f"{last}.json"
    seen: list[Finished] = []

    def finished(cell: Finished) -> None:
        seen.append(cell)
        if len(seen) == 1:
            (tmp_path / "tiny" / "cells" / theirs.name).write_bytes(theirs.read_bytes())

    grid(scenario(), out=tmp_path, jobs=0, on_cell=finished)
    assert len(seen) == 4
    assert (tmp_path / "tiny" / "cells" / theirs.name).read_bytes() == theirs.read_bytes()
    assert contents(tmp_path / "tiny") == contents(undisturbed)


def test_the_same_grid_again_computes_nothing(undisturbed: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (undisturbed / "cells").iterdir()}
    seen: list[Finished] = []
    results = grid(scenario(), out=undisturbed.parent, jobs=0, on_cell=seen.append)
    assert (results.computed, results.stored, seen) == (0, 4, [])
    assert {p: p.stat().st_mtime_ns for p in (undisturbed / "cells").iterdir()} == before


def test_numbers_do_not_depend_on_the_number_of_workers(undisturbed: Path, tmp_path: Path) -> None:
    assert contents(grid(scenario(), out=tmp_path, jobs=2).folder) == contents(undisturbed)


def test_only_what_is_missing_runs(undisturbed: Path, tmp_path: Path) -> None:
    folder = grid(scenario(), out=tmp_path, jobs=0).folder
    lost = sorted((folder / "cells").iterdir())[:2]
    lost[0].unlink()
    lost[1].write_text(lost[1].read_text()[:100])  # truncated
    results = grid(scenario(), out=tmp_path, jobs=0)
    assert (results.computed, results.stored) == (2, 2)
    assert contents(folder) == contents(undisturbed)


def test_what_another_grid_stored_meanwhile_did_not_run_here_and_what_is_gone_is_told(tmp_path: Path) -> None:
    seen: list[Finished] = []

    def other_grid(finished: Finished) -> None:
        seen.append(finished)
        if len(seen) == 1:
            grid(scenario(), out=tmp_path, jobs=0)

    results = grid(scenario(), out=tmp_path, jobs=0, on_cell=other_grid)
    assert (results.computed, results.stored, results.lost) == (1, 3, 0)
    assert [one.found for one in seen] == [False, True, True, True]

    def moved(finished: Finished) -> None:
        if (tmp_path / "tiny").is_dir() and not (tmp_path / "away").exists():
            (tmp_path / "tiny").rename(tmp_path / "away")

    results = grid(scenario(rounds=3), out=tmp_path, jobs=0, on_cell=moved)
    assert (results.computed, results.stored, results.lost) == (4, 0, 1)


def test_a_changed_parameter_is_another_cell(undisturbed: Path) -> None:
    changed = plan(scenario(attack=["none", "alie(z=1)"]), out=undisturbed.parent)
    assert len(changed.missing) == 2


def test_a_grid_killed_with_its_workers_ends_up_as_if_undisturbed(undisturbed: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    lines = [f"{k} = {json.dumps(v)}" for k, v in CELL.items()]
    file.write_text('name = "tiny"\n[cell]\n' + "\n".join(lines))
    command = [sys.executable, "-m", "robustfl", "grid", str(file), "--out", str(tmp_path / "runs"), "--jobs", "2"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = Store(tmp_path / "runs" / "tiny")
    while not store.keys() and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not store.load().problems
    assert grid(Scenario.load(str(file)), out=tmp_path / "runs", jobs=0).stored > 0
    assert contents(store.folder) == contents(undisturbed)


@pytest.mark.survival
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_worker_outlives_the_grid(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """Only the grid's own process is hit; its workers, in the middle of long cells, must not go on without it."""
    file = tmp_path / "long.toml"
    lines = [f"{k} = {json.dumps(v)}" for k, v in {**CELL, "rounds": 1_000_000, "seed": [0, 1]}.items()]
    file.write_text('name = "long"\n[cell]\n' + "\n".join(lines))
    command = [sys.executable, "-m", "robustfl", "grid", str(file), "--out", str(tmp_path / "runs"), "--jobs", "2"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(members(process.pid)) < 4 and time.monotonic() < deadline:  # itself, the supervisor, two workers
            time.sleep(0.1)
        time.sleep(3)  # into the cells
        process.send_signal(number)
        assert process.wait(60) == status
        deadline = time.monotonic() + 60  # a worker looks every second, a loaded machine lets it look later
        while members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not members(process.pid)
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    def stop(finished: Finished) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid(scenario(), out=tmp_path, jobs=0, on_cell=stop)
    assert len(contents(tmp_path / "tiny")) == 1
    assert grid(scenario(), out=tmp_path, jobs=0).computed == 3


def test_impossible_cells_are_recorded_as_refused(tmp_path: Path) -> None:
    results = grid(scenario(defense=["krum", "mean"], f=2), out=tmp_path, jobs=0)
    assert results.statuses == {"done": 2, "refused": 2}
    reasons = {r["reason"] for r in contents(results.folder).values() if r["status"] == "refused"}
    assert reasons == {"krum: f=2 needs at least 7 clients (2f + 3); this cell has 5."}


def test_batches_drawn_with_replacement_may_be_larger_than_a_clients_data(tmp_path: Path) -> None:
    cell = {"batch": 400, "algorithm": "dsgd(replacement=true)"}
    (record,) = contents(grid(scenario(attack="none", defense="mean", **cell), out=tmp_path, jobs=0).folder).values()
    assert record["status"] == "done", record["reason"]


def test_divergence_is_recorded_with_its_round(tmp_path: Path) -> None:
    cell = {"attack": "foe(eta=1e30)", "defense": "mean", "rounds": 20}
    (record,) = contents(grid(scenario(**cell), out=tmp_path, jobs=0).folder).values()
    assert record["status"] == "diverged"
    assert 1 <= record["round"] <= 20
    assert record["metrics"] is None


def test_a_plug_in_that_raises_fails_its_cells_only_and_runs_again(tmp_path: Path) -> None:
    chosen = with_plugin(tmp_path, "bad", 'raise RuntimeError("my bug")', attack=["none", "bad"])
    seen: list[Finished] = []
    results = grid(chosen, out=tmp_path, jobs=0, on_cell=seen.append)
    assert results.statuses == {"done": 1, "failed": 1}
    (failed,) = (r for r in contents(results.folder).values() if r["status"] == "failed")
    assert "my bug" in failed["reason"]
    assert "bad.py" in failed["reason"]
    assert grid(chosen, out=tmp_path, jobs=0).computed == 1


def test_the_reason_of_a_failed_cell_is_cut_and_says_where_it_failed(tmp_path: Path) -> None:
    chosen = with_plugin(tmp_path, "loud", 'raise RuntimeError("x" * 10**6)')
    (record,) = Store(grid(chosen, out=tmp_path, jobs=0).folder).load().results
    assert record.reason is not None
    assert "x... cut: 998054 characters ...x" in record.reason.splitlines()[0]
    assert "in forge" in record.reason
    assert len(record.reason) <= LONGEST_REASON


def test_any_reason_is_cut_once() -> None:
    cell: dict[str, Any] = {"key": "k", "scenario": "s", "status": "failed", "cell": {}, "labels": {}}
    once = CellResult(**cell, reason="x" * 10**6)
    assert once.reason is not None
    assert len(once.reason) <= LONGEST_REASON
    assert CellResult.model_validate(once.model_dump()).reason == once.reason


def test_a_cell_that_was_killed_at_its_deadline_says_so_unless_another_grid_stored_it(
    undisturbed: Path, tmp_path: Path
) -> None:
    (task, *_) = engine._tasks(plan(scenario(), out=tmp_path), RunOptions(cell_minutes=0.5))
    died = Died(-signal.SIGKILL, late=True, trace="in forge")
    reason = "time limit of 0.5 min (--cell-minutes) reached; what was checkpointed is kept\nin forge"
    assert (task.end(died).status, task.end(died).reason) == ("failed", reason)
    name = f"cells/{task.key}.json"
    (task.store.folder / name).write_bytes((undisturbed / name).read_bytes())
    assert (task.end(died).status, task.end(died).found) == ("done", True)


def test_rounds_of_running_cells_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, int, int]] = []
    chosen = scenario(attack="none", defense="mean")
    grid(chosen, out=tmp_path / "soon", jobs=0, on_round=lambda *round: heard.append(round))
    assert heard == []  # about once a second
    monkeypatch.setattr(engine, "_PROGRESS_SECONDS", 0.0)
    (key,) = grid(chosen, out=tmp_path, jobs=0, on_round=lambda *round: heard.append(round)).keys
    assert heard == [(key, round, 4) for round in (1, 2, 3, 4)]


def test_an_unwritable_folder_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="runs"):
        grid(scenario(), out=tmp_path / "runs", jobs=0)


def test_a_disk_that_fills_up_stops_the_grid_and_loses_nothing(tmp_path: Path) -> None:
    """A folder in the place of a cell's file cannot be replaced: the write fails as on a full disk, also in workers."""
    todo = plan(scenario(), out=tmp_path)
    blocked = todo.folder / "cells" / f"{todo.missing[1]}.json"
    (blocked / "x").mkdir(parents=True)
    with pytest.raises(StoreError, match="free space there"):
        grid(scenario(), out=tmp_path, jobs=1)
    (blocked / "x").rmdir()
    blocked.rmdir()
    assert not Store(todo.folder).load().problems
    assert grid(scenario(), out=tmp_path, jobs=0).statuses == {"done": 4}


@pytest.mark.slow
def test_an_interrupt_while_workers_run_ends_at_once(tmp_path: Path) -> None:
    def stop(finished: Finished) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid(scenario(seed=list(range(20)), rounds=40), out=tmp_path, jobs=2, on_cell=stop)
    assert len(contents(tmp_path / "tiny")) < 20


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("jobs", -1),
        ("threads", 0),
        ("device", "tpu"),
        ("device", "cuda:99"),
        ("cell_minutes", 0),
        ("cell_minutes", float("nan")),
        ("checkpoint_minutes", -1.0),
    ],
)
def test_wrong_execution_settings(argument: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        grid(scenario(), out=tmp_path, **{argument: value})
    assert not (tmp_path / "tiny").exists()


@pytest.mark.usefixtures("clean_registry")
def test_a_plug_in_that_changes_after_the_grid_began_ends_it_and_stores_nothing(tmp_path: Path) -> None:
    """A worker that starts late reads the file as it is by then; a cell under another key would be none asked for."""
    file = tmp_path / "changing.py"
    todo = plan(with_plugin(tmp_path, "changing", "return view.honest[:view.f]"), out=tmp_path)
    (task,) = engine._tasks(todo, RunOptions(device="cpu"))
    file.write_text(file.read_text() + "# another\n")
    with pytest.raises(UsageError, match=r"changing\.py' changed after it was loaded; start a new process"):
        task.execute("cpu", print)
    registry._files.clear()  # as a process that never loaded it
    del registry._entries["attack"]["changing"]
    registry._changed()
    words = r"a plug-in changed after the grid began \[attack changing: changing\.py .*\]; start the grid again"
    with pytest.raises(UsageError, match=words):
        task.execute("cpu", print)
    assert contents(todo.folder) == {}
