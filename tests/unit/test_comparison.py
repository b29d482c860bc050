"""Where rows of one's own stand in a published table."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from fake_store import record, stored

from robustfl.errors import UsageError
from robustfl.records import CellResult, digest
from robustfl.reports.comparison import SHIPPED, compare, shipped_boards

SA = {"mean": 0.2, "median": 0.6, "krum": 0.4}


def cells(defense: str, sa: float, *, attacks: tuple[str, ...] = ("none", "sf"), seeds: int = 2, **labels: Any) -> list:
    return [
        record(
            sa=sa + (0.1 if attack == "none" else 0.0) + seed / 100, defense=defense, attack=attack, seed=seed, **labels
        )
        for attack in attacks
        for seed in range(seeds)
    ]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    records = [one for defense, sa in SA.items() for one in cells(defense, sa, rounds=80)]
    return stored(tmp_path / "theirs", records).folder


def mine(folder: Path, records: list[CellResult]) -> Path:
    return stored(folder / "mine", records).folder


def test_a_row_stands_by_its_worst_case_among_the_published(tmp_path: Path, published: Path) -> None:
    found = compare(mine(tmp_path, cells("rfa", 0.5, rounds=80)), published)
    assert (found.left_out, found.differing, found.notes) == (0, (), ())
    (title, lines), *_ = found.tables()
    assert title == "SA, overall, 4 rows"
    assert [(name, whose) for _, name, whose, *_ in lines] == [
        ("median · fbn", "theirs"), ("rfa · fbn", "mine"), ("krum · fbn", "theirs"), ("mean · fbn", "theirs"),
    ]  # fmt: skip
    assert [text.split(" ")[0] for text in lines[1][3:]] == ["60.5", "50.5"]


def test_only_the_first_rows_and_neighbours_are_shown(tmp_path: Path) -> None:
    many = [one for k in range(12) for one in cells(f"rule-{k}", 0.9 - k / 20)]
    board = stored(tmp_path / "theirs", many).folder
    lines = compare(mine(tmp_path, cells("rfa", 0.42)), board).tables()[0][1]
    assert [name.split(" ")[0] for _, name, *_ in lines] == [
        "rule-0", "rule-1", "rule-2", "rule-8", "rule-9", "rfa", "rule-10", "rule-11",
    ]  # fmt: skip


def test_a_row_that_met_fewer_attacks_has_a_bound_and_no_rank(tmp_path: Path, published: Path) -> None:
    found = compare(mine(tmp_path, cells("rfa", 0.5, attacks=("none",), seeds=1, rounds=80)), published)
    last = found.tables()[0][1][-1]
    assert last[:3] == ["–", "rfa · fbn", "mine"]
    words = "mine has not met 1 of the board's attacks, so that its worst case is an upper bound and has no rank: sf."
    assert found.notes[0] == words
    assert found.notes[1] == "mine has 1 seeds, theirs 2."


@pytest.mark.parametrize(
    ("labels", "data", "differing"),
    [
        ({"rounds": 3}, None, [("rounds", ("80",), ("3",))]),
        ({"rounds": 80, "dataset": "mnist"}, None, [("dataset", ("digits",), ("mnist",))]),
        ({"rounds": 80}, "another", [("data", ("–",), ("another",))]),
    ],
)
def test_what_keeps_a_row_out_is_named(
    labels: dict[str, Any], data: str | None, differing: list[Any], tmp_path: Path, published: Path
) -> None:
    records = cells("rfa", 0.5, **labels)
    if data is not None:
        told = [{**r.cell, "data": data} for r in records]
        records = [r.model_copy(update={"cell": t, "key": digest(t)}) for r, t in zip(records, told, strict=True)]
    found = compare(mine(tmp_path, records), published)
    assert (found.board, found.left_out, list(found.differing)) == (None, 4, differing)
    assert found.tables() == []


def test_cells_of_other_tasks_are_left_out_beside_those_that_fit(tmp_path: Path, published: Path) -> None:
    found = compare(mine(tmp_path, cells("rfa", 0.5, rounds=80) + cells("rfa", 0.8, rounds=3)), published)
    assert found.left_out == 4
    assert found.tables()[0][1][1][4].startswith("50.5")


def test_an_unattacked_cell_fits_whatever_number_of_attackers_it_was_planned_with(
    tmp_path: Path, published: Path
) -> None:
    calm = cells("rfa", 0.5, attacks=("none",), rounds=80, f=0)
    assert compare(mine(tmp_path, calm + cells("rfa", 0.5, attacks=("sf",), rounds=80)), published).left_out == 0


def test_the_boards_that_come_along_are_in_the_wheel_and_the_nearest_is_taken(tmp_path: Path) -> None:
    files = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["robustfl.boards"]
    assert [path.name for path in shipped_boards()] == files == [f"{name}.json.gz" for name in SHIPPED]
    assert all(path.is_file() for path in shipped_boards())
    found = compare(mine(tmp_path, cells("rfa", 0.5, dataset="nothing")))
    assert found.board is None
    assert "dataset" in [name for name, *_ in found.differing]


def test_an_empty_store_and_the_board_itself_are_refused(tmp_path: Path, published: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        compare(tmp_path / "nothing", published)
    with pytest.raises(UsageError, match="cannot be compared with itself"):
        compare(published, published)
