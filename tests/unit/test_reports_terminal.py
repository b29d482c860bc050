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
from robustfl.reports.tables.terminal import by_harm, terminal
from robustfl.reports.tables.writing import to_text

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
    return next(line for line in shown.splitlines() if line.lstrip().startswith("#"))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_of_many_attacks_the_hardest_are_shown_and_the_others_named(width: int) -> None:
    shown = printed(board(*row("median", **MANY)), width, full="runs/x/leaderboard.csv")
    head, below = heading(shown), shown.split("Left out for lack of width")[1].split("One seed")[0]
    assert max(map(len, shown.splitlines())) <= width
    assert head.split()[-2:] == ["case", "hardest"]
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
    assert "attacks" not in shown
    assert "hardest" not in heading(shown)
    assert "none" in heading(shown)
    assert "sf" in heading(shown)


def test_an_attack_under_which_a_row_diverges_is_the_hardest() -> None:
    made = board(
        *row("median", none=0.9, mild=0.8, broken=0.85), *row("mean", none=0.9, mild=0.3),
        record(defense="mean", attack="broken", status="diverged", reason="x", round=3),
    )  # fmt: skip
    assert [made.attacks[i] for i in by_harm(made, made.sections[0].rows)] == ["none", "broken", "mild"]


def test_the_worst_case_stays_on_the_narrowest_terminal() -> None:
    shown = printed(board(*row("nnm+trimmed-mean", **MANY)), 40)
    assert max(map(len, shown.splitlines())) <= 40
    assert "31.0" in shown.split("Left out")[0]


def test_the_text_file_leaves_no_attack_out() -> None:
    text = to_text(board(*row("median", **MANY)))
    assert heading(text).count("attack-") == 28
    assert "left out" not in text.lower()


# --- the order in which detail goes ----------------------------------------------------------------------------------


def five(defense: str, norm: str, **sa: float) -> list[CellResult]:
    """One row of a board with five seeds."""
    return [
        record(defense=defense, norm=norm, attack=a, sa=v + s / 100, seed=s, ra={}, partition=p)
        for a, v in sa.items() for s in range(5) for p in ("gamma(gamma=0.0)", "gamma(gamma=0.5)")
    ]  # fmt: skip


STUDY = [
    c for d, v in (("mean", 0.2), ("trimmed-mean", 0.5), ("nnm+trimmed-mean", 0.6)) for n in ("fbn", "naive-bn")
    for c in five(d, n, none=0.9, sf=v, **{"foe(eta=10)": v + 0.1}, alie=v + 0.2)
]  # fmt: skip


def test_costs_go_first_then_the_intervals_of_single_attacks_and_attacks_later() -> None:
    made = board(*STUDY)
    heads = {w: heading(printed(made, w)) for w in (160, 120, 80)}
    assert "peak MiB" in heads[160]
    for width, head in heads.items():
        shown = printed(made, width)
        assert max(map(len, shown.splitlines())) <= width
        assert all(a in shown.split("Left out")[0] for a in ("none", "sf", "alie", "foe(")), width
        row = next(line for line in shown.splitlines() if line.startswith("1–2"))
        assert row.count("[") == (5 if width == 160 else 1), row  # the worst case keeps its own
        assert ("s/round" in head) == (width == 160)
    assert "Left out for lack of width: peak MiB; s/round; intervals or seeds of single attacks" in " ".join(
        printed(made, 80).split()
    )


def test_overall_comes_first_and_notes_stand_once_below() -> None:
    shown = printed(board(*STUDY), 120)
    titles = [line for line in shown.splitlines() if line.startswith("fake: ")]
    assert [t.split(", ")[1].split(" (")[0] for t in titles] == ["overall", "γ = 0", "γ = 0.5"]
    assert shown.count("Mean over 5 seeds") == shown.count("Left out") == 1
    assert "gamma(gamma" not in shown


def test_ranges_of_ranks_stand_in_the_first_column() -> None:
    shown = printed(board(*row("mean", sf=0.5), *row("median", sf=0.6)), 80)
    assert [line.split()[0] for line in shown.splitlines() if " fbn " in line] == ["1–2", "1–2"]
