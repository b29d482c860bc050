"""Keys of cells stay what they are: results are found by them, and published boards name them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from test_every_setting import CHANGES, cell_of

from robustfl.records import KEY_VERSION, LATER, CellResult, digest, plain
from robustfl.registry import create, entries, identity
from robustfl.reports.key1 import _PARAMETERS, _SETTINGS
from robustfl.reports.published import read_board
from robustfl.reports.published.format2 import BoardFile, decoded
from robustfl.reports.published.merge import merge, read_source, write_merge
from robustfl.reports.store import Store
from robustfl.scenarios import Cell, Scenario, expand, grid, preset_names
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


def test_a_later_parameter_of_a_method_changes_no_old_key() -> None:
    known = identity(create("objective", "free-at"))["params"]
    assert known == {"replays_per_batch": 4, "eps": 4 / 255, "step": 4 / 255}
    changed = identity(create("objective", "free-at(legacy_digits_clip=true)"))["params"]
    assert changed == {**known, "legacy_digits_clip": True}


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


# --- version 1 -------------------------------------------------------------------------------------------------------

OLD = Path(__file__).parent / "board-key1.json.gz"


def with_key1(record: CellResult) -> CellResult:
    """A record as it was with a key of version 1."""
    settings = {k: v for k, v in record.cell["cell"].items() if k not in _SETTINGS or v != _SETTINGS[k]}
    algorithm = {**record.cell["methods"]["algorithm"], "params": {"momentum": 0.5}}
    methods = {**record.cell["methods"], "algorithm": algorithm}
    cell = {"schema": 1, "cell": settings, "methods": methods, "data": record.cell["data"], "mends": ["tested-round"]}
    return record.model_copy(update={"cell": cell, "key": digest(cell)})


def test_a_board_with_keys_of_version_1_is_read_with_the_keys_its_cells_have_today() -> None:
    board, wrong = read_board(OLD)
    assert wrong == []
    today = {key_of(resolve(Cell.of(r.cell["cell"]), r.cell["data"])) for r in board.cells}
    assert today == {r.key for r in board.cells}
    old = decoded(BoardFile.model_validate(json.loads(gzip.decompress(OLD.read_bytes())))).cells
    assert not {r.key for r in old} & {r.key for r in board.cells}
    numbers = [[r.model_dump(exclude={"key", "cell", "labels"}) for r in records] for records in (old, board.cells)]
    assert sorted(map(str, numbers[0])) == sorted(map(str, numbers[1]))


def test_what_keys_of_version_1_left_out_are_the_defaults_of_today() -> None:
    assert plain({name: Cell.model_fields[name].default for name in _SETTINGS}) == _SETTINGS
    for entry in entries():
        for name, value in _PARAMETERS.get(entry.name, {}).items():
            assert entry.cls.__dataclass_fields__[name].default == value  # type: ignore[attr-defined]
    assert _PARAMETERS.keys() <= {entry.name for entry in entries()}


def test_a_wrong_key_of_version_1_is_told(tmp_path: Path) -> None:
    data = gzip.decompress(OLD.read_bytes()).replace(b'"seed":0', b'"seed":7', 1)
    (tmp_path / "b.json").write_bytes(data)
    assert any("its settings have the key" in words for words in read_board(tmp_path / "b.json")[1])


def test_a_store_with_keys_of_version_1_is_converted_by_merge_and_runs_again_in_a_grid(tmp_path: Path) -> None:
    scenario = {"name": "s", "cell": {"defense": "krum", "f": 4, "clients": 10, "algorithm": "dsgd(momentum=0.5)"}}
    key = next(iter(grid(Scenario.of(scenario), out=tmp_path / "new", jobs=0).keys))
    record = Store(tmp_path / "new" / "s").read(key)
    old = with_key1(record)
    store = Store(tmp_path / "old" / "s")
    store.commit(old)
    (store.folder / "scenario.json").write_text(json.dumps({"name": "s", "cells": {old.key: old.labels}}))

    assert [r.cell for r in store.load().results] == [record.cell]
    assert store.current().results == store.load().results
    assert list(store.description()["cells"]) == [key]
    source = read_source(store.folder)
    write_merge(merge([source], tolerance=0), [source], tmp_path / "merged")
    assert Store(tmp_path / "merged").done([key]) == {key}

    notes: list[str] = []
    assert grid(Scenario.of(scenario), out=tmp_path / "old", jobs=0, on_note=notes.append).computed == 1
    assert [note for note in notes if "keys of version 1" in note and "robustfl merge" in note]
    assert store.keys() == {key, old.key}
    assert [r.key for r in store.load().results] == [key]
    assert store.description()["key_version"] == KEY_VERSION
