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


def summary(cells: Iterable[Cell]) -> str:
    keys = sorted(key_of(resolve(cell, "data")) for cell in cells)
    return f"{len(keys)} {hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}"


@pytest.mark.parametrize("name", preset_names())
def test_the_cells_of_a_preset_keep_their_keys(name: str) -> None:
    """A preset with other cells, or a method's new version, has other keys: then its lines in keys.json follow."""
    scales = ["", *(f"scale={scale}" for scale in Scenario.load(name).scales)]
    grids = [Scenario.load(name, settings=[scale] if scale else []) for scale in scales]
    found = {grid.name: summary(expand(grid)) for grid in grids}
    assert found == {grid: RECORDED["grids"].get(grid) for grid in found}


@pytest.mark.parametrize("setting", CHANGES)
def test_cells_that_differ_in_a_setting_keep_their_keys(setting: str) -> None:
    cells = [cell_of(setting, changed=False), cell_of(setting, changed=True)]
    assert summary(cells) == RECORDED["settings"].get(setting)


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
