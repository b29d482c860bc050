"""Methods written in a notebook or at a prompt: edited, registered again, known by their content, run by workers."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from robustfl import registry
from robustfl.errors import UsageError

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
import torch
import robustfl
from robustfl.contracts import Attack

FACTOR = 3.0
NET = torch.nn.Linear(2, 2)
torch.nn.init.ones_(NET.weight), torch.nn.init.zeros_(NET.bias)

def far(x):
    assert "abc" not in {"ab", "bc", "cd"}
    return FACTOR * x

class Loud(Attack):
    @staticmethod
    def twice(x):
        return x / 0.5

@robustfl.register("shout")
@dataclass(frozen=True)
class Shout(Loud):
    paper: ClassVar[str] = ""
    loud: float = robustfl.param(2.0, gt=0)

    def forge(self, view, *, generator):
        assert NET.weight.sum() == 4
        return far(-self.loud * self.twice(view.honest.mean(0))).expand(view.f, -1)
"""
GRID = """
study = robustfl.Scenario.of({"name": "cells", "cell": {
    "attack": ["shout", "timed(attack='shout(loud=3)')"], "f": 2, "rounds": 1, "clients": 6, "evasions": [],
    "model": "digits-cnn(hidden=8)"}})
done = robustfl.grid(study, out="runs", jobs=1)
print(done.computed, done.stored, done.statuses)
"""
LOCKED = METHOD.replace("assert NET", "LOCK.acquire(False); assert NET") + "import threading; LOCK = threading.Lock()\n"
REFUSED = """
try:
    robustfl.grid(study, out="runs", jobs=2)
except robustfl.errors.UsageError as error:
    print(error)
"""
FUTURE = "from __future__ import annotations\n"
CELLS = [
    FUTURE,
    METHOD,
    GRID,
    METHOD,
    GRID,
    METHOD.replace("-self", "self"),
    GRID,
    "FACTOR = 4.0\n",
    GRID,
    LOCKED,
    REFUSED,
]
FEWER = [*CELLS[:3], *CELLS[7:9], *CELLS[-2:]]


pytestmark = pytest.mark.usefixtures("clean_registry")


def run_cell(text: str, space: dict[str, Any] | None = None) -> str:
    """Run one cell of a notebook; the origin of its method."""
    space = {} if space is None else space
    space["__name__"] = "__main__"
    exec(compile(text, "<cell>", "exec", dont_inherit=True), space)
    registry.reread_session()
    return registry.lookup("attack", "shout").origin


def shell(cells: list[str]) -> str:
    """The cells as a script that IPython runs one after the other."""
    return (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        f"shell = InteractiveShell.instance()\nfor cell in {cells!r}:\n    shell.run_cell(cell).raise_error()\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", ["prompt", "IPython"])
def test_a_cell_is_edited_run_again_and_run_by_workers(place: str, tmp_path: Path) -> None:
    if place == "IPython" and find_spec("IPython") is None:
        pytest.skip("IPython is not installed")
    told = {"prompt": "".join(CELLS), "IPython": shell(FEWER)}[place]
    made = subprocess.run([sys.executable, "-"], input=told, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    *grids, refusal = made.stdout.splitlines()
    both = "{'done': 2}"
    expected = [f"2 0 {both}", f"0 2 {both}", f"2 0 {both}", f"2 0 {both}"]
    assert grids == (expected if place == "prompt" else expected[2:])
    assert "cannot pickle '_thread.lock' object" in refusal
    assert "attack shout; write them in a file that plugins=[...] names" in refusal


def test_the_same_text_is_the_same_method_and_another_text_another() -> None:
    first = run_cell(METHOD)
    assert first.startswith("session ")
    assert run_cell("\n\n" + METHOD) == first
    for old, new in (
        ("-self.loud", "self.loud"),
        ("FACTOR = 3.0", "FACTOR = 4.0"),
        ("return FACTOR * x", "return x"),
        ('"cd"', '"de"'),
        ("x / 0.5", "x / 0.25"),
        ("@staticmethod", "@classmethod"),
        ("param(2.0", "param(5.0"),
        ("zeros_(NET.bias)", "ones_(NET.bias)"),
        ("gt=0", "gt=1"),
    ):
        assert run_cell(METHOD.replace(old, new)) != first, f"{new} is as good as {old}"


def test_a_function_that_is_edited_later_makes_another_method() -> None:
    space: dict[str, Any] = {}
    first = run_cell(METHOD, space)
    assert run_cell("def far(x):\n    return x", space) != first
    assert run_cell("def far(x):\n    assert 'abc' not in {'ab', 'bc', 'cd'}\n    return FACTOR * x", space) == first
    assert run_cell("unrelated = honest = 1", space) == first


def test_the_class_that_was_edited_is_the_one_that_runs() -> None:
    run_cell(METHOD)
    run_cell(METHOD.replace("param(2.0", "param(7.0"))
    assert registry.create("attack", "shout").loud == 7


@pytest.mark.parametrize(("old", "new"), [("class Shout", "class Whisper"), ('register("shout")', 'register("sf")')])
def test_a_name_that_another_class_has_stays_taken(old: str, new: str) -> None:
    run_cell(METHOD)
    with pytest.raises(UsageError, match="is taken by"):
        run_cell(METHOD.replace(old, new))


def test_a_module_may_not_register_twice() -> None:
    code, space = compile(METHOD, "<module>", "exec", dont_inherit=True), {"__name__": "some_module"}
    exec(code, space)
    with pytest.raises(UsageError, match=r"'shout' is taken by some_module\.Shout"):
        exec(code, space)


def test_a_class_of_a_script_is_known_in_every_session(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text("# moved\n" + METHOD + "print(robustfl.registry.lookup('attack', 'shout').origin)\n")
    other = {**os.environ, "PYTHONHASHSEED": "7"}
    made = subprocess.run([sys.executable, str(script)], env=other, text=True, capture_output=True, check=True)
    assert made.stdout.strip() == run_cell(METHOD)
