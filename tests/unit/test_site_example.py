"""The example board: readable, of the preset it names, and small enough to keep."""

from __future__ import annotations

import zlib
from pathlib import Path

from robustfl.reports.published import read_board
from robustfl.scenarios import Scenario, expand
from robustfl.scenarios.cell import Cell

EXAMPLE = Path(__file__).parents[2] / "reports" / "examples" / "quickstart"


def test_the_example_board_is_whole_and_holds_the_cells_of_its_preset() -> None:
    board, doubts = read_board(EXAMPLE / "board.json")
    assert doubts == []
    published = {Cell.of(record.cell["cell"]) for record in board.records()}
    assert published == set(expand(Scenario.load("quickstart")))
    assert {record.status for record in board.records()} <= {"done", "diverged"}


def test_the_example_site_is_there_and_small_as_git_stores_it() -> None:
    files = [p for p in EXAMPLE.rglob("*") if p.is_file()]
    assert {"index.html", "results.html", "style.css", "site.js", "leaderboard.json"} <= {p.name for p in files}
    assert len(list((EXAMPLE / "contestants").iterdir())) == 6
    assert sum(len(zlib.compress(p.read_bytes())) for p in files) < 5e5
