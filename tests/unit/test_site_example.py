"""The example board: readable, of the preset it names, and small enough to keep."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

import robustfl
from robustfl.errors import UsageError
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


def test_the_leaderboard_of_the_board_is_that_of_its_site(tmp_path: Path) -> None:
    found = robustfl.leaderboard(EXAMPLE / "board.json", metric="sa")
    shown = json.loads((EXAMPLE / "leaderboard.json").read_text())["tables"]
    rows = [
        (r["labels"]["defense"], r["labels"]["norm"], *r["ranks"])
        for t in shown
        if t["metric"] == "sa"
        for r in t["rows"]
    ]
    assert [tuple(row) for row in found[["defense", "norm", "rank low", "rank high"]].to_numpy().tolist()] == rows
    edited = (EXAMPLE / "board.json").read_text().replace('"sa":0.', '"sa":0.0', 1)
    (tmp_path / "board.json").write_text(edited)
    with pytest.raises(UsageError, match="digest"):
        robustfl.leaderboard(tmp_path / "board.json")
