"""A board that says it follows the benchmark's protocol is held against it, cell by cell and search by search."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_store import record

from robustfl import autobyz
from robustfl.autobyz import Ensemble, Member
from robustfl.records import CellResult
from robustfl.reports.published import Board, read_board
from robustfl.scenarios.protocol_check import apart_from_protocol, words_of

Change = Callable[[dict[str, Any]], object]
BOARDS = Path(__file__).parents[2] / "boards"
ROWS = Path(__file__).with_name("bench-cge.json.gz")
"""The rows of one defense on the committed board of tier d."""
NAME = "cge · fbn · dsgd"


@pytest.fixture(scope="module")
def board() -> Board:
    return read_board(ROWS)[0]


def saying(board: Board, change: Change) -> Board:
    """The board with other words about its protocol."""
    said = copy.deepcopy(dict(board.protocol or {}))
    change(said)
    return replace(board, protocol=said)


def entry(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said["benchmark"]["contestants"][NAME]
    return found


@pytest.mark.boards
@pytest.mark.parametrize("board", sorted(BOARDS.glob("bench-*.json.gz")), ids=lambda path: path.name)
def test_every_committed_board_follows_the_version_that_it_names(board: Path) -> None:
    assert apart_from_protocol(read_board(board)[0]) == []


def test_rows_of_a_board_follow_it_and_say_what_it_changed(board: Board) -> None:
    assert apart_from_protocol(board) == []
    words = words_of(board)
    said = board.protocol or {}
    version, contestants = said["autobyz"]["version"], len(said["benchmark"]["contestants"])
    assert words.startswith(f"AutoByz version {version} complete; tier d, ")
    assert f"{contestants} contestants tuned within the budget; not the whole protocol, which it says: rounds=" in words


def test_a_board_that_says_nothing_is_asked_nothing(board: Board) -> None:
    silent = replace(board, protocol=None)
    assert apart_from_protocol(silent) == []
    assert words_of(silent) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: entry(said)["search"].append(entry(said)["search"][0]), "tuned on 7 configurations"),
        (lambda said: entry(said)["search"][0].update(schedule="constant(lr=0.3)"), "search[0].schedule is"),
        (lambda said: entry(said)["search"][0]["validation"].pop("min-max"), "tuned under other attacks than"),
        (lambda said: entry(said)["search"][0]["validation"].update({"min-max": 1.1}), "is no accuracy"),
        (lambda said: entry(said)["search"][0]["validation"].update({"min-max": -0.1}), "is no accuracy"),
        (lambda said: entry(said)["search"][0]["validation"].update({"min-max": None}), "its search[0].worst is"),
        (lambda said: entry(said)["search"][2].update(worst=0.99), "its search[2].worst is 0.99"),
        (lambda said: entry(said).update(chosen=1), "its chosen is 1, by the protocol 5"),
        (lambda said: entry(said).update(chosen=5.0), "its chosen is 5.0, by the protocol 5"),
        (lambda said: entry(said).update(reason={"why": 1}), "its reason is {'why': 1}"),
        (lambda said: said.pop("autobyz"), "it does not say which attacks count as AutoByz"),
        (lambda said: said["benchmark"]["changed"].append("seed=[1000]"), "seed"),
        (lambda said: said["benchmark"]["changed"].append('attack=["none"]'), "it counts AutoByz, which did not run"),
        (lambda said: entry(said).update(knowledge="none"), "its knowledge is 'none', by the protocol 'f declared'"),
        (lambda said: said["benchmark"]["contestants"].pop(NAME), "has what the tier does not: cge, fbn"),
        (lambda said: said["benchmark"]["changed"].remove("rounds=30"), "it lacks"),
        (lambda said: said["benchmark"].update(version=0), "version 0 is not known here; known: 1, 2, 3"),
        (lambda said: said["benchmark"].update(title="digits"), "its title is 'digits', the protocol's 'embedded"),
        (lambda said: said["benchmark"].update(budget=60), "its budget is 60, the protocol's"),
        (lambda said: said["benchmark"].update(autobyz=99), "its autobyz is 99, the protocol's"),
        (lambda said: said["benchmark"].update(tier="e"), "no tier 'e'"),
        (lambda said: said["autobyz"].update(version=99), "version=99 is not known here"),
        (lambda said: said["benchmark"].update(contestants=3), "has another form"),
    ],
)  # fmt: skip
def test_what_is_not_the_protocols_is_told(
    board: Board, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    assert any(words in told for told in apart_from_protocol(saying(board, change)))


def test_a_cell_that_was_left_out_is_missed(board: Board) -> None:
    less = replace(board, cells=board.cells[1:])
    assert any("it lacks" in told for told in apart_from_protocol(less))


# --- rows and members, without a tier --------------------------------------------------------------------------------


SMALL = Ensemble(1, tuple(map(Member, ("alie", "sf", "foe", "ipm", "zero"))))


@pytest.fixture
def counting(board: Board, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The faults of records that count five attacks as AutoByz."""
    monkeypatch.setattr(autobyz, "ensembles", lambda: {1: SMALL})

    def faults(ran: list[CellResult], **said: Any) -> list[str]:
        return apart_from_protocol(replace(board, protocol={"autobyz": {"version": 1, **said}}), ran)

    return faults


def cells(*attacks: str, seeds: int = 1, **labels: Any) -> list[CellResult]:
    return [record(attack=attack, seed=seed, **labels) for attack in attacks for seed in range(seeds)]


ALL = ("alie", "sf", "foe", "ipm", "zero")


def test_a_contestant_without_attacks_has_nothing_to_be_complete_in(counting: Callable[..., list[str]]) -> None:
    assert counting(cells("none", *ALL) + cells("none", defense="median")) == []


def test_only_the_first_of_many_that_are_missing_are_named(counting: Callable[..., list[str]]) -> None:
    assert counting(cells("none", "zero")) == ["mean, fbn, seed 0: AutoByz without alie, sf, foe and 1 more"]
    assert counting(cells("ipm", "zero")) == ["mean, fbn, seed 0: AutoByz without alie, sf, foe"]


def test_members_forge_the_channel_that_the_board_says(counting: Callable[..., list[str]]) -> None:
    assert counting(cells(*ALL, scope="update"), scope="update") == []
    assert len(counting(cells(*ALL, scope="update"))) == 1


def test_words_on_the_protocol_name_what_there_is(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autobyz, "ensembles", lambda: {1: SMALL})
    board = replace(board, protocol={"autobyz": {"version": 1}})
    assert words_of(board) == "AutoByz version 1 complete"
    facts = {"tier": "d", "contestants": {"a": {}}, "changed": []}
    board = replace(board, protocol={"benchmark": facts})
    assert words_of(board) == "tier d, 1 contestants tuned within the budget"


# --- the search of a contestant --------------------------------------------------------------------------------------


def scored(said: dict[str, Any], *scores: float | None, chosen: int, **more: Any) -> None:
    """Every configuration with one score under all attacks."""
    found = entry(said)
    found.update(chosen=chosen, **more)
    for tried, score in zip(found["search"], scores, strict=True):
        tried.update(validation=dict.fromkeys(tried["validation"], score), worst=score)


@pytest.mark.parametrize("chosen", [0, 1, 4])
def test_of_equal_worst_cases_the_first_is_chosen(board: Board, chosen: int) -> None:
    told = apart_from_protocol(saying(board, lambda said: scored(said, None, 0.0, 1.0, 0.5, 1.0, 1.0, chosen=chosen)))
    assert f"{NAME}: its chosen is {chosen}, by the protocol 2" in told
    assert not any("is no accuracy" in words for words in told)  # 0 and 1 are


def test_a_search_may_come_to_nothing_and_say_why(board: Board) -> None:
    nothing = saying(board, lambda said: scored(said, *[None] * 6, chosen=0, reason="refused: too few clients"))
    assert not any(told.startswith(NAME) for told in apart_from_protocol(nothing))


def test_a_search_without_a_score_or_a_reason_is_none(board: Board) -> None:
    silent = saying(board, lambda said: scored(said, *[None] * 6, chosen=0))
    assert any(told.startswith(f"{NAME}: its reason is ''") for told in apart_from_protocol(silent))


def test_attacks_that_a_board_says_it_changed_are_its_own(board: Board) -> None:
    attacks = ("none", "foe(eta=10)")

    def changed(said: dict[str, Any]) -> None:
        said["benchmark"]["changed"].append('attack=["none", "foe(eta=10)"]')
        said["benchmark"]["autobyz"] = None
        del said["autobyz"]

    few = replace(board, cells=tuple(c for c in board.cells if c.labels["attack"] in attacks))
    told = saying(few, changed)
    assert apart_from_protocol(told) == []
    assert "not the whole protocol, which it says: " in words_of(told)
    assert "attack=[" in words_of(told)
    assert any(
        "its autobyz is None" in why
        for why in apart_from_protocol(saying(told, lambda said: said["benchmark"]["changed"].pop()))
    )
