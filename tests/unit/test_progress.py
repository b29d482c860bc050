"""Progress of a grid: what varies names cells, one traceback per cause, rounds of long cells; a bar in a notebook."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import robustfl
from robustfl.cli import printing
from robustfl.scenarios import Finished, ResolvedCell, Scenario, expand, progress
from robustfl.scenarios import grid as module
from robustfl.scenarios.expand import labels
from robustfl.scenarios.progress import GridProgress, cause, duration, in_notebook, varying
from robustfl.scenarios.run_options import unheard

CELL = {"rounds": 1, "clients": 4, "model": "digits-cnn(hidden=8)", "evasions": [], "attack": ["none", "sf"], "f": 1}
TRACE = 'ValueError: boom {}\nTraceback (most recent call last):\n  File "a.py", line {}, in f\n    x\nboom {}\n'


def planned(axes: dict[str, Any]) -> Any:
    cells = expand(Scenario.of({"name": "s", "cell": axes}))
    keyed = {f"k{i}": ResolvedCell(cell, "", "s", f"k{i}") for i, cell in enumerate(cells)}
    return SimpleNamespace(cells=keyed, missing=tuple(keyed), begun=0, others=0, folder="runs/s",
                           scenario=SimpleNamespace(name="s"))  # fmt: skip


def shown(axes: dict[str, Any], capsys: pytest.CaptureFixture[str], *ends: tuple[str, str]) -> str:
    """What is said of a grid whose first cells end with these statuses and reasons."""
    plan = planned(axes)
    with GridProgress(Console(file=sys.stderr), unheard) as bar:
        bar.start(plan)
        for (key, cell), (status, reason) in zip(plan.cells.items(), ends, strict=False):
            bar.cell(Finished(key, cell.labels, status, reason, 0.5, None, 1.0))
    return capsys.readouterr().err


def test_cells_are_named_by_what_varies(capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"partition": ["gamma(gamma=0.0)", "iid"], "f": [1, 2], "attack": "sf", "rounds": [5]}
    assert varying([labels(c) for c in expand(Scenario.of({"name": "s", "cell": axes}))]) == ["partition", "f"]
    said = shown(axes, capsys, *[("done", "")] * 4)
    assert "[4/4, < 1 s] iid · f = 2: SA 50.0" in said
    assert "gamma(" not in said


def test_one_cause_has_one_traceback_and_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    ends = [("failed", TRACE.format(1, 7, 1)), ("failed", TRACE.format(2, 7, 2)), ("failed", TRACE.format(3, 9, 3))]
    said = shown({"seed": [0, 1, 2, 3]}, capsys, *ends, ("done", ""))
    assert said.count("Traceback") == 2  # the third came from another line
    assert "seed = 1: failed: ValueError: boom 2 (as above, 2 failed so far)" in said
    assert "[4/4, < 1 s, 3 failed] seed = 3: SA 50.0" in said
    assert cause("took longer\n") == ("took longer",)
    assert cause(TRACE.format(1, 7, 1)) == ("ValueError", "a.py", "7")


def test_a_warning_is_told_with_the_first_cell_that_has_it() -> None:
    heard: list[str] = []
    plan = planned({"seed": [0, 1]})
    bar = GridProgress(None, heard.append)
    bar.start(plan)
    for cell, share in zip(plan.cells.values(), ("61.0", "7"), strict=True):
        warnings = ("clients run one after another (a layer)", f"gradients may be masked: {share} %")
        bar.cell(Finished("k", cell.labels, "done", None, 0.5, None, 1.0, warnings=warnings))
    first = "(seed = 0, the first cell of it)"
    assert heard == [f"warning: clients run one after another (a layer) {first}",
                     f"warning: gradients may be masked: 61.0 % {first}"]  # fmt: skip


def test_a_long_cell_tells_its_rounds_where_there_is_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    bar = GridProgress(Console(file=sys.stderr), unheard)
    bar._names = {"k": "fbn · alie"}
    bar.round("k", 312, 2000)
    assert "running fbn · alie: round 312 of 2000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "< 1 s"), (1, "1 s"), (89, "89 s"), (90, "2 min"), (4_585_680, "53.1 days")],
)
def test_a_duration_is_told_in_a_unit_that_can_be_read(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("", 160), ("none", 160), ("0", 160)])
def test_columns_are_honoured_where_output_is_no_terminal(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert printing.console().width == width


# --- from Python -----------------------------------------------------------------------------------------------------


def kernel(monkeypatch: pytest.MonkeyPatch, there: object) -> list[str]:
    """Pretend a notebook's kernel; what its display shows, in turn."""
    shown: list[str] = []
    display = SimpleNamespace(HTML=str, update=shown.append)
    display.display = lambda bar, display_id: shown.append(bar) or display
    shell = SimpleNamespace(kernel=there)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "_NOTEBOOK_SECONDS", 0.0)
    return shown


def test_a_notebook_counts_cells_rounds_and_troubles(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = kernel(monkeypatch, object())
    bar = GridProgress(None, unheard, notebook=True)
    bar.start(planned({"seed": [0, 1]}))
    bar.round("k0", 3, 4)
    for key, status in (("k0", "done"), ("k1", "failed")):
        bar.cell(Finished(key, {}, status, None, None, None, 1.0))
    told = [(line.partition('value="')[2].partition('"')[0], line.partition("<small>")[2]) for line in bars]
    assert told == [("0", "s</small>"), ("0.75", "round 3 of 4</small>"), ("1", "s</small>"), ("2", "1 failed</small>")]


@pytest.mark.parametrize(
    ("there", "progress", "heard", "expected"),
    [(object(), None, False, True), (object(), None, True, False), (object(), False, False, False),
     (object(), True, True, True), (None, None, False, False)],
)  # fmt: skip
def test_only_a_kernel_is_a_notebook_and_listeners_see_no_bar(
    there: object, progress: bool | None, heard: bool, expected: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    bars, told = kernel(monkeypatch, there), []
    assert in_notebook() is (there is not None)

    def run(*_: object, on_start: Callable[[Any], None], **more: object) -> None:
        on_start(planned({"seed": [0, 1]}))

    monkeypatch.setattr(sys.modules[module.__module__], "run_grid", run)
    listeners = {"on_start": told.append} if heard else {}
    module("quickstart", progress=progress, **listeners)
    assert bool(bars) is expected
    assert len(told) == heard
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_gives_the_cursor_back_when_a_grid_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(told: Finished) -> None:
        del told
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[module.__module__], "Console", lambda file: Console(file=file, force_terminal=True))
    study = Scenario.of({"name": "two", "cell": CELL})
    with pytest.raises(KeyboardInterrupt):
        robustfl.grid(study, out=tmp_path, jobs=0, progress=True, on_cell=interrupted)
    hidden, given_back = capsys.readouterr().err.rpartition("\x1b[?25l")[1:]
    assert hidden
    assert "\x1b[?25h" in given_back


def test_a_script_is_shown_nothing_unless_it_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Scenario.of({"name": "two", "cell": CELL})
    robustfl.grid(study, out=tmp_path, jobs=0)
    assert capsys.readouterr() == ("", "")
    robustfl.grid(study, out=tmp_path / "asked", jobs=0, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "[2/2, " in captured.err


@pytest.mark.slow
def test_a_notebook_shows_a_bar_that_ends_full(tmp_path: Path) -> None:
    if find_spec("nbclient") is None or find_spec("ipykernel") is None:
        pytest.skip("nbclient and ipykernel are not installed (extra [notebook])")
    import nbclient
    import nbformat

    code = f"""
import robustfl
study = robustfl.Scenario.of({{"name": "two", "cell": {CELL!r}}})
done = robustfl.grid(study, out="runs", jobs=0)
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(client.async_execute())
    (output,) = book.cells[0].outputs
    assert output.output_type == "display_data"
    assert '<progress max="2" value="2"' in output.data["text/html"]
    assert "2 of 2 cells" in output.data["text/html"]
