"""The scenario engine: TOML grids, cells, runs."""

from __future__ import annotations

from .expand import expand
from .grid import Finished, Plan, Results, check_execution, grid, plan
from .run import run_cell
from .spec import Cell, Scenario, preset_names
from .verify import Verification, verify

__all__ = [
    "Cell", "Finished", "Plan", "Results", "Scenario", "Verification", "check_execution", "expand", "grid", "plan",
    "preset_names", "run_cell", "verify",
]  # fmt: skip
