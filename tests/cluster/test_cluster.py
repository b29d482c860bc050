"""A grid on a real scheduler with workers as processes of their own; workers and scheduler are killed in mid-grid."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_plugin import attack_plugin

from robustfl import registry
from robustfl.errors import ClusterError, UsageError
from robustfl.records import CellResult
from robustfl.scenarios import Cell, ResolvedCell, RunOptions, Scenario, cluster, expand, grid
from robustfl.scenarios.expand import fingerprints

CELL = {
    "attack": ["none", "mine"], "defense": ["mean", "median"], "model": "mlp(hidden=(8,))", "f": 1, "clients": 5,
    "batch": 8, "rounds": 4, "evasions": ["pgd(eps=0.1, steps=2)"], "seed": [0, 1, 2],
}  # fmt: skip
KILLS = """
        if view.round == 2 and os.path.exists({trap!r}):
            with open(f"/proc/{{os.getppid()}}/stat") as supervisor:
                os.kill(int(supervisor.read().split()[3]), 9)
        return -{factor} * view.honest.mean(0).expand(view.f, -1)
"""
"""An attack that sends the negative mean, and kills the worker where a test wants it."""


def plugin(*, factor: int = 1, trap: str = "") -> str:
    return attack_plugin("mine", KILLS.strip().format(factor=factor, trap=trap))


class Cluster:
    """A scheduler on a port of its own, and workers that are put in process groups of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"log{len(self.processes)}", "wb") as log:
            started = subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log, start_new_session=True)
        self.processes.append(started)
        return started

    def scheduler(self) -> subprocess.Popen[bytes]:
        started = self._start(
            "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"
        )
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                break
            time.sleep(0.1)
        return started

    def worker(self) -> subprocess.Popen[bytes]:
        return self._start(
            "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
            "--death-timeout", "60", "--local-directory", str(self.folder),
        )  # fmt: skip

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed", exc_type=ImportError)
    found = Cluster(tmp_path)
    yield found
    for process in found.processes:
        found.kill(process)


def written(folder: Path, *, factor: int = 1, **cell: Any) -> Path:
    """The scenario and its plug-in as files."""
    (folder / "mine.py").write_text(plugin(factor=factor, trap=str(folder / "trap")))
    lines = [f"{k} = {json.dumps(v)}" for k, v in {**CELL, **cell}.items()]
    (folder / "far.toml").write_text('name = "far"\nplugins = ["mine.py"]\n[cell]\n' + "\n".join(lines))
    return folder / "far.toml"


def records(out: Path) -> dict[str, dict[str, Any]]:
    found = {p.stem: json.loads(p.read_text()) for p in (out / "far" / "cells").glob("*.json")}
    for record in found.values():
        record.pop("timing")
    return found


def run(machines: Cluster, out: Path) -> subprocess.Popen[str]:
    grid = ["grid", str(machines.folder / "far.toml"), "--cluster", machines.address, "--out", str(out)]
    command = [sys.executable, "-W", "ignore", "-m", "robustfl", *grid]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_cells(out: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(list((out / "far" / "cells").glob("[!.]*.json"))) < count:
        assert time.monotonic() < deadline, f"no {count} cells within five minutes"
        time.sleep(0.02)


@pytest.mark.cluster
@pytest.mark.usefixtures("clean_registry")
@pytest.mark.filterwarnings("ignore:evasions. pgd:UserWarning")  # a short one, which is as good here
def test_a_grid_survives_the_death_of_a_worker_and_of_the_scheduler(machines: Cluster, tmp_path: Path) -> None:
    file = written(tmp_path, rounds=60, seed=[0, 1])
    scheduler, workers = machines.scheduler(), [machines.worker() for _ in range(3)]
    first = run(machines, tmp_path / "runs")
    wait_for_cells(tmp_path / "runs", 1)
    machines.kill(workers[0])
    wait_for_cells(tmp_path / "runs", 3)
    machines.kill(scheduler)
    _, said = first.communicate(timeout=30)
    before = records(tmp_path / "runs")
    assert first.returncode == 1
    assert "scheduler" in said
    assert "finished cells are kept" in said
    assert "Traceback" not in said
    assert 3 <= len(before) < 8

    for worker in workers:
        machines.kill(worker)
    machines.scheduler()
    for _ in range(3):
        machines.worker()
    second = run(machines, tmp_path / "runs")
    shown, said = second.communicate(timeout=90)
    assert second.returncode == 0, said
    assert f"{8 - len(before)} cells run now, {len(before)} were there already: 8 done." in shown
    after = records(tmp_path / "runs")
    assert before.items() <= after.items()
    assert after == records(grid(Scenario.load(file), out=tmp_path / "here", jobs=1).folder.parent)


@pytest.mark.cluster
def test_a_cell_that_kills_every_worker_fails_and_the_others_go_on(machines: Cluster, tmp_path: Path) -> None:
    """With workers that come again, as under a nanny or in a pool."""
    written(tmp_path, defense="mean", seed=0)
    (tmp_path / "trap").touch()
    machines.scheduler()
    workers = [machines.worker() for _ in range(2)]
    grid_process = run(machines, tmp_path / "runs")
    while grid_process.poll() is None:
        for place, worker in enumerate(workers):
            if worker.poll() is not None:
                workers[place] = machines.worker()
        time.sleep(0.1)
    _, said = grid_process.communicate()
    assert grid_process.returncode == 1, said
    found = {r["labels"]["attack"]: r for r in records(tmp_path / "runs").values()}
    assert found["none"]["status"] == "done"
    assert found["mine"]["status"] == "failed"
    assert "every worker that tried this cell died" in found["mine"]["reason"]


# --- without a cluster -----------------------------------------------------------------------------------------------


def remote(**changed: Any) -> cluster.RemoteCell:
    (cell,) = expand(Scenario.of({"name": "x", "cell": {**CELL, "attack": "none", "defense": "mean", "seed": 0}}))
    resolved = ResolvedCell.of(cell, fingerprints([cell], None)[cell], "x")
    wrong = {name: changed.pop(name) for name in ("key", "data") if name in changed}
    known: dict[str, Any] = {
        "resolved": replace(resolved, **wrong), "plugins": (), "software": cluster.software(),
        "options": RunOptions(device="cpu"),
    }  # fmt: skip
    return cluster.RemoteCell(**{**known, **changed})


@pytest.fixture
def on_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a worker."""
    distributed = SimpleNamespace(
        get_worker=lambda: SimpleNamespace(address="tcp://there:1"), KilledWorker=InterruptedError
    )
    monkeypatch.setitem(sys.modules, "distributed", distributed)


@pytest.mark.usefixtures("on_a_worker")
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"software": {"robustfl": "9.9 (code abc)", "torch": cluster.software()["torch"]}}, ["9.9", "robustfl 0."]),
        ({"software": {**cluster.software(), "torch": "1.13.0"}}, ["torch", "1.13.0", "install the same"]),
        ({"key": "0"}, ["digits 1", "install the same"]),
        ({"data": "f00d"}, ["other data", "f00d", "digits"]),
    ],
)  # fmt: skip
def test_a_worker_that_differs_is_refused_with_both_versions_named(changed: dict[str, Any], told: list[str]) -> None:
    error = cluster.execute(remote(**changed))
    assert isinstance(error, ClusterError)
    assert all(word in str(error) for word in ["worker tcp://there:1", *told])


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_worker", "clean_registry")
def test_plug_ins_are_in_the_way_of_no_other_cell() -> None:
    """A file, a script's class of the same name, and a file that ends its process, on one worker."""
    content = plugin()
    exec(content, {"__name__": "__main__"})
    sent = registry.pack(registry.guests())
    del registry._entries["attack"]["mine"]
    for brought in ({"plugins": (("mine.py", content.encode()),)}, {"sent": sent}):
        record = cluster.execute(remote(**brought))
        assert isinstance(record, str), record
    for ends, told in ((b"os._exit(3)", "exit status 3"), (b"os.kill(os.getppid(), 9)", "SIGKILL")):
        died = cluster.execute(remote(plugins=(("mine.py", b"import os; " + ends),)))
        assert isinstance(died, str)
        record = CellResult.model_validate_json(died)
        assert record.status == "failed"
        assert f"its process on worker tcp://there:1 died (out of memory?): {told}" in str(record.reason)
    with pytest.raises(UsageError, match="unknown attack 'mine'"):
        registry.create("attack", "mine")


@pytest.mark.parametrize(
    "options", [{"track": ("tensorboard",)}, {"keep_model": True}, {"cell_minutes": 5}, {"jobs": 2}]
)
def test_options_of_cells_that_run_here_are_refused_with_a_cluster(options: dict[str, Any]) -> None:
    if "track" in options:
        pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'robustfl[test]'")
    with pytest.raises(UsageError, match="does not go with cluster="):
        RunOptions(cluster="tcp://127.0.0.1:1", **options)


@pytest.mark.usefixtures("on_a_worker")
def test_misuse_on_a_worker_reaches_the_grid_with_the_workers_name() -> None:
    error = cluster.execute(remote(options=RunOptions(device="cuda:99")))
    assert isinstance(error, UsageError)
    assert "worker tcp://there:1: device 'cuda:99'" in str(error)


@pytest.mark.parametrize("address", ["host:8786", "tcp://host", "tcp://:8786", "http://host:1", ""])
def test_an_address_that_is_none(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tcp://HOST:8786"):
        grid(Scenario.of({"name": "x"}), out=tmp_path, cluster=address)
    assert not (tmp_path / "x").exists()


@pytest.mark.cluster
def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", exc_type=ImportError)
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(ClusterError, match="dask scheduler"):
        grid(Scenario.of({"name": "x", "cell": {"rounds": 1}}), out=tmp_path, cluster="tcp://127.0.0.1:9")


def test_a_cell_travels_as_it_is() -> None:
    item = remote()
    assert pickle.loads(pickle.dumps(item)) == item
    assert isinstance(item.resolved.cell, Cell)
