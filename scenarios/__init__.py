"""The scenario engine: TOML grids, cells, runs."""

from __future__ import annotations

from .cell import Cell
from .cell_task import Finished
from .execution import Execution
from .expand import expand
from .grid import Plan, Results, grid, plan
from .run import run_cell
from .spec import Scenario, preset_names
from .verify import Verification, verify

__all__ = [
    "Cell", "Execution", "Finished", "Plan", "Results", "Scenario", "Verification", "expand", "grid", "plan",
    "preset_names", "run_cell", "verify",
]  # fmt: skip
