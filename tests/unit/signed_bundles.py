"""Bundles with another board under digests that fit it, for tests of what else gives a cheat away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustfl.records import CellResult
from robustfl.reports.published import read_board, write_board
from robustfl.reports.published.bundle import Manifest, _digest, _digest_of, _requirements
from robustfl.reports.recipe import scenario_toml


def signed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The bundle with another board, and all that follows from it: as a careful cheat leaves it.

    ``change`` gets the board's ``protocol`` and its ``cells`` as whole records.
    """
    before, _ = read_board(folder / "board.json")
    data = {"protocol": before.protocol, "cells": [r.model_dump(mode="json") for r in before.cells]}
    change(data)
    cells = tuple(CellResult.model_validate(cell) for cell in data["cells"])
    write_board(replace(before, cells=cells, protocol=data["protocol"]), folder / "board.json")
    board, _ = read_board(folder / "board.json")
    manifest = Manifest.model_validate_json((folder / "bundle.json").read_text())
    (folder / "recipe.toml").write_text(scenario_toml(board.records(), name=board.name))
    (folder / "requirements.txt").write_text(_requirements(board, manifest.packages))
    made = {name: _digest((folder / name).read_bytes()) for name in ("board.json", "recipe.toml", "requirements.txt")}
    manifest = manifest.model_copy(update={"files": {**manifest.files, **made}})
    manifest = manifest.model_copy(update={"digest": _digest_of(manifest)})
    (folder / "bundle.json").write_text(manifest.model_dump_json())
    return folder
