"""What AutoByz's page says of cheaper rules is what tier D's board says, on which every member ran to the end."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from robustfl.reports.benchmark.study import WITHIN
from robustfl.reports.published import read_board

pytestmark = pytest.mark.boards

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmark/autobyz.md"
LINES = re.findall(r"^\| (\d) \| (\d+) \| (\d+) % \| (\d+) % \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
Row = dict[str, list[float]]
"""By member the accuracy with every seed; one that diverged is below 0."""


@cache
def rows() -> list[Row]:
    board, _ = read_board(next((ROOT / "boards").glob("bench-d.json*")))
    found: dict[tuple[object, ...], dict[str, dict[object, float | None]]] = defaultdict(lambda: defaultdict(dict))
    for record in board.records():
        said = record.labels
        if said["attack"] == "none":
            continue
        idle = record.status == "refused" or record.certificates.get("no_effect") is True
        height = record.metrics.sa if record.metrics is not None else -1.0
        who = tuple(said[name] for name in ("defense", "norm", "schedule"))
        found[who][f"{said['attack']} {said['scope']}"][said["seed"]] = None if idle else height
    counted = [
        {name: [v for _, v in sorted(own.items())] for name, own in row.items() if None not in own.values()}
        for row in found.values()
    ]
    return [row for row in counted if row]


def worst(row: Row, members: set[str], seeds: range) -> list[float]:
    return [min(row[name][seed] for name in members) for seed in seeds]


def apart(row: Row, first: int, margin: float) -> tuple[bool, float]:
    """Whether the number of a row is right within a point, and the share of its trainings that ran."""
    low = worst(row, set(row), range(first))
    kept = {n for n in row for s in range(first) if low[s] < 0 or row[n][s] <= low[s] + margin}
    whole = worst(row, set(row), range(5))
    cheap = low + worst(row, kept, range(first, 5))
    if min(whole) < 0:
        right = [v < 0 for v in whole] == [v < 0 for v in cheap]
    else:
        right = math.fsum(cheap) / 5 - math.fsum(whole) / 5 <= WITHIN
    return right, (first * len(row) + (5 - first) * len(kept)) / (5 * len(row))


def test_no_member_was_left_out_and_the_page_has_its_rules() -> None:
    assert len(rows()) == 164
    assert len(LINES) == 5


@pytest.mark.parametrize(("first", "margin", "right", "share"), LINES)
def test_the_table_of_cheaper_rules_is_that_of_the_board(first: str, margin: str, right: str, share: str) -> None:
    found = [apart(row, int(first), int(margin) / 100) for row in rows()]
    assert round(100 * sum(ok for ok, _ in found) / len(found)) == int(right)
    assert round(100 * math.fsum(part for _, part in found) / len(found)) == int(share)
