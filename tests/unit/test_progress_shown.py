"""Progress of a grid called from Python: a live bar in a notebook, nothing in a script unless asked."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import robustfl
from robustfl.scenarios import Finished
from robustfl.scenarios import progress as module
from robustfl.scenarios.progress import in_notebook, shown

CELL = {"rounds": 1, "clients": 4, "model": "digits-cnn(hidden=8)", "evasions": [], "attack": ["none", "sf"], "f": 1}


class Seen:
    """A display that keeps what it is shown."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, int, str]] = []

    def show(self, done: float, total: int, words: str) -> None:
        self.lines.append((done, total, words))

    def stop(self) -> None:
        self.lines.append((-1, 0, "stopped"))


def finished(key: str, status: str = "done") -> Finished:
    return Finished(key, {}, status, None, None, None, 1.0)


def test_a_bar_counts_cells_rounds_and_troubles_and_passes_all_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, heard = Seen(), []
    monkeypatch.setattr(module, "TerminalDisplay", lambda: seen)
    monkeypatch.setattr(module, "_EVERY", 0.0)
    listeners = shown(True, lambda plan: heard.append("start"), lambda cell: heard.append(cell.key), None, heard=True)
    plan: Any = SimpleNamespace(missing=("a", "b"), cells={"a": 0, "b": 0, "c": 0}, scenario=SimpleNamespace(name="x"))
    with listeners as (on_start, on_cell, on_round):
        on_start(plan)
        assert on_round is not None
        on_round("a", 3, 4)
        on_cell(finished("a"))
        on_cell(finished("b", "failed"))
    counted = [(0, 2, "x, 1 were there"), (0.75, 2, "round 3 of 4"), (1, 2, ""), (2, 2, "1 failed")]
    assert seen.lines == [*counted, (-1, 0, "stopped")]
    assert heard == ["start", "a", "b"]


def test_a_bar_on_a_terminal_gives_the_cursor_back_when_a_grid_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(told: Finished) -> None:
        del told
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "Console", lambda file: Console(file=file, force_terminal=True))
    study = robustfl.Scenario.of({"name": "two", "cell": CELL})
    with pytest.raises(KeyboardInterrupt):
        robustfl.grid(study, out=tmp_path, jobs=0, progress=True, on_cell=interrupted)
    hidden, given_back = capsys.readouterr().err.rpartition("\x1b[?25l")[1:]
    assert hidden
    assert "\x1b[?25h" in given_back


def test_a_script_is_shown_nothing_unless_it_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = robustfl.Scenario.of({"name": "two", "cell": CELL})
    robustfl.grid(study, out=tmp_path, jobs=0)
    assert capsys.readouterr() == ("", "")
    robustfl.grid(study, out=tmp_path / "asked", jobs=0, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 of 2 cells" in captured.err


@pytest.mark.parametrize(
    ("kernel", "heard", "expected"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_a_kernel_is_a_notebook_and_listeners_see_no_bar(
    kernel: bool, heard: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(kernel=object() if kernel else None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is kernel

    def listener(told: Any) -> None:
        pass

    with shown(None, listener, listener, None, heard=heard) as made:
        assert (made[0] is not listener) is expected


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
