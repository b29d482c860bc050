"""The documentation builds as a site with every warning an error, and its pages name what boards and papers say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robustfl.cli import invoke
from robustfl.cli.reproduce import TOLERANCE
from robustfl.reports.published import read_board

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "boards").glob("*.json*"))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    site = tmp_path / "site"
    for page in ("index", "methods", "benchmark/index", "benchmark/d", "evidence/index", "benchmark/study-3"):
        assert (site / f"{page}.html").is_file(), page
    for board in BOARDS:
        if board.name.startswith("bench-"):
            assert (site / "benchmark" / "boards" / board.name).read_bytes() == board.read_bytes()
    example = site / "boards" / "quickstart"
    assert (example / "index.html").is_file()
    assert (example / "leaderboard.md").is_file()  # a download
    assert not (example / "leaderboard.html").exists()


def test_boards_of_the_papers_claim_what_unsettled_trainings_repeat() -> None:
    for board in BOARDS:
        if board.name.startswith("reproduction-"):
            assert read_board(board)[0].tolerance == TOLERANCE, board


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.name)
def test_boards_of_the_repository_are_whole(board: Path) -> None:
    assert invoke(["verify", str(board), "--check-only"]) == 0
