"""The scenario engine: TOML grids, cells, runs."""

from __future__ import annotations

from .cell import Cell
from .expand import expand
from .grid import Results, grid
from .plan import Plan, ResolvedCell, plan
from .progress import Finished
from .run import run_cell
from .run_options import RunOptions
from .spec import Scenario, preset_names
from .verify import Verification, verify

__all__ = [
    "Cell", "Finished", "Plan", "ResolvedCell", "Results", "RunOptions", "Scenario", "Verification", "expand", "grid",
    "plan", "preset_names", "run_cell", "verify",
]  # fmt: skip
