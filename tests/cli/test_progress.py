"""Progress of a grid: names what varies, counts failures, one traceback per cause, rounds of long cells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from robustfl.cli import progress
from robustfl.cli.printing import console
from robustfl.cli.progress import GridProgress, cause, varying
from robustfl.scenarios import Finished, ResolvedCell, expand
from robustfl.scenarios.expand import labels
from robustfl.scenarios.spec import Scenario


def shown(axes: dict[str, Any], capsys: pytest.CaptureFixture[str], *ends: tuple[str, str]) -> str:
    """What is said of a grid whose first cells end with these statuses and reasons."""
    expanded = expand(Scenario.of({"name": "s", "cell": axes}))
    cells = {f"k{i}": ResolvedCell(cell, "", "s", f"k{i}") for i, cell in enumerate(expanded)}
    plan: Any = SimpleNamespace(cells=cells, missing=tuple(cells), begun=0, others=0, folder="runs/s",
                                scenario=SimpleNamespace(name="s"))  # fmt: skip
    with GridProgress() as bar:
        bar.start(plan)
        for (key, cell), (status, reason) in zip(cells.items(), ends, strict=False):
            bar.cell(Finished(key, cell.labels, status, reason, 0.5, None, 1.0))
    return capsys.readouterr().err


def test_cells_are_named_by_what_varies(capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"partition": ["gamma(gamma=0.0)", "iid"], "f": [1, 2], "attack": "sf", "rounds": [5]}
    assert varying([labels(c) for c in expand(Scenario.of({"name": "s", "cell": axes}))]) == ["partition", "f"]
    said = shown(axes, capsys, *[("done", "")] * 4)
    assert "[4/4, < 1 s] iid · f = 2: SA 50.0" in said
    assert "gamma(" not in said


TRACE = 'ValueError: boom {}\nTraceback (most recent call last):\n  File "a.py", line {}, in f\n    x\nboom {}\n'


def test_one_cause_has_one_traceback_and_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    ends = [("failed", TRACE.format(1, 7, 1)), ("failed", TRACE.format(2, 7, 2)), ("failed", TRACE.format(3, 9, 3))]
    said = shown({"seed": [0, 1, 2, 3]}, capsys, *ends, ("done", ""))
    assert said.count("Traceback") == 2  # the third came from another line
    assert "seed = 1: failed: ValueError: boom 2 (as above, 2 failed so far)" in said
    assert "[4/4, < 1 s, 3 failed] seed = 3: SA 50.0" in said


def test_a_warning_is_told_with_the_first_cell_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    cells = expand(Scenario.of({"name": "s", "cell": {"seed": [0, 1]}}))
    with GridProgress() as bar:
        for cell, share in zip(cells, ("61.0", "7"), strict=True):
            warnings = ("clients run one after another (a layer)", f"gradients may be masked: {share} %")
            bar.cell(Finished("k", labels(cell), "done", None, 0.5, None, 1.0, warnings=warnings))
    said = capsys.readouterr().err
    assert said.count("clients run one after another (a layer)") == 1
    assert said.count("masked: 61.0 %") == 1
    assert "masked: 7" not in said


def test_a_failure_without_a_traceback_is_its_own_cause() -> None:
    assert cause("took longer\n") == ("took longer",)
    assert cause(TRACE.format(1, 7, 1)) == ("ValueError", "a.py", "7")


def test_a_long_cell_tells_its_rounds_where_there_is_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    bar = GridProgress()
    bar._names = {"k": "fbn · alie"}
    bar.round("k", 312, 2000)
    assert "running fbn · alie: round 312 of 2000" in capsys.readouterr().err
    bar.cell(Finished("k", {}, "done", None, 0.5, None, 1.0))


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("", 160), ("none", 160), ("0", 160)])
def test_columns_are_honoured_where_output_is_no_terminal(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width
