"""The leaderboard of many attacks: what a terminal shows of it, and what the text file does."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_store import record
from rich.console import Console

from robustfl.records import CellResult
from robustfl.reports import rank_board
from robustfl.reports.board import Board
from robustfl.reports.frame import frame
from robustfl.reports.terminal import by_harm, terminal
from robustfl.reports.writers import to_text

MANY = {"none": 0.9} | {f"attack-{i:02}": 0.85 - i / 50 for i in range(28)}


def row(defense: str, **sa: float) -> list[CellResult]:
    """One row of a board: an accuracy per attack."""
    return [record(defense=defense, attack=attack, sa=value, ra={}) for attack, value in sa.items()]


def board(*records: CellResult) -> Board:
    return rank_board(frame(records))


def printed(made: Board, width: int, **options: Any) -> str:
    """What a terminal of that width shows."""
    out = io.StringIO()
    screen = Console(file=out, width=width)
    for part in terminal(made, **options):
        screen.print(part)
    return out.getvalue()


def heading(shown: str) -> str:
    return next(line for line in shown.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_of_many_attacks_the_hardest_are_shown_and_the_others_named(width: int) -> None:
    shown = printed(board(*row("median", **MANY)), width, full="runs/x/leaderboard.csv")
    head, below = heading(shown), shown.split("columns left out")[1].split("One seed")[0]
    assert max(map(len, shown.splitlines())) <= width
    assert head.split()[-3:] == ["worst", "case", "hardest"]
    assert next(line for line in shown.splitlines() if line.startswith("1")).split()[-2:] == ["31.0", "attack-27"]
    assert "none" in head
    assert "attack-27" in head
    assert "attack-00" not in head
    assert "attack-00" in below
    assert "runs/x/leaderboard.csv" in below
    assert head.count("attack-") + below.count("attack-") == 28


def test_what_fits_is_used() -> None:
    made = board(*row("median", **MANY))
    shown = [heading(printed(made, width)).count("attack-") for width in (80, 120, 200, 400)]
    assert shown == sorted(set(shown))
    assert shown[-1] == 28


def test_few_attacks_are_all_shown_without_a_word() -> None:
    shown = printed(board(*row("median", none=0.9, sf=0.5)), 80)
    assert "left out" not in shown
    assert "hardest" not in heading(shown)
    assert "none" in heading(shown)
    assert "sf" in heading(shown)


def test_an_attack_under_which_a_row_diverges_is_the_hardest() -> None:
    made = board(
        *row("median", none=0.9, mild=0.8, broken=0.85), *row("mean", none=0.9, mild=0.3),
        record(defense="mean", attack="broken", status="diverged", reason="x", round=3),
    )  # fmt: skip
    assert [made.attacks[i] for i in by_harm(made, made.sections[0])] == ["none", "broken", "mild"]


def test_the_worst_case_stays_on_the_narrowest_terminal() -> None:
    shown = printed(board(*row("nnm+trimmed-mean", **MANY)), 40)
    assert max(map(len, shown.splitlines())) <= 40
    assert "31.0" in shown.split("columns left out")[0]


def test_the_text_file_leaves_no_attack_out() -> None:
    text = to_text(board(*row("median", **MANY)))
    assert heading(text).count("attack-") == 28
    assert "left out" not in text
