"""``robustfl grid`` and ``robustfl run``."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from robustfl.cli import options as shared
from robustfl.cli.options import Command, load_plugins, presets_and_files, scenario_options
from robustfl.cli.printing import as_json, console, percent, print_board, say, table
from robustfl.errors import UsageError

if TYPE_CHECKING:
    from robustfl.records import CellResult
    from robustfl.scenarios import RunOptions, Scenario
    from robustfl.scenarios.dry_run import Estimate
    from robustfl.scenarios.grid import Results

_ROWS = 40  # of a dry run's table


def _indices(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    del ctx, param
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--gpus {text!r} must be indices such as 0,1") from None


@click.command(cls=Command, short_help="Run every missing cell of a scenario; print the leaderboard.")
@click.argument("scenario", default="quickstart", shell_complete=presets_and_files)
@shared.STORES
@shared.JOBS
@click.option("--gpus", callback=_indices, metavar="0,1", help="Spread cells over these GPUs.")
@click.option("--slots", type=click.IntRange(1), help="Cells at once on each GPU [default: by memory].")
@click.option("--cluster", metavar="tcp://HOST:PORT", help="Run cells on the workers of this dask scheduler.")
@shared.CELL_MINUTES
@shared.DRY_RUN
@scenario_options
def grid(
    scenario: str, *, out: str, dry_run: bool, settings: tuple[str, ...],
    plugins: tuple[str, ...], form: str, **how: Any,
) -> int:  # fmt: skip
    """Run every missing cell of SCENARIO (a preset or a TOML file) and print the leaderboard.

    Interrupt it at any time: what is done stays, and the same command goes on from there, also within long cells.
    """
    from robustfl.reports import load_board
    from robustfl.scenarios.single import processes

    if processes() > 1:
        raise UsageError("torchrun shares one cell between processes: use it with `robustfl run`, not with `grid`")
    options = options_of(**how)
    chosen = load(scenario, settings, plugins)
    if dry_run:
        found = print_plan(chosen, options, out=out, form=form)
        if form == "json":
            as_json(found.as_dict())
        return 1 if found.untimed else 0
    results = run_shown(chosen, options=options, out=out, quiet=form == "json")
    if results.keys and results.lost == len(results.keys):
        return 1
    board = load_board(results.folder, keys=results.keys)
    print_board(board, form, full=f"robustfl report {results.folder}")
    if form == "table":
        _say_where(results, tensorboard="tensorboard" in options.track)
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


def load(scenario: str, settings: tuple[str, ...], plugins: tuple[str, ...]) -> Any:
    """The scenario with the command line's settings and plug-ins on top."""
    from robustfl.scenarios import Scenario

    load_plugins(plugins)
    return Scenario.load(scenario, settings=settings).beside(plugins)


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


def print_plan(scenario: Scenario, options: RunOptions, *, out: str, form: str) -> Estimate:
    """Print what a dry run finds, the summary first; JSON is left to the caller."""
    from robustfl.reports.board import below_heading
    from robustfl.scenarios.dry_run import estimate
    from robustfl.scenarios.progress import duration

    screen = console(err=True)
    with screen.status("") if screen.is_terminal else nullcontext() as status:

        def probing(done: int, kinds: int) -> None:
            if status is not None:
                status.update(f"timing networks: {done} of {kinds}; Ctrl-C stops it")
            elif done == 0:
                say(f"timing {kinds} network(s) …", err=True)

        found = estimate(
            scenario, out=out, options=options,
            on_probe=lambda done, kinds: None if form == "json" else probing(done, kinds),
        )  # fmt: skip
    if form == "json":
        return found
    screen, groups = console(), found.grouped_cells()
    say(f"{scenario.name}: {len(found.cells)} cell(s): {found.summary()}")
    for line in (*found.grouped_refusals(), *(f"warning: {warning}" for warning in found.warnings)):
        screen.print(line, markup=False)
    rows = [
        [state, count, *(below_heading(k, v) for k, v in values.items()), duration(spent) if spent else "–"]
        for state, count, values, spent in groups[:_ROWS]
    ]
    say()
    screen.print(table(["state", "cells", *found.axes, "estimate"], rows))
    if len(groups) > _ROWS:
        say(f"… and {len(groups) - _ROWS} more rows; --format json lists all cells")
    return found


@click.command(cls=Command, short_help="Run one cell.")
@click.argument("scenario", required=False, shell_complete=presets_and_files)
@click.option("--out", type=shared.Folder(), help="Also keep the record in this folder of stores.")
@scenario_options
def run(
    scenario: str | None, *, out: str | None, settings: tuple[str, ...], plugins: tuple[str, ...], form: str, **how: Any
) -> int:
    """Run one cell: SCENARIO with every axis fixed by --set, or the defaults.

    \b
    robustfl run --set attack=alie --set f=3 --set defense=nnm+trimmed-mean --set norm=fbn
    """
    from robustfl.scenarios.single import rank, run_one
    from robustfl.scenarios.spec import apply_settings

    if scenario is None:
        load_plugins(plugins)
        chosen = apply_settings({"name": "run"}, settings)
    else:
        chosen = load(scenario, settings, plugins)
    screen = console(err=True)
    quiet = not screen.is_terminal or form == "json" or rank() > 0
    with Progress(
        TextColumn("round"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"), console=screen, transient=True, disable=quiet,
    ) as bar:  # fmt: skip
        task = bar.add_task("rounds", total=None, loss="")
        options = options_of(
            on_round=lambda r, total, loss: bar.update(task, completed=r, total=total, loss=f"loss {loss:.3f}"), **how
        )
        record = run_one(chosen, options, out=out)
    _tell(record, form, rank())
    return 0 if record.status == "done" else 1


def _tell(record: CellResult, form: str, process: int) -> None:
    """Print the record; processes beside the first one speak of failures only."""
    if process > 0:
        if record.status == "failed":
            say(f"process {process}: {record.reason}", err=True)
    elif form == "json":
        as_json(record.model_dump(mode="json"))
    else:
        _print(record)


def _tested(record: Any) -> int:
    """The number of clients that are tested each on its own images."""
    return sum(value is not None for value in record.metrics.per_user["sa"])


def _print(record: Any) -> None:
    from robustfl.records import WORST_CLIENT
    from robustfl.reports.published.board import forgotten

    screen = console()
    labels = record.labels
    shown = ["dataset", "partition", "model", "norm", "algorithm", "attack", "defense", "f", "clients", "seed"]
    if labels["statistics_defense"] != "same":
        shown.insert(shown.index("f"), "statistics_defense")
    if labels["domains"]:
        shown[:2] = ["domains"]
    rows = [[k, labels[k]] for k in shown]
    rows.append(["status", record.status])
    if record.metrics is not None:
        rows.append(["SA", f"{percent(record.metrics.sa)} %  ({record.metrics.samples} test images)"])
        if (worst := record.metrics.groups.get("worst client")) is not None:
            rows.append(["SA worst client", f"{percent(worst['sa'])} %  (of {_tested(record)} clients)"])
        rows += [[f"RA {spec}", f"{percent(value)} %"] for spec, value in record.metrics.ra.items()]
        if record.metrics.asr is not None:
            rows.append(["ASR", f"{percent(record.metrics.asr)} %"])
        chosen = record.certificates.get("selection", {}).get("round")
        for group, of_what in (
            ("selected", f"round {chosen}, chosen on validation data"),
            ("tail", f"mean of the last {labels['tail']} rounds"),
        ):
            for metric, value in record.metrics.groups.get(group, {}).items():
                if metric != "ra_worst":
                    name = {"sa": "SA", "asr": "ASR", WORST_CLIENT: "SA worst client"}.get(metric, f"RA {metric}")
                    rows.append([name, f"{percent(value)} %  ({of_what})"])
    if record.reason:
        rows.append(["reason", record.reason.strip()])
    for round, mean in forgotten(record.certificates.get("forgetting")).items():
        where = f"  (round {round})" if round else ""
        lost = "–" if math.isnan(float(mean)) else f"{100 * float(mean):.1f} points"
        rows.append(["forgetting", f"{lost}, mean over clients and others' data{where}"])
    for name in ("attack_shift", "statistics_shift", "defense_shift", "smallest_variance", "dropped"):
        if record.certificates.get(name) is not None:
            value = float(record.certificates[name])  # infinite and NaN are texts in a record
            rows.append([name.replace("_", " "), f"{value:.4g}"])
    rows.append(["time", f"{record.timing.seconds:.1f} s, peak {record.timing.peak_memory_bytes / 2**20:.0f} MiB"])
    rows.append(["key", record.key])
    screen.print(table(["", ""], rows))
    for warning in record.certificates.get("warnings", []):
        say(f"warning: {warning}", err=True)
