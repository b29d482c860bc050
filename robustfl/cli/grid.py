"""``robustfl grid``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from robustfl.cli.printing import as_json, console, print_board, say, seconds, table
from robustfl.cli.progress import execution_of, run_shown
from robustfl.errors import UsageError

if TYPE_CHECKING:
    from robustfl.scenarios import Execution, Scenario
    from robustfl.scenarios.dry_run import Estimate
    from robustfl.scenarios.grid import Results

_ROWS = 40  # of a dry run's table


def grid(
    scenario: str, *, out: str, gpus: str | None, dry_run: bool, settings: tuple[str, ...],
    plugins: tuple[str, ...], form: str, **how: Any,
) -> int:  # fmt: skip
    """Run a grid and print its leaderboard; 1 if a cell failed or is gone at the end. ``how`` is of ``Execution``."""
    from robustfl.reports import load_board
    from robustfl.scenarios.ranks import processes

    if processes() > 1:
        raise UsageError("torchrun shares one cell between processes: use it with `robustfl run`, not with `grid`")
    execution = execution_of(gpus=None if gpus is None else _indices(gpus), **how)
    chosen = load(scenario, settings, plugins)
    if dry_run:
        found = print_plan(chosen, execution, out=out, form=form)
        if form == "json":
            as_json(found.as_dict())
        return 1 if found.untimed else 0
    results = run_shown(chosen, execution=execution, out=out, quiet=form == "json")
    if results.keys and results.lost == len(results.keys):
        return 1
    board = load_board(results.folder, keys=results.keys)
    print_board(board, form, full=f"robustfl report {results.folder}")
    if form == "table":
        _say_where(results, tensorboard="tensorboard" in execution.track)
    return 1 if results.statuses.get("failed") or results.lost else 0


def _say_where(results: Results, *, tensorboard: bool) -> None:
    """Say how many cells ran, and where everything is."""
    states = ", ".join(f"{n} {status}" for status, n in results.statuses.items() if n)
    say(f"\n{results.computed} cells run now, {results.stored} were there already: {states}.")
    say(f"Cells: {results.folder / 'cells'}")
    say(f"Leaderboard and figures: robustfl report {results.folder}")
    events = results.folder / "tensorboard"
    if tensorboard and events.is_dir():
        say(f"TensorBoard: tensorboard --logdir {events}")
    if tensorboard and results.stored:
        say("Cells that were there already were not followed.")


def _indices(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--gpus {text!r} must be indices such as 0,1") from None


def load(scenario: str, settings: tuple[str, ...], plugins: tuple[str, ...]) -> Any:
    """The scenario with the command line's settings and plug-ins on top."""
    from robustfl.scenarios import Scenario

    load_plugins(plugins)
    return Scenario.load(scenario, settings=settings).beside(plugins)


def load_plugins(plugins: tuple[str, ...]) -> None:
    """Load the files of ``--plugin``, with a warning for one without a method; it may extend robustfl in other ways."""
    from robustfl.registry import load_file

    for plugin in plugins:
        if not load_file(plugin):
            say(f"warning: plug-in {plugin!r}: no method has @register(name) in it", err=True)


def print_plan(scenario: Scenario, execution: Execution, *, out: str, form: str) -> Estimate:
    """Print what a dry run finds, the summary first; JSON is left to the caller."""
    from robustfl.reports.board import below_heading
    from robustfl.scenarios.dry_run import estimate

    screen = console(err=True)
    with screen.status("") if screen.is_terminal else nullcontext() as status:

        def probing(done: int, kinds: int) -> None:
            if status is not None:
                status.update(f"timing kinds of cells: {done} of {kinds}; Ctrl-C stops it")
            elif done == 0:
                say(f"timing {kinds} kind(s) of cells …", err=True)

        found = estimate(
            scenario, out=out, execution=execution,
            on_probe=lambda done, kinds: None if form == "json" else probing(done, kinds),
        )  # fmt: skip
    if form == "json":
        return found
    screen, groups = console(), found.grouped_cells()
    say(f"{scenario.name}: {len(found.cells)} cell(s): {found.summary()}")
    for line in (*found.grouped_refusals(), *(f"warning: {warning}" for warning in found.warnings)):
        screen.print(line, markup=False)
    rows = [
        [state, count, *(below_heading(k, v) for k, v in values.items()), seconds(spent) if spent else "–"]
        for state, count, values, spent in groups[:_ROWS]
    ]
    say()
    screen.print(table(["state", "cells", *found.axes, "estimate"], rows))
    if len(groups) > _ROWS:
        say(f"… and {len(groups) - _ROWS} more rows; --format json lists all cells")
    return found
