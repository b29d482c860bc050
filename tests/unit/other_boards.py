"""Submissions with another board in them, for tests of what gives a cheat away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustfl.records import CellResult
from robustfl.reports.published import read_board, write_board
from robustfl.reports.published.submitting import BOARD


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The submission with another board, as a careful cheat leaves it.

    ``change`` gets the board's ``protocol`` and its ``cells`` as whole records.
    """
    before, _ = read_board(folder / BOARD)
    data = {"protocol": before.protocol, "cells": [r.model_dump(mode="json") for r in before.cells]}
    change(data)
    cells = tuple(CellResult.model_validate(cell) for cell in data["cells"])
    write_board(replace(before, cells=cells, protocol=data["protocol"]), folder / BOARD)
    return folder
