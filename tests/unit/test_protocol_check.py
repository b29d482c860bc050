"""A board that says it follows the benchmark's protocol is held against it, cell by cell and search by search."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robustfl.reports.published import Board, read_board
from robustfl.scenarios.bench import protocol
from robustfl.scenarios.protocol_check import apart_from_protocol, words_of

Change = Callable[[dict[str, Any]], object]
FILE = Path(__file__).parents[2] / "boards" / "bench-d.json"


@pytest.fixture(scope="module")
def board() -> Board:
    return read_board(FILE)[0]


def saying(board: Board, change: Change) -> Board:
    """The board with other words about its protocol."""
    said = copy.deepcopy(dict(board.protocol or {}))
    change(said)
    return board.model_copy(update={"protocol": said})


def entry(said: dict[str, Any], name: str = "cge · fbn · dsgd") -> dict[str, Any]:
    found: dict[str, Any] = said["benchmark"]["contestants"][name]
    return found


@pytest.mark.parametrize("tier", sorted(protocol().tiers))
def test_every_committed_board_follows_the_version_that_it_names(tier: str) -> None:
    assert apart_from_protocol(read_board(FILE.with_name(f"bench-{tier}.json"))[0]) == []


def test_the_committed_board_follows_it_and_says_what_it_changed(board: Board) -> None:
    assert apart_from_protocol(board) == []
    words = words_of(board)
    said = board.protocol or {}
    dropped, contestants = len(said["autobyz"]["dropped"]), len(said["benchmark"]["contestants"])
    assert (
        f"AutoByz version {said['benchmark']['autobyz']} complete; {dropped} cells left out by the cheap mode" in words
    )
    assert f"{contestants} contestants tuned within the budget; not the whole protocol, which it says: rounds=" in words


def test_a_board_that_says_nothing_is_asked_nothing(board: Board) -> None:
    silent = board.model_copy(update={"protocol": None})
    assert apart_from_protocol(silent) == []
    assert words_of(silent) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: entry(said)["search"].append(entry(said)["search"][0]), "tuned on 7 configurations"),
        (lambda said: entry(said)["search"][0].update(schedule="constant(lr=0.3)"), "other configurations than those"),
        (lambda said: entry(said)["search"][0]["validation"].pop("min-max"), "tuned under other attacks than"),
        (lambda said: entry(said)["search"][2].update(worst=0.99), "is not the worst of its scores"),
        (lambda said: entry(said).update(chosen=1), "chose configuration 1, where 5 has the highest worst case"),
        (lambda said: entry(said).update(knowledge="none"), "is told f declared, not none"),
        (lambda said: said["benchmark"]["contestants"].pop("cge · fbn · dsgd"), "has what the tier does not: cge, fbn"),
        (lambda said: said["benchmark"]["changed"].remove("rounds=30"), "it lacks"),
        (lambda said: said["benchmark"].update(version=0), "version 0 is not known here; known: 1, 2"),
        (lambda said: said["benchmark"].update(tier="e"), "no tier 'e'"),
        (lambda said: said["autobyz"].update(version=7), "version=7 is not known here"),
        (lambda said: said["autobyz"].update(cheap=""), " cells were dropped, and no cheap mode is said"),
        (lambda said: said["autobyz"]["dropped"].popitem(), "AutoByz without"),
        (lambda said: said["benchmark"].update(contestants=3), "has another form"),
    ],
)  # fmt: skip
def test_what_is_not_the_protocols_is_told(
    board: Board, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    assert any(words in told for told in apart_from_protocol(saying(board, change)))


def test_a_cell_that_was_left_out_is_missed(board: Board) -> None:
    less = board.model_copy(update={"cells": board.cells[1:]})
    assert any("it lacks" in told for told in apart_from_protocol(less))
