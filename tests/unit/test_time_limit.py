"""The time a cell may take, and workers that run out of it or of memory: their cells fail, the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robustfl.errors import UsageError
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario, grid

pytestmark = pytest.mark.slow

CELL = {
    "defense": "mean", "norm": "fbn", "model": "mlp(hidden=(8,))", "f": 1, "clients": 5, "batch": 8, "rounds": 4,
    "evasions": [], "engine": "fast",
}  # fmt: skip
PLUGIN = '''
import itertools, time
from dataclasses import dataclass
import torch
from robustfl.contracts import Attack
from robustfl.registry import register

@register("{name}", version=1)
@dataclass(frozen=True)
class Plugin(Attack):
    """A plug-in."""
    def forge(self, view, *, generator):
        {body}
'''
SWALLOWS = """
        while True:
            try:
                time.sleep(60)
            except Exception:
                pass
"""


def scenario(folder: Path, name: str, body: str) -> Scenario:
    """Two cells: one without attack, one with the plug-in."""
    (folder / f"{name}.py").write_text(PLUGIN.format(name=name, body=body))
    chosen = Scenario.of({"name": "s", "cell": {**CELL, "attack": ["none", name]}})
    return chosen.model_copy(update={"plugins": (str(folder / f"{name}.py"),)})


def failed(folder: Path) -> str:
    (record,) = (r for r in Store(folder).load().results if r.status == "failed")
    assert record.reason is not None
    return record.reason


def run(chosen: Scenario, out: Path, **settings: Any) -> str:
    results = grid(chosen, out=out, **settings)
    assert results.statuses == {"done": 1, "failed": 1}
    return failed(results.folder)


def test_a_plug_in_that_hangs_is_named_and_the_grid_goes_on(tmp_path: Path) -> None:
    reason = run(scenario(tmp_path, "hang", SWALLOWS), tmp_path, jobs=1, cell_minutes=0.03)
    assert reason.startswith("time limit of 0.03 min (--cell-minutes) reached [attack hang: hang.py ")
    assert "in forge" in reason


def test_code_that_never_comes_back_to_python_is_ended_from_outside(tmp_path: Path) -> None:
    body = "sum(itertools.repeat(1))"  # holds Python's lock; no signal handler runs
    reason = run(scenario(tmp_path, "stuck", body), tmp_path, jobs=1, cell_minutes=0.03)
    assert "time limit of 0.03 min" in reason.splitlines()[0]
    assert "stuck.py" in reason.splitlines()[0]
    assert "in forge" in reason


def test_a_cell_that_needs_more_memory_than_there_is_says_what_to_do(tmp_path: Path) -> None:
    reason = run(scenario(tmp_path, "greedy", "return torch.empty(2**58)"), tmp_path, jobs=0)
    assert "out of memory" in reason.splitlines()[0]
    assert "--jobs" in reason.splitlines()[0]


def test_a_worker_that_is_killed_says_what_to_do(tmp_path: Path) -> None:
    body = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    reason = run(scenario(tmp_path, "killed", body), tmp_path, jobs=1)
    assert "died twice on this cell (out of memory?); run fewer cells at once (--jobs)" in reason


@pytest.mark.parametrize("wrong", [{"cell_minutes": 0}, {"cell_minutes": float("nan")}, {"checkpoint_minutes": -1.0}])
def test_impossible_minutes_are_refused(wrong: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="minutes"):
        grid(Scenario.of({"name": "s", "cell": CELL}), out=tmp_path, **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()
