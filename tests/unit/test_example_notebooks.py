"""The notebooks in ``examples/`` run from top to bottom, and what is committed of their outputs is small."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import robustfl
from robustfl.errors import UsageError
from robustfl.reports import load_board
from robustfl.reports.notebook import Drawn, Plots
from tests.tracked import tracked

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = tracked("examples/*.ipynb")
RUN = """
import sys, nbformat, nbclient
book = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
"""


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["explore_board", "invent_attack", "own_model"]


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_a_reader_would_run_it(path: Path, tmp_path: Path) -> None:
    if find_spec("nbclient") is None or find_spec("ipykernel") is None:
        pytest.skip("nbclient and ipykernel are not installed (extra [notebook])")
    made = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_outputs_are_small_and_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 50_000
    assert "/home/" not in text
    assert str(EXAMPLES.parent.resolve()) not in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    assert not [o for cell in cells for o in cell["outputs"] if o["output_type"] == "error"]


def test_plots_of_nothing_say_what_is_missing() -> None:
    with pytest.raises(UsageError, match="there is no finished cell"):
        Plots(list).heatmap()


def test_figures_are_axes_that_a_notebook_shows(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    one, two = Figure(), Figure()
    axes = [one.add_subplot(1, 2, 1), one.add_subplot(1, 2, 2), two.add_subplot()]
    drawn = Drawn("heatmap", [one, two])
    assert list(drawn) == axes
    assert drawn._repr_html_().count("<img") == 2
    assert [file.name for file in drawn.save(tmp_path / "x.png")] == ["x-1.png", "x-2.png"]
    with pytest.raises(UsageError, match=r"must end in \.pdf"):
        drawn.save(tmp_path / "x.bmp")


def test_results_and_records_show_themselves(tmp_path: Path) -> None:
    cell = {
        "rounds": 1,
        "clients": 4,
        "model": "digits-cnn(hidden=8)",
        "evasions": [],
        "attack": ["none", "sf"],
        "f": 1,
    }
    results = robustfl.grid(robustfl.Scenario.of({"name": "two", "cell": cell}), out=tmp_path, jobs=0)
    shown = results._repr_html_()
    assert shown.count("<table>") == 1
    assert "<th>worst case</th>" in shown
    assert "worst case" in load_board(tmp_path / "two")._repr_html_()
    assert len(results.plot.heatmap(metric="sa")) > 0
    record = robustfl.run({**cell, "attack": "sf"})
    assert record.metrics is not None
    assert f"<td>{record.metrics.sa:.1%}</td>" in record._repr_html_()
