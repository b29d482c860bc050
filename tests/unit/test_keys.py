"""Keys of cells stay what they are: results are found by them, and published boards name them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from test_every_setting import CHANGES, cell_of

from robustfl.records import LATER
from robustfl.scenarios import Cell, Scenario, expand, preset_names
from robustfl.scenarios.expand import key_of, resolve

RECORDED: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "keys.json").read_text(encoding="utf-8"))
"""Per grid, and per setting that is changed, how many cells there are, and a digest of their keys."""


SOME = ("quickstart", "zoo", "fbn-section5", "fedrbn-digits", "fedtan-table1", "hbn-clients", "wsm-table31")


def summary(cells: Iterable[Cell]) -> str:
    keys = sorted(key_of(resolve(cell, "data")) for cell in cells)
    return f"{len(keys)} {hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}"


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["of each kind one", "all of them"]
)
def test_the_cells_of_presets_keep_their_keys(whole: bool) -> None:
    """A preset with other cells, or a method's new version, has other keys: then its lines in keys.json follow."""
    found = {}
    for name in preset_names() if whole else SOME:
        for scale in ("", *(f"scale={scale}" for scale in Scenario.load(name).scales)):
            grid = Scenario.load(name, settings=[scale] if scale else [])
            found[grid.name] = summary(expand(grid))
    assert found == (RECORDED["grids"] if whole else {name: RECORDED["grids"].get(name) for name in found})


def test_cells_that_differ_in_a_setting_keep_their_keys() -> None:
    pairs = {name: [cell_of(name, changed=changed) for changed in (False, True)] for name in CHANGES}
    assert {name: summary(cells) for name, cells in pairs.items()} == RECORDED["settings"]


class Newer(Cell):
    """A cell with a setting that nobody had before."""

    novel: int = 0


def test_a_new_setting_that_is_declared_changes_no_old_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(cell: Cell) -> str:
        return key_of(resolve(cell, "data"))

    old = key(Cell.of({"attack": "alie", "f": 1}))
    assert key(Newer.of({"attack": "alie", "f": 1})) != old
    monkeypatch.setitem(LATER, "novel", 0)
    assert key(Newer.of({"attack": "alie", "f": 1})) == old
    assert key(Newer.of({"attack": "alie", "f": 1, "novel": 1})) != old
