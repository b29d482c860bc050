"""Plug-ins that exit, crash, hang or change what all methods share: one cell fails and names them, no other notices."""

from __future__ import annotations

import os
import pkgutil
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_grid import CELL, PLUGIN
from work_for_workers import forking, half

from robustfl import registry, scratch
from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario, grid
from robustfl.scenarios.evaluate import Evaluator
from robustfl.surroundings import Surroundings, kept
from robustfl.workers import Died, spread

pytestmark = pytest.mark.slow

MEAN = "return view.honest.mean(0).expand(view.f, -1).clone()"
SMALL = {**CELL, "defense": "mean", "rounds": 2, "evasions": []}
ENDS = {
    "exit": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "no-exception": ("raise type('Odd', (BaseException,), {})('odd')", "Odd: odd"),
    "no-words": ("raise type('Mute', (Exception,), {'__str__': lambda e: 1 / 0})", "Mute, whose text cannot be made"),
    "no-memory": ("raise MemoryError", "MemoryError: out of memory: too much was asked for at once"),
    "no-room": ("raise torch.OutOfMemoryError('CUDA out of memory. Tried 9 GiB')", "out of memory on cpu: CUDA out of"),
    "leaves": ("import os; os._exit(0)", "the worker process died twice on this cell: exit status 0"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "the worker process died twice on this cell: SIGSEGV"),
}
STAYS = "import threading, time; threading.Thread(target=time.sleep, args=(10**6,)).start()"
CHANGES = {
    "torch's default dtype": "torch.set_default_dtype(torch.float64)",
    "torch's grad mode": "torch.set_grad_enabled(False)",
    "torch's inference mode": "global MODE; MODE = torch.inference_mode(); MODE.__enter__()",
    "torch's deterministic algorithms": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "torch's number of threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "torch's precision of products": "torch.set_float32_matmul_precision('medium')",
    "torch's default device": "torch.set_default_device('meta')",
    "cudnn.benchmark": "torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark",
    "numpy's handling of floating-point errors": "import numpy; numpy.seterr(all='ignore', under='raise')",
    "the working directory": "import os; os.chdir('/')",
}


def scenario(folder: Path, bodies: dict[str, str], **cell: Any) -> Scenario:
    """A cell without attack, and one with each of the plug-ins; they are in one file."""
    text = "".join(PLUGIN.format(name=name, body=body) for name, body in bodies.items())
    (folder / "hostile.py").write_text(text, encoding="utf-8")
    chosen = Scenario.of({"name": "s", "cell": {**SMALL, "attack": [*bodies, "none"], **cell}})
    return chosen.model_copy(update={"plugins": (str(folder / "hostile.py"),)})


def outcomes(folder: Path) -> dict[str, tuple[str, str]]:
    """Status and first line of the reason by attack."""
    found = Store(folder).load().results
    return {r.labels["attack"]: (r.status, ([*(r.reason or "").splitlines(), ""])[0]) for r in found}


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_whatever_ends_a_cell_the_others_go_on(jobs: int, tmp_path: Path) -> None:
    """With several workers the ends of whole processes only: the others reach nobody but their own worker."""
    ends = {name: end for name, end in ENDS.items() if jobs == 1 or "process died" in end[1]}
    chosen = scenario(tmp_path, {f"{n}-{jobs}": body for n, (body, _) in ends.items()} | {f"stays-{jobs}": STAYS})
    results = grid(chosen, out=tmp_path, jobs=jobs)
    assert results.statuses == {"done": 1, "failed": len(ends) + 1}
    found = outcomes(results.folder)
    assert found["none"] == ("done", "")
    for name, (_, words) in ends.items():
        status, reason = found[f"{name}-{jobs}"]
        assert status == "failed"
        assert reason.startswith(words)
        assert f"[attack {name}-{jobs}: hostile.py " in reason
    (crashed,) = (r for r in Store(results.folder).load().results if r.labels["attack"] == f"crashes-{jobs}")
    assert "in forge" in (crashed.reason or "")


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    settings = [w for key in ("defense", "norm", "model", "f", "clients", "batch", "rounds") for w in
                ("--set", f"{key}={SMALL[key]}")]  # fmt: skip
    call = [sys.executable, "-m", "robustfl", *words, *settings, "--set", "evasions=[]", "--plugin", "hostile.py"]
    return subprocess.run(call, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("grid", "--jobs", "1", "--set", "seed=0", "--set", "partition=iid"), ("run",)])
def test_a_thread_of_a_plug_in_keeps_no_command_alive(words: tuple[str, ...], tmp_path: Path) -> None:
    text = PLUGIN.format(name="threads", body=f"{STAYS}; {MEAN}")
    (tmp_path / "hostile.py").write_text(f"{text}\n{STAYS}\nprint('printed')\n", encoding="utf-8")
    done = command(*words, "--set", "attack=threads", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"sa"' in done.stdout.partition("printed")[2] or '"sa"' in done.stdout


# --- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import time\ntry:\n    time.sleep(600)\nexcept Exception: pass", "not done within 0.5 s"),
        ("import sys; sys.exit(0)", "could not be imported: SystemExit: 0"),
        *((f"import torch; {code}", f"its import changes {what}") for what, code in [*CHANGES.items()][:3]),
    ],
)
def test_an_import_that_hangs_exits_or_changes_settings_is_an_error(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in line:
        monkeypatch.setattr(registry, "IMPORT_SECONDS", 0.5)
    (tmp_path / "odd.py").write_text(line, encoding="utf-8")
    before = Surroundings()
    with kept():
        with pytest.raises(UsageError, match=r"odd\.py") as caught:
            registry.load_file(tmp_path / "odd.py")
        assert before.settings() == []
    assert words in str(caught.value)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


# --- what all methods share ------------------------------------------------------------------------------------------


def test_what_a_plug_in_changes_is_put_back_and_named(tmp_path: Path) -> None:
    """In one process, so that a cell would see what the one before it did."""
    bodies = {f"changes-{i}": f"{code}; {MEAN}" for i, code in enumerate(CHANGES.values())}
    bodies |= {"seeds": f"torch.manual_seed(1); {MEAN}", "raises": "torch.set_grad_enabled(False); raise ValueError"}
    alone = grid(Scenario.of({"name": "alone", "cell": {**SMALL, "attack": "none"}}), out=tmp_path, jobs=0)
    before = Surroundings()
    with kept():
        results = grid(scenario(tmp_path, bodies), out=tmp_path, jobs=0)
        assert (before.settings(), before.generators()) == ([], [])
    found = outcomes(results.folder)
    for i, what in enumerate(CHANGES):
        status, reason = found[f"changes-{i}"]
        assert status == "failed"
        assert f"attack 'changes-{i}' (hostile.py" in reason
        assert f"changed {what}" in reason or f", {what}" in reason
    assert "used the global generator of torch" in found["seeds"][1]
    (one,) = Store(alone.folder).load().results
    (same,) = (r for r in Store(results.folder).load().results if r.labels["attack"] == "none")
    assert same.metrics == one.metrics


PATCHES = {
    "robustfl.scenarios.evaluate.Evaluator.metrics": "from robustfl.scenarios.evaluate import Evaluator\n"
    "Evaluator.metrics = lambda self, state: None",
    "robustfl.evaluation.accuracy.Accuracy": "import robustfl.evaluation.accuracy as place\nplace.Accuracy = dict",
    "robustfl.records.measured_in": "from robustfl.records import measured_in\n"
    "measured_in.__code__ = (lambda round, rounds, every, tail: True).__code__",
    "torch.nn.functional.cross_entropy": "from torch.nn import functional as F\nF.cross_entropy = F.nll_loss",
    "torch.Tensor.argmax": "import torch\ntorch.Tensor.argmax = torch.Tensor.argmin",
    "torch.argmax": "import torch\ntorch.argmax = torch.argmin",
}
"""By what they change: lines that put something else in the place of what measures everybody's methods."""


@pytest.mark.parametrize(("what", "lines"), PATCHES.items(), ids=PATCHES)
def test_what_is_put_in_the_place_of_a_shared_function_is_taken_out_and_named(
    what: str, lines: str, tmp_path: Path
) -> None:
    names = what.rpartition(".")
    owner = pkgutil.resolve_name(names[0])
    before, known = getattr(owner, names[2]), names[2] in vars(owner)
    runs = getattr(before, "__code__", None)
    (tmp_path / "patch.py").write_text(lines, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"patch\.py.*: its import changes {what}, which every other method shares"):
        registry.load_file(tmp_path / "patch.py")
    assert (getattr(owner, names[2]), names[2] in vars(owner)) == (before, known)
    assert getattr(before, "__code__", None) is runs


def test_a_plug_in_that_changes_how_it_is_measured_while_it_runs_has_failed(tmp_path: Path) -> None:
    body = f"from robustfl.scenarios.evaluate import Evaluator; Evaluator.standard = lambda *_: (1.0, 0.0); {MEAN}"
    found = outcomes(grid(scenario(tmp_path, {"praises-itself": body}), out=tmp_path, jobs=0).folder)
    status, reason = found["praises-itself"]
    assert status == "failed"
    assert "a plug-in changed robustfl.scenarios.evaluate.Evaluator.standard, which other methods share" in reason
    assert found["none"][0] == "done"
    assert Evaluator.standard.__name__ == "standard"


def test_a_method_that_exits_as_it_is_made_is_named(tmp_path: Path) -> None:
    body = f"{MEAN}\n    def __post_init__(self): raise SystemExit(0)"
    chosen = scenario(tmp_path, {"exits-early": body})
    registry.load_file(chosen.plugins[0])
    with pytest.raises(UsageError, match=r"attack 'exits-early' \(hostile.py .*\) cannot be made: SystemExit: 0"):
        registry.create("attack", "exits-early")


def test_everything_that_is_looked_at_can_be_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    held: dict[str, Any] = {"torch": torch}
    changes: list[Callable[[], Any]] = [lambda code=code: exec(code, held) for code in CHANGES.values()]  # type: ignore[misc]
    changes += [
        lambda: torch.set_flush_denormal(True), lambda: torch.autograd.set_detect_anomaly(True),
        lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.manual_seed(5),
        lambda: np.random.seed(5), lambda: random.seed(5),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: setattr(torch.backends.mkldnn, "enabled", False),
        lambda: setattr(torch.backends.mkldnn, "deterministic", True), lambda: torch.backends.nnpack.set_flags(False),
        lambda: torch.backends.cuda.enable_math_sdp(False), lambda: torch.backends.cuda.enable_flash_sdp(False),
        lambda: os.environ.update(ROBUSTFL_DATA="elsewhere"), lambda: os.environ.update(OMP_NUM_THREADS="3"),
        lambda: os.environ.update(NVIDIA_TF32_OVERRIDE="1"), lambda: os.environ.pop("OMP_NUM_THREADS"),
    ]  # fmt: skip
    before = Surroundings()
    for change in changes:
        with kept():
            change()
            assert before.settings() or before.generators()
        assert (before.settings(), before.generators()) == ([], [])


# --- workers and what they leave -------------------------------------------------------------------------------------


def test_a_death_takes_one_piece_of_work_with_it() -> None:
    found = dict(spread(half, range(6), 2, threads=1))
    assert found == {0: 0, 1: 0, 2: 1, 3: Died(7), 4: 2, 5: 2}


def test_a_child_of_a_dead_worker_does_not_hold_up_the_others() -> None:
    found = dict(spread(forking, [0, 1], 1, threads=1))
    assert found == {0: Died(3), 1: 1}


def test_folders_that_no_living_process_owns_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, tempfile; from robustfl.scratch import scratch; tempfile.tempdir = {!r}\n"
        "with scratch('x') as folder: (folder / 'file').touch(); print(flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code.format(str(tmp_path))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    (theirs,) = tmp_path.iterdir()
    (tmp_path / "robustfl-mine").mkdir()
    with scratch.scratch("y") as mine:
        scratch.sweep()
        assert {p.name for p in tmp_path.iterdir()} == {theirs.name, mine.name, "robustfl-mine"}
        other.kill()
        other.communicate()
        scratch.sweep()
        assert {p.name for p in tmp_path.iterdir()} == {mine.name, "robustfl-mine"}
    assert {p.name for p in tmp_path.iterdir()} == {"robustfl-mine"}


def test_a_killed_grid_leaves_nothing_that_the_next_one_does_not_sweep(tmp_path: Path) -> None:
    """The whole process group is killed in the middle of a cell, so that nobody can clean up."""
    (tmp_path / "hostile.py").write_text(
        PLUGIN.format(name="says", body="open('begun', 'w').close(); import time; time.sleep(600)"), encoding="utf-8"
    )
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    shared = Path("/dev/shm")
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
    mine = f"loky-{process.pid}-"
    assert not [p for p in shared.glob("*") if mine in p.name] if shared.is_dir() else True
    assert list(tmp_path.glob("robustfl-*"))
    done = subprocess.run([*call, "--set", "attack=none"], cwd=tmp_path, env=place, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("robustfl-*"))


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
