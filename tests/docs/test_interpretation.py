"""The numbers that people's words on the site name are those of the boards that they speak of."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from robustfl.reports import load_board
from robustfl.reports.board import Board, Row, Section
from robustfl.reports.paired import compare
from robustfl.reports.published import read_board, sound_board
from robustfl.reports.published.board import forgotten
from robustfl.reports.reproduction import find_items, judge
from robustfl.scenarios.reproduce import gather

pytestmark = pytest.mark.boards

ROOT = Path(__file__).parents[2]
TEXTS = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs/benchmark").glob("interpretation*.md"))]
REPRODUCTIONS = sorted((ROOT / "boards").glob("reproduction-*.json*"))
PAGE = " ".join(" ".join(TEXTS).replace("\\", "").split())
TRIMMED = ("trimmed-mean", "arc+trimmed-mean", "median")
ONE, LIARS = "f = 1 · γ = 0", "f = 3 · γ = 0.5"

# Words of the page with the places of numbers, and the row, of a board and a task of it, whose they are: the worst case
# and its interval (or its lowest and highest seed), without attack with a "none" before the row.
CLAIMS = (
    ("No rule keeps more than {} %", "d", "", ["fltrust · gn"]),
    ("with FixBN the first is the geometric median ({} %)", "d", "", ["geometric-median · fixbn"]),
    ("`cge` keeps {} % with FixBN, {} % with FBN", "d", "", ["cge · fixbn", "cge · fbn"]),
    ("reach {:.1f} % and {:.1f} % in peace", "d", "", ["none cge · naive-bn", "none dnc · naive-bn"]),
    ("The geometric median on FBN keeps {:.1f} % [{:.1f}, {:.1f}]", "d-2", ONE, ["geometric-median · fbn"]),
    ("NNM and trimmed mean keep {} [{}, {}]", "d-2", ONE, ["nnm+trimmed-mean · gn"]),
    ("and the geometric median {} [{}, {}]", "d-2", ONE, ["geometric-median · gn"]),
    ("has {} [{}, {}], the geometric median without", "d-2", ONE, ["monna · fbn"]),
    ("without normalization {} [{}, {}], the next row", "d-2", ONE, ["geometric-median · none"]),
    ("the next row {}, and", "d-2", ONE, ["geometric-median · fixbn"]),
    ("`mean-of-medians` with naive batch norm keep {} % [{}, {}], ", "d-2", LIARS, ["meamed · naive-bn"]),
    ("{} [{}, {}] and 73", "d-2", LIARS, ["phocas · naive-bn"]),
    ("and {} [{}, {}], more than", "d-2", LIARS, ["mean-of-medians · naive-bn"]),
    ("more than the trimmed mean ({} [{}, {}])", "d-2", LIARS, ["trimmed-mean · naive-bn"]),
    ("its ARC form ({}) and the median ({})", "d-2", LIARS, ["arc+trimmed-mean · naive-bn", "median · naive-bn"]),
    ("with one liar ({} and {} %)", "d-2", "f = 1 · γ = 0.5", ["multi-krum · naive-bn", "monna · naive-bn"]),
    ("end at {} and {} with three", "d-2", LIARS, ["multi-krum · naive-bn", "monna · naive-bn"]),
    ("lead with {} %", "m", "", ["nnm+trimmed-mean · naive-bn"]),
    ("naive batch norm ({:.1f} %)", "c", "", ["trimmed-mean · naive-bn"]),
    ("FBN and naive batch norm ({:.1f}, {:.1f})", "c", "", ["nnm+trimmed-mean · fbn", "nnm+trimmed-mean · naive-bn"]),
    ("after NNM on GN ({:.1f})", "c", "", ["nnm+trimmed-mean · gn"]),
)  # fmt: skip


def board_file(name: str) -> Path:
    return next((ROOT / "boards").glob(f"{name}.json*"))


@cache
def board(name: str) -> Board:
    return load_board(board_file(f"bench-{name}"))


def section(name: str, block: str, metric: str = "sa") -> Section:
    found = [s for s in board(name).sections if s.metric == metric and block in ("", s.block)]
    return found[0]


def row(name: str, block: str, who: str, metric: str = "sa") -> Row:
    (found,) = [r for r in section(name, block, metric).rows if " · ".join(r.labels) == who]
    return found


def numbers(name: str, block: str, who: str) -> list[float]:
    calm = who.startswith("none ")
    found = row(name, block, who.removeprefix("none "))
    place = found.cells[board(name).attacks.index("none")] if calm else found.worst
    assert place.mean is not None, who
    return [100 * v for v in (place.mean, *(place.interval or place.seeds or ()))]


@pytest.mark.parametrize(("words", "name", "block", "rows"), CLAIMS, ids=[words for words, *_ in CLAIMS])
def test_what_is_said_of_a_row_is_what_its_board_says(words: str, name: str, block: str, rows: list[str]) -> None:
    asked = words.count("{") // len(rows)
    values = [value for who in rows for value in numbers(name, block, who)[:asked]]
    said = rounded(words, values)
    assert said in PAGE, said


def test_who_cannot_be_told_from_the_first_with_one_liar_is_said() -> None:
    found = compare(section("d-2", ONE)).results
    count = len(found) + 1
    assert f"over all {count * (count - 1) // 2} pairs four of these are not told from it" in PAGE
    alone = {" · ".join(r.labels) for r in found if r.p is not None and r.p > 0.004}
    assert alone == {"nnm+trimmed-mean · gn", "geometric-median · gn"}
    together = {" · ".join(r.labels) for r in found if r.adjusted is None or r.adjusted > 0.05} - alone
    assert len(together) == 4
    assert {"monna · fbn", "geometric-median · none"} <= together


def test_how_many_rows_of_tier_d_are_told_from_the_first_is_said() -> None:
    found = compare(section("d", "")).results
    told = sum(r.adjusted is not None and r.adjusted <= 0.05 for r in found)
    assert f"of the {len(found) + 1} with a number {told} can be told from the first" in PAGE


def test_the_short_list_says_what_the_boards_say() -> None:
    """Ranges over rows, and differences between attacks, of the front page."""
    alike = [f"{rule} · naive-bn" for rule in ("meamed", "phocas", "mean-of-medians", *TRIMMED)]
    two, three = ([numbers(name, block, who)[0] for who in alike] for name, block in (("d", ""), ("d-2", LIARS)))
    assert f"they keep {min(two):.0f} to {max(two):.0f} %" in PAGE
    assert min(three[:3]) > 70 > max(three[3:])
    assert max(100 * (r.worst.mean or 0) for r in section("d-2", "f = 2 · γ = 0").rows) < 12.5
    lost = [calm_less("d-3", "rop", "median · naive-bn", metric) for metric in ("sa", "ra_autoattack(eps=0.1)")]
    assert "median with naive batch norm [{:.0f} points of SA and {:.0f} of RA]".format(*lost) in PAGE
    names = [" · ".join(r.labels) for r in section("p", "").rows]
    weighted, trimmed = ([numbers("p", "", f"none {who}")[0] - numbers("p", "", who)[0] for who in names
                          if ("trimmed-mean" in who) == kind] for kind in (False, True))  # fmt: skip
    assert f"loses {min(weighted):.0f} to {max(weighted):.0f} points of SA" in PAGE
    assert max(trimmed) < 5
    assert 15 < max(100 * (r.worst.mean or 0) for r in section("c", "").rows) < 16


def calm_less(name: str, attack: str, who: str, metric: str) -> float:
    """By how many points an attack alone lowers a row."""
    cells, attacks = row(name, "", who, metric).cells, board(name).attacks
    calm, hit = (cells[attacks.index(a)].mean for a in ("none", attack))
    assert calm is not None
    assert hit is not None
    return 100 * (calm - hit)


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


def test_what_autoattack_leaves_of_tier_m_is_said() -> None:
    """The members are those with the lowest SA on the board of tier M, seed by seed."""
    board, wrong = read_board(board_file("m-autoattack"))
    assert not wrong
    names = ("defense", "norm", "schedule", "seed", "attack", "scope")
    published = {tuple(r.labels[n] for n in names): r for r in read_board(board_file("bench-m"))[0].records()}
    loud, calm, moved = {}, {}, {"none": list[float](), "worst": list[float]()}
    for record in board.records():
        who, seed = " · ".join(str(record.labels[n]) for n in names[:2]), record.labels["seed"]
        attack, metrics = record.labels["attack"], record.metrics
        before = published[tuple(record.labels[n] for n in names)].metrics
        assert metrics is not None
        assert before is not None
        (calm if attack == "none" else loud).setdefault(who, {})[seed] = 100 * (metrics.ra_worst or 0.0)
        moved["none" if attack == "none" else "worst"].append(100 * (metrics.sa - before.sa))
        same = [r for key, r in published.items() if key[:4] == tuple(record.labels[n] for n in names[:4])]
        hit = [r.metrics.sa for r in same if r.metrics is not None and r.labels["attack"] != "none"]
        assert attack == "none" or before.sa == min(hit)
    with_number = [" · ".join(r.labels) for r in section("m", "").rows if r.worst.is_number]
    assert sorted(loud) == sorted(calm) == sorted(with_number)
    assert {tuple(sorted(seeds)) for seeds in (*loud.values(), *calm.values())} == {(0, 1, 2, 3, 4)}
    means = {who: sum(values.values()) / 5 for who, values in loud.items()}
    first = ("nnm+trimmed-mean · naive-bn", "trimmed-mean · naive-bn", "median · naive-bn", "multi-krum · fbn")
    said = "has {:.0f} % RA, the trimmed mean {:.0f}, the median {:.0f}, multi-Krum on FBN {:.0f}"
    assert said.format(*(means[who] for who in first)) in PAGE
    assert f"naive batch norm have at most {max(v for who, v in means.items() if who not in first):.0f} each" in PAGE
    peace = [sum(values.values()) / 5 for values in calm.values()]
    assert f"Without attack they have {min(peace):.0f} to {max(peace):.0f}" in PAGE
    for name, words in (("worst", "of the 40 cells under attack {} move by more than a point, one by {:.0f}"),
                        ("none", "of the 40 without {}, one by {:.0f}")):  # fmt: skip
        far = [abs(v) for v in moved[name]]
        assert words.format(sum(v > 1 for v in far), max(far)) in PAGE
    rise = sum(moved["worst"]) / 40
    assert f"on average the 40 come out {rise:.1f} points higher" in PAGE


def test_tier_cs_rows_above_chance_are_so_with_every_seed() -> None:
    above = {" · ".join(r.labels): sum(v > 0.1 + 1e-9 for _, v in r.worst.values) for r in section("c", "").rows}
    assert {who for who, seeds in above.items() if seeds == 3} == {
        "trimmed-mean · naive-bn", "nnm+trimmed-mean · fbn", "nnm+trimmed-mean · naive-bn"
    }  # fmt: skip
    assert above["nnm+trimmed-mean · gn"] == 1
    medians = [100 * (row("c", "", f"geometric-median · {norm}").worst.mean or 0) for norm in ("fbn", "naive-bn", "gn")]
    assert f"({min(medians):.1f} to {max(medians):.1f})" in PAGE
    assert max(medians) < 10


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


def test_every_number_with_its_range_on_the_pages_of_results_is_one_of_the_boards() -> None:
    number = r"(−?\d+\.\d)"
    known = measured()
    for page, least in (("results", 200), ("propagation", 50)):
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        said = re.findall(rf"{number}(?: %)? \({number}–{number}\)", text)
        assert len(said) > least
        read = [[float(v.replace("−", "-")) for v in one] for one in said]
        assert [one for one in read if not (abs(known - one) < 0.0501).all(1).any()] == []


def test_every_difference_with_its_interval_on_the_pages_of_results_is_that_of_a_statement() -> None:
    records = [record for file in REPRODUCTIONS for record in sound_board(file).records()]
    known = np.array([
        [sign * f.difference, *sorted((sign * f.low, sign * f.high))]
        for _, item in find_items(None) if (scale := item.at("reduced"))
        for f in judge([s for s in item.statements_at("reduced") if not s.compute], gather(scale, records=records))
        if f.difference is not None and f.low is not None and f.high is not None
        for sign in (1, -1)
    ])  # fmt: skip
    number = r"(−?\d+\.\d)"
    for page, least in (("results", 80), ("propagation", 10)):
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        said = re.findall(rf"{number}(?:(?!\d\.\d|\\\[)[\s\S])*\\\[{number}, {number}\\\]", text)
        assert len(said) == text.count(r"\[") > least
        read = [[float(v.replace("−", "-")) for v in one] for one in said]
        assert [one for one in read if not (abs(known - one) < 0.0501).all(1).any()] == []


def test_every_interval_of_the_page_is_looked_at_here() -> None:
    told = [rounded(words, numbers(name, block, who[0])) for words, name, block, who in CLAIMS if "[" in words]
    assert intervals(PAGE) <= intervals(" ".join(told)) | {robust_interval()}


def rounded(words: str, values: list[float]) -> str:
    return words.replace("{}", "{:.0f}").format(*values)


def intervals(text: str) -> set[str]:
    return set(re.findall(r"\[\d[\d.]*, \d[\d.]*\]", text))


def robust_interval() -> str:
    worst = row("d-3", "", "geometric-median · fixbn", "ra_autoattack(eps=0.1)").worst
    assert worst.interval is not None
    return "[{:.0f}, {:.0f}]".format(*(100 * v for v in worst.interval))
