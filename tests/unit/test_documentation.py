"""The documentation: its links, its hooks in an editable install, and what it shows of the quickstart's board."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import fmean
from types import ModuleType

import griffe
import pytest
import torch
from board_files import edited
from PIL import Image
from torch import Tensor

import robustfl
from robustfl.contracts import Reports, StatisticsAggregation, StatisticsSlices
from robustfl.norms.fbn import FBN
from robustfl.reports import load_board
from robustfl.reports.published import Board, sound_board, write_board
from robustfl.scenarios import Cell, Scenario, expand

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BOARD = next((ROOT / "boards").glob("quickstart.json*"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def module(name: str) -> ModuleType:
    """A file of ``docs`` as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@cache
def tracked() -> frozenset[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return frozenset(name for name in listed.split("\0") if name)


# --- links --------------------------------------------------------------------------------


def links(page: str) -> list[str]:
    """The files that a page links to, from the root of the repository."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = {target.partition("#")[0] for target in LINK.findall(text) if "://" not in target}
    return sorted((ROOT / page).parent.joinpath(t).resolve().relative_to(ROOT).as_posix() for t in targets if t)


def test_the_readme_links_to_committed_files_alone() -> None:
    assert len(links("README.md")) > 10
    assert [target for target in links("README.md") if target not in tracked()] == []


def test_pages_link_to_committed_files_or_to_what_the_build_writes() -> None:
    pages = [name for name in tracked() if fnmatch(name, "docs/*.md")]
    written = module("generate").GENERATED
    dead = [
        f"{page}: {target}"
        for page in pages
        for target in links(page)
        if target not in tracked() and not any(fnmatch(target.removeprefix("docs/"), one) for one in written)
    ]
    assert len(pages) > 30
    assert dead == []


def test_what_the_build_writes_is_not_committed() -> None:
    written = module("generate").GENERATED
    committed = [name.removeprefix("docs/") for name in tracked() if name.startswith("docs/")]
    assert [name for name in committed if any(fnmatch(name, one) for one in written)] == []


# --- the build --------------------------------------------------------------------------------


def test_docstrings_are_found_in_every_code_folder_of_an_editable_install() -> None:
    """An editable install has no folder of modules; ``docs/hooks.py`` lays one out."""
    hooks = module("hooks")
    try:
        folder = hooks.package()
        found = griffe.load("robustfl", search_paths=[str(folder)], try_relative_path=False)
        for name in ("attacks.byzantine.foe", "defenses.pipeline", "scenarios.spec", "reports.board", "registry"):
            assert found[name].docstring is not None
            assert found[name].filepath.resolve().is_relative_to(ROOT)
    finally:
        hooks.on_shutdown()
    assert not folder.exists()


def test_the_build_writes_every_part() -> None:
    assert set(module("hooks").PARTS) == set(module("generate").PARTS)


def test_without_boards_the_build_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    generate = tmp_path / "docs" / "generate.py"
    generate.write_bytes((DOCS / "generate.py").read_bytes())
    made = subprocess.run(
        [sys.executable, str(generate), str(tmp_path / "out"), "benchmark"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 1
    words = (
        f"no board bench-* in {tmp_path / 'boards'}; pages are made from them: build in a checkout of the repository"
    )
    assert made.stderr == f"{words}\n"


# --- the quickstart --------------------------------------------------------------------------------


@cache
def quickstart() -> Board:
    return sound_board(BOARD)


def test_the_board_of_the_quickstart_holds_the_cells_of_its_preset() -> None:
    records = quickstart().records()
    assert {Cell.of(record.cell["cell"]) for record in records} == set(expand(Scenario.load("quickstart")))
    assert {record.status for record in records} <= {"done", "diverged"}


@pytest.mark.parametrize("name", ["quickstart", "leaderboard"])
def test_a_picture_of_the_readme_is_that_of_the_board(name: str) -> None:
    with Image.open(DOCS / f"{name}.png") as picture:
        assert picture.info["Board"] == quickstart().digest, "draw it again: python docs/pictures.py"
    assert (DOCS / f"{name}.png").stat().st_size < 150_000


def sa(defense: str, norm: str, attack: str, gamma: float) -> float:
    """SA in percent, the mean over seeds."""
    found = [
        100 * record.metrics.sa
        for record in quickstart().records()
        if record.metrics is not None
        and (record.labels["defense"], record.labels["norm"], record.labels["attack"]) == (defense, norm, attack)
        and record.labels["partition"] == f"gamma(gamma={gamma:g})"
    ]
    assert len(found) == 5
    return fmean(found)


NUMBERS = (
    ("SA {:.1f} against {:.1f}.", [("mean", "naive-bn", "none", 0.0), ("mean", "fbn", "none", 0.0)]),
    ("At γ = 0.5 they reach {:.1f} and {:.1f}.", [("mean", "naive-bn", "none", 0.5), ("mean", "fbn", "none", 0.5)]),
    ("γ = 0: {:.1f} unattacked, {:.1f} under it", [("mean", "naive-bn", "none", 0.0), ("mean", "naive-bn", "sf", 0.0)]),
    ("FBN drops from {:.1f} to {:.1f} after", [("mean", "fbn", "none", 0.5), ("mean", "fbn", "sf", 0.5)]),
    (
        "with FBN SA {:.0f} and {:.0f} in the column `none`, where the plain mean has {:.0f}.",
        [(rule, "fbn", "none", 0.0) for rule in ("nnm+trimmed-mean", "trimmed-mean", "mean")],
    ),
)


@pytest.mark.parametrize(("words", "cells"), NUMBERS, ids=[words for words, _ in NUMBERS])
def test_the_page_on_the_quickstart_has_the_numbers_of_the_board(words, cells):
    page = " ".join((DOCS / "quickstart.md").read_text(encoding="utf-8").split())
    assert words.format(*(sa(*cell) for cell in cells)) in page


def test_the_page_on_the_quickstart_has_the_worst_cases_and_ranks_of_the_board() -> None:
    page = " ".join((DOCS / "quickstart.md").read_text(encoding="utf-8").split())
    (table,) = [s for s in load_board(BOARD).sections if s.metric == "sa" and s.block == "γ = 0"]
    numbered = [row for row in table.rows if row.worst.exact]
    worst = [100 * (row.worst.mean or 0.0) for row in numbered]
    tied = [row for row in numbered if row.ranks and row.ranks[0] == 1]
    assert {row.ranks for row in tied} == {(1, 4)}
    assert (
        f"the five rows that do not diverge have SA {min(worst):.0f} to {max(worst):.0f}, and four of them the ranks "
        "1–4:" in page
    )
    shifts = [
        record.certificates["attack_shift"]
        for record in quickstart().records()
        if (record.labels["defense"], record.labels["norm"], record.labels["attack"]) == ("mean", "fbn", "sf")
    ]
    assert shifts == pytest.approx([0.6] * 10, abs=0.005)


@pytest.mark.parametrize("name", ["byzfl", "byzfl-same-split"])
def test_the_page_beside_byzfl_has_the_numbers_of_its_data(name: str) -> None:
    page = (DOCS / "byzfl.md").read_text(encoding="utf-8")
    for line in (DOCS / "evidence" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        sides = " | ".join("{:.2f} ± {:.2f}".format(*found[side]) for side in ("robustfl", "byzfl"))
        pair = " | ".join(f"`{found[axis]}`" for axis in ("partition", "attack", "defense"))
        difference = "{:.2f} [{:.2f}, {:.2f}]".format(*found["difference"])
        assert f"| {pair} | {sides} | {difference} |" in page


class PlainMean(StatisticsAggregation):
    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        return lambda rows: rows.mean(0)


def test_the_page_on_the_quickstart_has_the_fixed_point_of_statistics_under_sign_flipping() -> None:
    """Seven honest clients with batch mean 1 and variance 1, three that send the opposite of the honest mean."""
    layers, statistics = [StatisticsSlices("norm", slice(0, 1), slice(1, 2))], torch.tensor([0.0, 1.0]).double()
    reports = Reports(rows=torch.ones(10, 2).double(), counts=torch.full((10, 1), 10**9))
    for _ in range(300):
        rows = FBN().messages(reports, statistics, layers)
        rows[7:, 0] *= -1
        statistics = FBN().merge(rows, reports.counts, statistics, layers, PlainMean())
    page = " ".join((DOCS / "quickstart.md").read_text(encoding="utf-8").split())
    mean, variance = statistics.tolist()
    assert mean == pytest.approx(1 / 16)
    assert f"settles at ū/{1 / mean:.0f}; the distance" in page
    assert f"the variance at σ² + {variance - 1:.2f} ū²" in page


def test_an_edited_board_is_not_read_as_a_leaderboard(tmp_path: Path) -> None:
    path = edited(write_board(quickstart(), tmp_path / "board.json"), lambda data: data.update(digest="0" * 64))
    with pytest.raises(robustfl.errors.UsageError, match="digest"):
        robustfl.leaderboard(path)
