"""The grid: cells missing from the store, run by worker processes, each committed as soon as it is done."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from robustfl.errors import RobustflError, StoreError, UsageError
from robustfl.records import CellResult, plain
from robustfl.registry import guests, load_file, load_plugins, loaded_files, pack, unpack
from robustfl.reports.store import Store
from robustfl.tempdirs import sweep

from .checkpoint import commit, discard
from .expand import SCOPE, asked, default_labels
from .kept_models import missing_models
from .memory import REMEDY, memory_of, slots_on
from .noop_settings import scenario_warnings
from .plan import Plan, ResolvedCell, plan
from .progress import Finished, GridProgress, in_notebook
from .run import failure, run_resolved
from .run_options import WARNING, OnCellRound, RunOptions, unheard, warned
from .spec import Scenario
from .worker_pool import Died, Progress, run_in_workers

if TYPE_CHECKING:
    import pandas as pd

    from robustfl.reports.notebook import Plots

_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Results:
    """The outcome of a grid: the store's folder, how many cells ran here now, how many others had stored, before or
    meanwhile, how many there are of each status, and the keys of all.
    """

    folder: Path
    computed: int
    stored: int
    statuses: dict[str, int] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()

    @property
    def lost(self) -> int:
        """The number of cells that were stored and are not to be read at the end, as where the folder was moved."""
        return max(0, len(self.keys) - sum(self.statuses.values()))

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell of the grid that the store has."""
        from robustfl.reports.frame import frame

        return frame(self.records())

    def leaderboard(self) -> pd.DataFrame:
        """The leaderboard of the grid's own cells, whatever else is in the folder."""
        from robustfl.reports import load_board

        return load_board(self.folder, keys=self.keys).frame()

    @property
    def plot(self) -> Plots:
        """Figures of the grid's own cells, as matplotlib axes: ``results.plot.heatmap()``."""
        from robustfl.reports.notebook import Plots

        return Plots(self.records)

    def records(self) -> list[CellResult]:
        """The records of the grid's own cells that the store has."""
        return [r for r in Store(self.folder).load().results if r.key in self.keys]

    def _repr_html_(self) -> str:
        from robustfl.reports import load_board
        from robustfl.reports.tables import to_html

        return to_html(load_board(self.folder, keys=self.keys))


def grid(
    scenario: Scenario | str | Path,
    *,
    out: str | Path = "runs",
    on_start: Callable[[Plan], None] = unheard,
    on_cell: Callable[[Finished], None] = unheard,
    on_round: OnCellRound | None = None,
    on_note: Callable[[str], None] = warned,
    progress: bool | None = None,
    **options: Any,
) -> Results:
    """Run every cell of ``scenario`` that the store ``<out>/<name>`` does not have yet.

    ``options`` are those of ``RunOptions``: ``jobs``, ``device``, ``threads``, ``root``, ``keep_model``, ``track`` …
    ``on_round`` hears about once a second of every running cell: its key, the round and the rounds; not on a cluster.
    ``on_note`` hears every warning, also of cells, each once (default: Python's warnings).
    ``progress`` shows a bar; by default in notebooks, where nobody else listens (``on_cell``, ``on_start``).

    Raises ``UsageError`` for a wrong scenario and ``StoreError`` for a folder that cannot be written; a cell that
    crashes, or takes longer than ``cell_minutes``, is recorded as *failed* and the others go on.
    """
    how = RunOptions(on_note=on_note, **options)
    heard = on_start is not unheard or on_cell is not unheard or on_round is not None
    shown = in_notebook() and not heard if progress is None else progress
    screen = Console(file=sys.stderr) if shown and not in_notebook() else None
    with GridProgress(screen, on_note, notebook=shown and in_notebook()) as bar:
        return run_grid(
            scenario, how, out=out, on_start=_both(bar.start, on_start), on_cell=_both(bar.cell, on_cell),
            on_round=_both(bar.round, on_round or unheard),
        )  # fmt: skip


def _both(first: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    def call(*told: Any) -> None:
        first(*told)
        then(*told)

    return call


def run_grid(
    scenario: Scenario | str | Path,
    options: RunOptions,
    *,
    out: str | Path,
    on_start: Callable[[Plan], None] = unheard,
    on_cell: Callable[[Finished], None] = unheard,
    on_round: OnCellRound | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Results:
    """Run every cell of ``scenario`` that the store ``<out>/<name>`` does not have yet, as ``grid`` does.

    ``facts`` join the store's description.
    """
    if not isinstance(scenario, Scenario):
        scenario = Scenario.load(scenario)
    workers = options.workers
    todo = plan(scenario, out=out, root=options.root)
    store = Store(todo.folder)
    if store.has_old_keys():
        options.on_note(
            f"warning: {todo.folder} has records with keys of version 1, which do not count as run: their cells run "
            f"again; `robustfl merge {todo.folder} --out NEW/{scenario.name}` converts them, for a grid with --out NEW"
        )
    store.describe(_described(todo, facts or {}))
    for key in todo.cells.keys() - set(todo.missing):
        discard(todo.folder, key)  # of a cell that was killed between its record and this
    on_start(todo)
    running = (one.cell for one in todo.cells.values() if one.refusal is None)
    for warning in scenario_warnings(scenario, running):
        options.on_note(WARNING + warning)
    without = missing_models(store, todo.cells.keys() - set(todo.missing)) if options.keep_model else 0
    if without:
        options.on_note(
            f"warning: {without} stored cells have no model and do not run again; take a fresh --out for theirs"
        )
    computed, stored = 0, len(todo.cells) - len(todo.missing)
    with store.held() as alone:
        tasks = _tasks(todo, options)
        if not alone:
            tasks.reverse()
            options.on_note(f"another grid works in {todo.folder}; this one begins at the end, and they meet")
        if options.cluster is None:
            ended = run_tasks(tasks, _devices(todo, options, workers), options, on_round or unheard)
        else:
            ended = run_on_cluster(tasks, options)
        for finished in ended:
            computed, stored = computed + (not finished.found), stored + finished.found
            on_cell(finished)
    return Results(todo.folder, computed, stored, store.statuses(todo.cells), frozenset(todo.cells))


def _devices(todo: Plan, options: RunOptions, workers: int) -> list[str]:
    """The device of every worker; on GPUs that are named, as many as their memory holds."""
    if options.gpus is None:
        return [options.device] * workers
    need = memory_of((todo.cells[key].cell for key in todo.missing), options.root)
    each = options.slots or slots_on(options.gpus, need)
    named = ", ".join(map(str, options.gpus))
    options.on_note(f"{len(options.gpus) * each} cells at once: {each} on each of the GPUs {named}")
    return [f"cuda:{index}" for _ in range(each) for index in options.gpus]


def _tasks(todo: Plan, options: RunOptions) -> list[CellTask]:
    """The missing cells, each with what a worker needs for it; those with the same plug-ins follow one another."""
    cells = [todo.cells[key] for key in todo.missing]
    used = frozenset[str]().union(*(cell.foreign for cell in cells))
    plugins = tuple(dict.fromkeys([*todo.scenario.plugins, *loaded_files(used)]))
    sent = pack([entry for entry in guests() if entry.origin in used and options.jobs != 0])
    here, store = replace(options.of_a_cell, store=todo.folder), Store(todo.folder)
    tasks = [CellTask(cell, here, store, plugins, sent) for cell in cells]
    return sorted(tasks, key=lambda task: sorted(task.foreign))


def _described(todo: Plan, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a store, with what its boards must know of AutoByz and the ``facts`` of who runs it."""
    scenario = todo.scenario
    described: dict[str, Any] = {
        "name": scenario.name,
        "description": scenario.description,
        "scenario": plain(scenario.model_dump(mode="json")),
        "cells": {key: cell.labels for key, cell in todo.cells.items()},
        "defaults": default_labels(),
    }
    ensemble = asked(scenario)
    if ensemble is not None:
        described["autobyz"] = {"version": ensemble.version, "scope": scenario.cell.get("scope", SCOPE)}
    return {**described, **plain(dict(facts))}


# --- the missing cells as tasks of worker processes or a cluster ------------------------------------------------------


@dataclass(frozen=True)
class CellTask:
    """A missing cell of a grid, with what a worker needs for it: the last two only where the cell has plug-ins."""

    resolved: ResolvedCell
    options: RunOptions
    store: Store
    plugins: tuple[str, ...] = ()
    sent: bytes = b""

    @property
    def key(self) -> str:
        """The key of the cell."""
        return self.resolved.key

    @property
    def foreign(self) -> frozenset[str]:
        """The origins of its plug-ins."""
        return self.resolved.foreign

    def __call__(self, device: str, send: Callable[[Progress], None]) -> CellResult | Finished | RobustflError:
        """Run it in a worker, whatever its methods do short of ending the process; an error of the grid is returned."""
        try:
            load_plugins()
            if self.foreign:
                unpack(self.sent)
            return self.execute(device, send)
        except (StoreError, UsageError) as error:
            return error
        except BaseException as error:  # a method's own exit or interrupt: nobody else's reaches a worker
            return self.resolved.failed(failure(error, self.resolved.plug_ins))

    def execute(self, device: str, send: Callable[[Progress], None]) -> CellResult | Finished:
        """Run it, unless another grid has stored it; its rounds are sent about once a second."""
        for plugin in self.plugins if self.foreign else ():
            load_file(plugin)
        if not self.resolved.same_here:
            words = f"a plug-in changed after the grid began{self.resolved.plug_ins}; start the grid again"
            raise UsageError(words)
        if (stored := self._stored()) is not None:
            return stored
        sent = time.monotonic()

        def on_round(round: int, rounds: int, loss: float) -> None:
            nonlocal sent
            del loss
            if time.monotonic() - sent >= _PROGRESS_SECONDS:
                sent = time.monotonic()
                send(Progress(round, rounds))

        return run_resolved(self.resolved, replace(self.options, device=device, on_round=on_round))

    def end(self, outcome: CellResult | Finished | Died | RobustflError) -> Finished:
        """Store its record, of a death that of a failure. Raises an error of the grid."""
        if isinstance(outcome, RobustflError):
            raise outcome
        if isinstance(outcome, Died):
            outcome = self._stored() or self.resolved.failed(self._reason(outcome))
        if isinstance(outcome, Finished):
            return outcome
        commit(self.store, outcome)
        return Finished.of(outcome)

    def _stored(self) -> Finished | None:
        """Its end, if another grid has stored it since."""
        if not self.store.done([self.key]):
            return None
        discard(self.store.folder, self.key)
        return Finished.of(self.store.read(self.key), found=True)

    def _reason(self, died: Died) -> str:
        """Why it failed, where its worker was killed at the deadline or died twice."""
        plug_ins = self.resolved.plug_ins
        if died.late:
            words = f"time limit of {self.options.cell_minutes:g} min (--cell-minutes) reached{plug_ins}"
            return f"{words}; what was checkpointed is kept\n{died.trace}".rstrip()
        remedy = f" (out of memory?); {REMEDY}" if died.status == -signal.SIGKILL else ""
        return f"the worker process died twice on this cell{remedy}: {died}{plug_ins}\n{died.trace}".rstrip()


def run_tasks(
    tasks: Sequence[CellTask], devices: Sequence[str], options: RunOptions, on_round: OnCellRound
) -> Iterator[Finished]:
    """Run the cells in one worker process per device, or without devices in this very process."""

    def send(key: str, progress: Progress) -> None:
        on_round(key, *progress)

    sweep()
    if not devices:
        for task in tasks:
            yield task.end(task.execute(options.device, partial(send, task.key)))
    elif tasks:
        deadline = None if options.cell_minutes is None else 60 * options.cell_minutes
        for task, message in run_in_workers(tasks, devices, threads=options.threads, deadline=deadline):
            if isinstance(message, Progress):
                send(task.key, message)
            else:
                yield task.end(message)


def run_on_cluster(tasks: Sequence[CellTask], options: RunOptions) -> Iterator[Finished]:
    """Run the cells on a cluster; every record is committed here, as soon as it arrives."""
    from .cluster import RemoteCell, connected, contents, run_remotely, software

    if not tasks:
        return
    mine, plugins, by_key = software(), contents(tasks[0].plugins), {task.key: task for task in tasks}
    with connected(str(options.cluster)) as client:
        cells = [RemoteCell(t.resolved, plugins, mine, options.of_a_cell, t.sent) for t in tasks]
        for record in run_remotely(client, cells, options.on_note):
            yield by_key[record.key].end(record)
