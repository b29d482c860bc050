"""Plug-ins that exit or crash in a worker: their cell fails and names them, the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_plugin import attack_plugin
from test_grid import CELL

from robustfl import registry, tempdirs
from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario, grid

pytestmark = pytest.mark.slow

STAYS = "import threading, time; threading.Thread(target=time.sleep, args=(10**6,)).start()"
SMALL = {**CELL, "defense": "mean", "rounds": 2, "evasions": []}
DIED, LATE = "the worker process died twice on this cell", "time limit of 0.1 min (--cell-minutes) reached"
ENDS = {
    "exit": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "no-exception": ("raise type('Odd', (BaseException,), {})('odd')", "Odd: odd"),
    "no-words": ("raise type('Mute', (Exception,), {'__str__': lambda e: 1 / 0})", "Mute, whose text cannot be made"),
    "no-memory": ("raise MemoryError", "MemoryError: out of memory: too much was asked for at once"),
    "no-room": (
        "raise torch.OutOfMemoryError('CUDA out of memory. 9 GiB')",
        "MemoryError: out of memory: CUDA out of",
    ),
    "leaves": ("import os; os._exit(0)", f"{DIED}: exit status 0"),
    "killed": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        f"{DIED} (out of memory?); run fewer cells at",
    ),
    "hangs": ("while True:\n            try: import time; time.sleep(60)\n            except Exception: pass", LATE),
    "stuck": ("import itertools; sum(itertools.repeat(1))", LATE),  # holds Python's lock; no signal handler runs
    "crashes": ("import ctypes; ctypes.string_at(0)", f"{DIED}: SIGSEGV"),
}


def test_whatever_ends_a_cell_the_others_go_on(tmp_path: Path) -> None:
    bodies = {name: body for name, (body, _) in ENDS.items()} | {"stays": STAYS}
    text = "".join(attack_plugin(name, body) for name, body in bodies.items())
    (tmp_path / "hostile.py").write_text(text, encoding="utf-8")
    chosen = Scenario.of({"name": "s", "cell": {**SMALL, "attack": [*bodies, "none"]}})
    chosen = chosen.model_copy(update={"plugins": (str(tmp_path / "hostile.py"),)})
    results = grid(chosen, out=tmp_path, jobs=2, cell_minutes=0.1)
    assert results.statuses == {"done": 1, "failed": len(ENDS) + 1}
    found = {r.labels["attack"]: r.reason or "" for r in Store(results.folder).load().results}
    for name, (_, words) in ENDS.items():
        assert found[name].startswith(words)
        assert f"[attack {name}: hostile.py " in found[name].splitlines()[0]
    assert all("in forge" in found[name] for name in ("crashes", "hangs", "stuck"))


# --- workers and what they leave -------------------------------------------------------------------------------------


def test_folders_that_no_living_process_owns_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, tempfile; from robustfl.tempdirs import scratch; tempfile.tempdir = {!r}\n"
        "with scratch('x') as folder: (folder / 'file').touch(); print(flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code.format(str(tmp_path))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    (theirs,) = tmp_path.iterdir()
    (tmp_path / "robustfl-mine").mkdir()
    with tempdirs.scratch("y") as mine:
        tempdirs.sweep()
        assert {p.name for p in tmp_path.iterdir()} == {theirs.name, mine.name, "robustfl-mine"}
        other.kill()
        other.communicate()
        tempdirs.sweep()
        assert {p.name for p in tmp_path.iterdir()} == {mine.name, "robustfl-mine"}
    assert {p.name for p in tmp_path.iterdir()} == {"robustfl-mine"}


def test_a_killed_grid_leaves_no_temporary_file(tmp_path: Path) -> None:
    """The whole process group is killed in the middle of a cell, so that nobody can clean up."""
    (tmp_path / "hostile.py").write_text(
        attack_plugin("says", body="open('begun', 'w').close(); import time; time.sleep(600)"), encoding="utf-8"
    )
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    call = [sys.executable, "-m", "robustfl", "grid", "--jobs", "2", "--plugin", "hostile.py", "--out", "runs",
            "--set", "seed=0", "--set", "partition=iid", "--set", "rounds=1", "--set", "evasions=[]",
            "--set", "norm=fbn", "--set", "defense=mean", "--set", "model=mlp(hidden=(8,))"]  # fmt: skip
    process = subprocess.Popen(
        [*call, "--set", "attack=says"], cwd=tmp_path, env=place, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    ended = threading.Event()
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        ended.wait(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "hostile.py", "runs"]


# --- methods of no file ----------------------------------------------------------------------------------------------


@pytest.fixture
def by_hand() -> Iterator[Callable[[str, Any], None]]:
    """Registers an attack as a notebook does, that holds on to something; it is gone after the test."""
    names = []

    def define(name: str, held: Any) -> None:
        @registry.register(name)
        @dataclass(frozen=True)
        class Local(Attack):
            """Minus the mean."""

            def forge(self, view: Any, *, generator: torch.Generator) -> Any:
                return -(view.honest.mean(0).expand(view.f, -1)) * len([held])

        names.append(name)

    yield define
    for name in names:
        del registry._entries["attack"][name]


def test_a_method_of_no_file_travels_to_workers(by_hand: Callable[[str, Any], None], tmp_path: Path) -> None:
    by_hand("from-a-notebook", 5.0)
    chosen = Scenario.of({"name": "s", "cell": {**SMALL, "attack": "from-a-notebook"}})
    here, there = (Store(grid(chosen, out=tmp_path / str(j), jobs=j).folder).load().results[0] for j in (0, 1))
    assert there.status == "done", there.reason
    assert (there.key, there.metrics) == (here.key, here.metrics)


def test_a_method_that_cannot_travel_says_so(by_hand: Callable[[str, Any], None], tmp_path: Path) -> None:
    by_hand("locked", threading.Lock())
    chosen = Scenario.of({"name": "s", "cell": {**SMALL, "attack": "locked"}})
    with pytest.raises(UsageError, match=r"cannot be sent to workers .*attack locked.*jobs=0"):
        grid(chosen, out=tmp_path, jobs=1)
    assert grid(chosen, out=tmp_path, jobs=0).statuses == {"done": 1}
