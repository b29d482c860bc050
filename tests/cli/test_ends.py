"""Commands whose process is ended by somebody else's code say so, with an exit code, and pass signals on."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_plugins import FORGE, PLUGIN

from robustfl.cli import invoke
from robustfl.registry import _entries, load_plugins

pytestmark = pytest.mark.slow

ENDS = {
    "os._exit(0)": "exit status 0",
    "ctypes.string_at(0)": "SIGSEGV",
    "os.kill(os.getpid(), 9)": "SIGKILL (out of memory?)",
}
TINY = [
    "rounds=1", "f=1", "clients=4", "batch=4", "evasions=[]", "norm=none", "defense=mean", "model=mlp(hidden=(4,))",
    "seed=0", "partition=iid",
]  # fmt: skip
"""Of the default preset one cell."""


def process(body: str, tmp_path: Path) -> subprocess.Popen[str]:
    """A supervised process that does ``body``, without torch."""
    code = (
        "import ctypes, os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever runs the tests may ignore signals
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from robustfl.cli.supervised import farewell, supervised\n"
        "from robustfl.running import loaded, running\n"
        f"supervised()\n{body}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip


def ended(body: str, tmp_path: Path) -> tuple[int, str]:
    """Exit code, and what was said."""
    started = process(body, tmp_path)
    _, said = started.communicate(timeout=60)
    return started.returncode, said


@pytest.mark.parametrize(("end", "words"), ENDS.items())
def test_an_end_by_a_method_names_it(end: str, words: str, tmp_path: Path) -> None:
    assert ended(f"with running('attack x (x.py)'): {end}", tmp_path) == (
        1, f"Error: attack x (x.py) ended the process: {words}\n",
    )  # fmt: skip


@pytest.mark.parametrize(("end", "words"), [*ENDS.items()][:1])
def test_an_end_by_an_import_names_the_plug_in(end: str, words: str, tmp_path: Path) -> None:
    assert ended(f"with running('plug-in x.py', importing=True): {end}", tmp_path) == (
        2, f"Error: plug-in x.py could not be imported: it ended the process, {words}\n",
    )  # fmt: skip


def test_the_innermost_name_counts_and_only_while_its_code_runs(tmp_path: Path) -> None:
    inner = "with running('outer'):\n with running('inner'): pass\n os._exit(0)"
    assert ended(inner, tmp_path)[1] == "Error: outer ended the process: exit status 0\n"
    nobody = "loaded('plug-in a.py'); loaded('plug-in b.py')\nwith running('a'): pass\nos._exit(0)"
    words = "Error: the process ended unexpectedly; plug-ins in use: plug-in a.py, plug-in b.py: exit status 0\n"
    assert ended(nobody, tmp_path) == (1, words)


def test_who_takes_leave_ends_with_its_own_code(tmp_path: Path) -> None:
    assert ended("farewell(130); os._exit(9)", tmp_path) == (130, "")


def test_a_process_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    body = "pid = os.fork()\nif pid == 0: os.close(1); os.close(2); time.sleep(60); os._exit(0)\nos._exit(3)"
    started = process(body, tmp_path)
    assert started.wait(30) == 1
    os.killpg(started.pid, signal.SIGKILL)
    assert "exit status 3" in started.communicate()[1]


def kill_group(pid: int, number: int) -> None:
    os.killpg(pid, number)


@pytest.mark.parametrize("send", [os.kill, kill_group], ids=["to one", "to the group"])
def test_an_interrupt_arrives_once(send: Callable[[int, int], None], tmp_path: Path) -> None:
    body = (
        "sys.modules[supervised.__module__]._TOGETHER = 60\n"  # however late the second comes on a busy machine
        "got = []\nsignal.default_int_handler = lambda *_: got.append(1)\nprint('ready', flush=True)\n"
        "while not got: time.sleep(0.05)\n"
        "time.sleep(1)\n"  # a second one would have come by now
        "farewell(10 + len(got))"
    )
    started = process(body, tmp_path)
    assert started.stdout is not None
    started.stdout.readline()
    send(started.pid, signal.SIGINT)
    started.communicate(timeout=60)
    assert started.returncode == 11


def test_a_later_interrupt_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.4, 0.8, 1.4])
    supervised = importlib.import_module("robustfl.cli.supervised")
    monkeypatch.setattr(supervised, "time", SimpleNamespace(monotonic=lambda: next(times)))
    handler, raised = supervised._Interrupt(), []
    for n in range(4):
        try:
            handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            raised.append(n)
    assert raised == [0, 3]


def test_who_dies_of_a_signal_is_seen_to(tmp_path: Path) -> None:
    started = process("print('ready', flush=True); time.sleep(60)", tmp_path)
    assert started.stdout is not None
    started.stdout.readline()
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == -signal.SIGTERM
    assert started.communicate()[1] == ""


def test_nobody_outlives_the_process_that_waits(tmp_path: Path) -> None:
    started = process("print(os.getpid(), flush=True); time.sleep(60)", tmp_path)
    assert started.stdout is not None
    child = int(started.stdout.readline())
    started.kill()
    started.communicate(timeout=30)  # until the child's end of the pipe is closed, too
    for _ in range(300):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        time.sleep(0.1)
    pytest.fail("the child is still there")


def test_an_error_of_our_own_keeps_its_traceback_and_no_plug_in_is_blamed() -> None:
    code = "import robustfl.cli as cli\ndef invoke(words): raise KeyError('ours')\ncli.invoke = invoke; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'ours'\n")


# --- commands --------------------------------------------------------------------------------------------------------


def command(*words: str, cwd: Path) -> tuple[int, str]:
    call = [sys.executable, "-m", "robustfl", *words]
    done = subprocess.run(call, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
    return done.returncode, done.stderr


def settings(name: str) -> list[str]:
    return [w for setting in [*TINY, f"attack={name}"] for w in ("--set", setting)]


def write(name: str, body: str, folder: Path, *, after: str = "") -> None:
    text = PLUGIN.format(name=name, base=FORGE[0], method=FORGE[1], body=body)
    (folder / "hostile.py").write_text(f"{text}\n{after}\n", encoding="utf-8")


@pytest.mark.parametrize("words", [("list", "attacks"), pytest.param(("grid",), marks=pytest.mark.slow)])
def test_a_command_whose_plug_in_ends_it_at_import_is_misuse(words: tuple[str, ...], tmp_path: Path) -> None:
    write("bad", "pass", tmp_path, after="import os; os._exit(0)")
    code, said = command(*words, "--plugin", "hostile.py", cwd=tmp_path)
    assert (code, said) == (
        2, "Error: plug-in 'hostile.py' could not be imported: it ended the process, exit status 0\n"
    )  # fmt: skip
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [("run",), pytest.param(("check", "hostile.py"), marks=pytest.mark.slow)])
def test_a_method_that_ends_a_command_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    write("leaves", "import os; os._exit(0)", tmp_path)
    more = [] if words[0] == "check" else [*settings("leaves"), "--plugin", "hostile.py"]
    code, said = command(*words, *more, cwd=tmp_path)
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("Error: attack 'leaves' (hostile.py ")
    assert last.endswith(" ended the process: exit status 0")


@pytest.mark.parametrize("end", ["import sys; sys.exit(0)", "raise MemoryError"])
def test_a_dry_run_of_a_method_that_gives_up_names_it_and_fails(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"gives-up-{len(end)}"
    write(name, end, tmp_path)
    monkeypatch.chdir(tmp_path)
    load_plugins()
    monkeypatch.setitem(_entries, "attack", dict(_entries["attack"]))
    assert invoke(["grid", "--dry-run", *settings(name), "--plugin", "hostile.py"]) == 1
    said = capsys.readouterr().out
    assert "could not be timed, and will not run here" in said
    assert f"[attack {name} (hostile.py " in said


def test_an_exit_that_nobody_catches_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(*args: object, **kwargs: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr("robustfl.cli.methods.list_methods", leave)
    assert invoke(["list"]) == 1
    assert f"sys.exit(0) ended the command, raised in {__file__}" in capsys.readouterr().err
