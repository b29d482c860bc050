"""The numbers of the page on choosing a defense are those of its board."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from robustfl.reports.benchmark.data import measured
from robustfl.reports.grouping import NO_ATTACK
from robustfl.reports.loading import board_of, open_source
from robustfl.reports.published import sound_board

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/benchmark/choose.md").read_text(encoding="utf-8")
GRADIENTS, STEPS = PAGE.split("## Gradients or local steps?")
LINES, LOCAL = (
    re.findall(r"^\| .*γ = (\S+)\) \| (\d) of 10 \| (.*?) \| (.*?) \| (.*?) \| (.*) \|$", part, flags=re.MULTILINE)
    for part in (GRADIENTS, STEPS)
)


@pytest.mark.boards
@pytest.mark.parametrize(
    ("file", "lines", "count"),
    [("bench-d-2", LINES, 5), ("unfinished/bench-d-fedavg", LOCAL, 3)],
    ids=["d-2", "fedavg"],
)
def test_every_line_has_the_numbers_of_the_board_and_the_first_row_of_its_task(
    file: str, lines: Any, count: int
) -> None:
    published = sound_board(ROOT / f"boards/{file}.json.gz")
    board = measured(published, published.records()).board
    tables = {s.block: {row.labels: row for row in s.rows} for s in board.sections if s.metric == "sa"}
    calm = board.attacks.index(NO_ATTACK)
    assert len(lines) == count
    for gamma, f, take, worst, unattacked, other in lines:
        rows = tables[f"f = {f} · γ = {gamma}"]
        best = rows[named(take)]
        assert best is next(iter(rows.values()))
        assert (best.worst.text(), best.cells[calm].text(spread=False)) == (worst, unattacked)
        own = rows[named(other)]
        assert own.worst.text() == other.split(": ")[-1]
        assert own is next(row for row in rows.values() if row.labels[1] == "gn")


@pytest.mark.boards
def test_the_rows_that_hold_with_local_steps_are_those_of_the_board() -> None:
    published = sound_board(ROOT / "boards/unfinished/bench-d-fedavg.json.gz")
    board = measured(published, published.records()).board
    tables = {s.block: {row.labels: row.worst.text(spread=False) for row in s.rows} for s in board.sections}
    caf = [tables[task]["caf", "fbn"] for task in ("f = 2 · γ = 0.5", "f = 3 · γ = 0.5", "f = 1 · γ = 0")]
    assert "holds in all three lines: {}, {} and {}.".format(*caf) in STEPS
    _, second, third, *others = tables["f = 1 · γ = 0"].items()
    assert [labels for labels, _ in (second, third)] == [("caf", "fbn"), ("geometric-median", "fbn")]
    assert f"({third[1]}) keep more than 25 %" in STEPS
    assert all(not text[0].isdigit() or float(text.split()[0]) <= 25 for _, text in others)


def named(words: str) -> tuple[str, ...]:
    """The defense and the norm that a field of the table names."""
    return tuple(re.findall(r"`([^`]+)`", words))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_findings_that_open_a_page_are_those_of_the_boards(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    similar = next(line for line in LINES if line[:2] == ("0.5", "2"))
    sorted_out = {line[1]: line for line in LINES if line[0] == "0"}
    first, calm, group = (float(similar[i].split(": ")[-1].split(" ")[0]) for i in (3, 4, 5))
    assert f"keep {first:.0f} % of {calm:.0f}; the best row with group norm keeps {group:.0f}." in text
    one, two = (float(sorted_out[f][3].split(" ")[0]) for f in "12")
    calm = float(sorted_out["1"][4])
    assert f"({calm:.0f} → {one:.0f}, geometric median and Federated BatchNorm)" in text
    assert f"costs {calm - one:.0f} points at best" in text
    assert f"no rule keeps more than {two:.0f} %" in text
    table = next(
        s
        for s in board_of(open_source(ROOT / "boards/quickstart.json.gz")).sections
        if s.block == "γ = 0" and s.metric == "sa"
    )
    plain, fbn = (
        next(r for r in table.rows if r.labels == ("mean", norm)).cells[0].mean or 0 for norm in ("naive-bn", "fbn")
    )
    assert f"has {100 * plain:.0f} % with ordinary batch norm and {100 * fbn:.0f} % with" in text
