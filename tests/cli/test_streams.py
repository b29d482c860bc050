"""What arrives on standard output and standard error: from a shell, whatever the terminal, the disk and the plug-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robustfl.cli import app, invoke

pytestmark = pytest.mark.slow

TINY = [
    "--set", "rounds=1", "--set", "model=mlp(hidden=(4,))", "--set", "norm=none", "--set", "evasions=[]",
    "--set", "attack=loud", "--set", "f=2", "--plugin", "loud.py",
]  # fmt: skip
LOUD = '''
import os
from dataclasses import dataclass
from robustfl import register
from robustfl.contracts import Attack

print("imported")

@register("loud", version=1)
@dataclass(frozen=True)
class Loud(Attack):
    """Send the mean and talk."""

    def forge(self, view, *, generator):
        print("forging")
        os.write(1, b"from below\\n")
        return view.honest.mean(0).expand(view.f, -1)
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("loud.py").write_text(LOUD)
    return tmp_path


def shell(*arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("env", {})}
    command = [sys.executable, "-m", "robustfl", *arguments]
    return subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE, **more)


def test_standard_output_holds_json_alone_whoever_prints() -> None:
    ran = shell("run", *TINY, "--format", "json", stdout=subprocess.PIPE)
    assert json.loads(ran.stdout)["status"] == "done"
    for words in (b"imported", b"forging", b"from below"):
        assert words in ran.stderr
    one = ["--set", "defense=mean", "--jobs", "1", "--format", "json"]
    assert json.loads(shell("grid", "quickstart", *TINY, "--set", "seed=0", "--set", "partition=iid", *one,
                            stdout=subprocess.PIPE).stdout)  # fmt: skip


def test_a_full_disk_is_told_once() -> None:
    with open("/dev/full", "wb") as full:
        ran = shell("list", "attacks", stdout=full)
    assert ran.returncode == 1
    assert ran.stderr.decode().strip() == "Error: No space left on device"


@pytest.mark.parametrize("what", ["attacks", "--markdown"])  # the second is written before the command ends
def test_a_closed_pipe_is_nobodys_error(what: str) -> None:
    end, start = os.pipe()
    os.close(end)
    ran = shell("list", what, stdout=start)
    os.close(start)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_a_terminal_without_letters_gets_what_it_has() -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    for command in (["show", "alie"], ["run", *TINY]):
        ran = shell(*command, env=ascii_only, stdout=subprocess.PIPE)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.isascii()
        assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize("command", [["grid", b"\xff.toml"], ["report", b"\xff"], ["verify", b"\xff"],
                                     ["run", "--set", b"name=\xff"], ["list", "--plugin", b"\xff.py"],
                                     ["run", "--set", b"dataset=npz:\xff.npz"]])  # fmt: skip
def test_names_that_are_no_text_are_errors_in_words(command: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code = invoke([os.fsdecode(part) for part in command])
    said = capsys.readouterr()
    assert code == 2
    assert said.err.startswith("Error: ")
    assert said.err.encode()


def test_the_end_of_a_file_is_no_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ended(*arguments: object, **more: object) -> None:
        raise EOFError("No data left in file")

    monkeypatch.setattr(app.commands["list"], "callback", ended)
    assert invoke(["list"]) == 1
    assert "Stopped" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tolerance", "--checkpoint-minutes", "--limit"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_nan_is_no_number_of_anything(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = {"--tolerance": ["verify", "b.json"], "--checkpoint-minutes": ["run"], "--limit": ["check", "krum"]}
    assert invoke([*command[option], option, value]) == 2
    assert capsys.readouterr().err


def test_an_annotation_that_is_no_type_names_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.py").write_text(LOUD.replace('"loud"', '"odd"').replace('talk."""', 'talk."""\n\n    z: "Nope" = 3'))
    assert invoke(["run", "--plugin", "odd.py", "--set", "attack=odd", "--set", "f=1"]) == 2
    assert "attack 'odd': the types of its fields cannot be read" in capsys.readouterr().err
