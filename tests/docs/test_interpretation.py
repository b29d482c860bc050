"""The numbers that people's words on the site name are those of the boards that they speak of."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from robustfl.reports.published import read_board, sound_board
from robustfl.reports.published.board import forgotten
from robustfl.reports.reproduction import find_items, judge
from robustfl.scenarios.reproduce import gather

pytestmark = pytest.mark.boards

ROOT = Path(__file__).parents[2]
TEXTS = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs/benchmark").glob("interpretation*.md"))]
REPRODUCTIONS = sorted((ROOT / "boards").glob("reproduction-*.json*"))
PROPAGATION = (ROOT / "docs/propagation.md").read_text(encoding="utf-8")
PAGE = " ".join(" ".join(TEXTS).replace("\\", "").split())


def board_file(name: str) -> Path:
    return next((ROOT / "boards").glob(f"{name}.json*"))


def test_what_autoattack_leaves_of_tier_p_is_said() -> None:
    """The members are those with the lowest RA on the board of tier P, seed by seed."""
    loud, calm = {}, {}
    board, wrong = read_board(board_file("p-autoattack"))
    ranked = [r for r in read_board(board_file("bench-p"))[0].records() if r.labels["attack"] != "none"]
    assert not wrong
    for record in board.records():
        who, seed, attack = (record.labels[name] for name in ("propagation", "seed", "attack"))
        assert record.metrics is not None
        (calm if attack == "none" else loud).setdefault(who, []).append(100 * (record.metrics.ra_worst or 0.0))
        same = [r for r in ranked if (r.labels["propagation"], r.labels["seed"]) == (who, seed)]
        lowest = min(r.metrics.ra_worst for r in same if r.metrics is not None and r.metrics.ra_worst is not None)
        least = [r.labels["attack"] for r in same if r.metrics is not None and r.metrics.ra_worst == lowest]
        assert attack == "none" or attack in least
    rows = ("fedrbn", "fedrbn(similarity=uniform)", "fedrbn(similarity=uniform)+trimmed-mean",
            "fedrbn+trimmed-mean(weighted=True)")  # fmt: skip
    for found in (calm, loud):
        assert {len(values) for values in found.values()} == {3}
        assert "({:.1f}, {:.1f}, {:.1f} and {:.1f} %".format(*(sum(found[who]) / 3 for who in rows)) in PAGE


def measured() -> np.ndarray[Any, Any]:
    """Mean, lowest and highest of every number of the two pages' boards, over all seeds and over the first three."""
    found: dict[tuple[object, ...], dict[int, float]] = {}
    for file in (*REPRODUCTIONS, board_file("bench-p")):
        for record in sound_board(file).records():
            if record.metrics is None:
                continue
            who = (file.name, *(str(v) for k, v in sorted(record.labels.items()) if k != "seed"))
            values = {
                "sa": record.metrics.sa,
                "best": max((p.sa for p in record.curve if p.sa is not None), default=0.0),
            }
            values |= record.metrics.ra
            values |= {f"{g} {m}": v for g, own in record.metrics.groups.items() for m, v in own.items()}
            values |= {f"forgotten {k}": float(v) for k, v in forgotten(record.certificates.get("forgetting")).items()}
            for name, value in values.items():
                found.setdefault((*who, name), {})[record.labels["seed"]] = 100 * value
    seeds = [[own[s] for s in sorted(own)][:most] for own in found.values() for most in (3, None)]
    return np.array([[fmean(own), min(own), max(own)] for own in seeds])


def test_every_number_with_its_range_on_the_page_on_propagation_is_one_of_the_boards() -> None:
    number = r"(−?\d+\.\d)"
    known = measured()
    said = re.findall(rf"{number}(?: %)? \({number}–{number}\)", PROPAGATION)
    assert len(said) > 50
    read = [[float(v.replace("−", "-")) for v in one] for one in said]
    assert [one for one in read if not (abs(known - one) < 0.0501).all(1).any()] == []


def test_every_difference_with_its_interval_on_the_page_on_propagation_is_that_of_a_statement() -> None:
    records = [record for file in REPRODUCTIONS for record in sound_board(file).records()]
    known = np.array([
        [sign * f.difference, *sorted((sign * f.low, sign * f.high))]
        for _, item in find_items(None) if (scale := item.at("reduced"))
        for f in judge([s for s in item.statements_at("reduced") if not s.compute], gather(scale, records=records))
        if f.difference is not None and f.low is not None and f.high is not None
        for sign in (1, -1)
    ])  # fmt: skip
    number = r"(−?\d+\.\d)"
    said = re.findall(rf"{number}(?:(?!\d\.\d|\\\[)[\s\S])*\\\[{number}, {number}\\\]", PROPAGATION)
    assert len(said) == PROPAGATION.count(r"\[") > 10
    read = [[float(v.replace("−", "-")) for v in one] for one in said]
    assert [one for one in read if not (abs(known - one) < 0.0501).all(1).any()] == []
