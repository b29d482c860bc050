"""The page of claims beside measurements is what the boards of the repository give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robustfl.cli import invoke
from robustfl.cli.reproduce import TOLERANCE
from robustfl.reports.published import read_board

pytestmark = pytest.mark.boards

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_boards(tmp_path: Path) -> None:
    boards = sorted((ROOT / "boards").glob("reproduction-*.json"))
    assert boards
    read = [word for board in boards for word in ("--from", str(board))]
    assert invoke(["reproduce", *read, "--report", str(tmp_path)]) == 0
    made = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    kept = (ROOT / "docs" / "evidence" / "reproduction.md").read_text(encoding="utf-8")
    assert made == kept, "write it again: docs/reproduction.md says how"


def test_boards_of_the_papers_claim_what_unsettled_trainings_repeat() -> None:
    for board in sorted((ROOT / "boards").glob("reproduction-*.json")):
        assert read_board(board)[0].tolerance == TOLERANCE, board


def test_the_command_of_the_documentation_names_every_board() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    told = re.findall(r"--from (boards/reproduction-\S+)", page)
    assert told == [f"boards/{board.name}" for board in sorted((ROOT / "boards").glob("reproduction-*.json"))]


def test_boards_of_the_repository_are_whole() -> None:
    for board in sorted((ROOT / "boards").glob("*.json")):
        assert invoke(["verify", str(board), "--check-only"]) == 0, board
