"""Run scenarios for commands: their options as ``RunOptions``, a grid with its progress on the screen."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from robustfl.cli.printing import console, say

if TYPE_CHECKING:
    from robustfl.scenarios import Results, RunOptions


def options_of(*, state_memory: str = "4GiB", **how: Any) -> RunOptions:
    """The options of a command that say how cells run; what a user should know is printed."""
    from robustfl.scenarios import RunOptions
    from robustfl.scenarios.memory import bytes_of

    return RunOptions(state_memory=bytes_of(state_memory), on_note=partial(say, err=True), **how)


def run_shown(scenario: Any, *, options: RunOptions, out: str, quiet: bool, **more: Any) -> Results:
    """Run a grid with its progress on the screen; ``more`` goes to ``run_grid``."""
    from robustfl.scenarios.grid import run_grid
    from robustfl.scenarios.progress import GridProgress

    with GridProgress(console(err=True), options.on_note, quiet=quiet) as progress:
        results = run_grid(
            scenario, options, out=out, on_start=progress.start, on_cell=progress.cell, on_round=progress.round,
            **more,
        )  # fmt: skip
    if results.lost:
        say(
            f"{results.lost} of {len(results.keys)} cells are not in {results.folder} any more: it was moved or "
            "changed while the grid ran; put them back, or run the grid again",
            err=True,
        )
    return results
