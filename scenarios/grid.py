"""The grid: cells missing from the store, run by worker processes, each committed as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustfl.origins import all_origins
from robustfl.records import CellResult, plain
from robustfl.registry import guests, loaded_files, pack
from robustfl.reports.store import Store
from robustfl.storage import LIMIT

from .cell import Cell
from .cell_task import CellTask, Finished, run_on_cluster, run_tasks
from .checkpoint import checkpoint_path, discard
from .ensemble import SCOPE, asked
from .execution import CHECKPOINT_MINUTES, WARNING, Execution, OnCellRound, unheard, warned
from .expand import expand, fingerprints, key_of, labels, refusal, resolve
from .kept_models import missing_models
from .memory import memory_of, slots_on
from .noop_settings import scenario_warnings
from .shown import shown
from .spec import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from robustfl.reports.notebook import Plots


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

        return frame(self._records())

    def leaderboard(self) -> pd.DataFrame:
        """The leaderboard of the grid's own cells, whatever else is in the folder."""
        from robustfl.reports import load_board

        return load_board(self.folder, keys=self.keys).frame()

    @property
    def plot(self) -> Plots:
        """Figures of the grid's own cells, as matplotlib axes: ``results.plot.heatmap()``."""
        from robustfl.reports.notebook import Plots

        return Plots(self._records)

    def _records(self) -> list[CellResult]:
        return [r for r in Store(self.folder).load().results if r.key in self.keys]

    def _repr_html_(self) -> str:
        from robustfl.reports import load_board
        from robustfl.reports.notebook import to_html

        return to_html(load_board(self.folder, keys=self.keys))


@dataclass(frozen=True)
class Plan:
    """The cells of a scenario with their keys, and those that still have to run."""

    scenario: Scenario
    folder: Path
    cells: dict[str, Cell]
    missing: tuple[str, ...]
    fingerprints: dict[Cell, str]

    @property
    def begun(self) -> int:
        """The number of missing cells that have a checkpoint to go on from."""
        return sum(checkpoint_path(self.folder, key).is_file() for key in self.missing)

    @property
    def others(self) -> int:
        """The number of cells in the store that are none of this scenario."""
        return len(set(Store(self.folder).keys()) - self.cells.keys())


def plan(scenario: Scenario, *, out: str | Path = "runs", root: str | Path | None = None) -> Plan:
    """Expand a scenario and compare with the store. Fetches data sets that are not there; computes nothing."""
    cells = expand(scenario)
    known = fingerprints(cells, root)
    keyed = {key_of(resolve(cell, known[cell])): cell for cell in cells}
    folder = Path(out) / scenario.name
    finished = Store(folder).done(keyed)
    return Plan(scenario, folder, keyed, tuple(k for k in keyed if k not in finished), known)


def grid(
    scenario: Scenario | str | Path,
    *,
    out: str | Path = "runs",
    jobs: int | None = None,
    threads: int = 1,
    device: str = "auto",
    root: str | Path | None = None,
    checkpoint_minutes: float = CHECKPOINT_MINUTES,
    keep_model: bool = False,
    cell_minutes: float | None = None,
    on_start: Callable[[Plan], None] = unheard,
    on_cell: Callable[[Finished], None] = unheard,
    on_round: OnCellRound | None = None,
    track: Sequence[str] = (),
    on_note: Callable[[str], None] = warned,
    cluster: str | None = None,
    state_memory: int = LIMIT,
    gpus: Sequence[int] | None = None,
    slots: int | None = None,
    progress: bool | None = None,
) -> Results:
    """Run every cell of ``scenario`` that the store ``<out>/<name>`` does not have yet.

    ``jobs`` worker processes (default: one per core, or one on a GPU) of ``threads`` threads each. Results do not
    depend on ``jobs``; with 0 cells run in this very process, where a debugger reaches them and a crash ends all.
    With ``cluster``, the address of a dask scheduler, its workers run the cells instead (see
    ``scenarios/cluster.py``); with ``gpus``, cells are spread over these, ``slots`` at a time on each (default: as many
    as their memory holds). ``track`` names trackers (``"tensorboard"``) that follow every cell into the store's folder.
    ``on_round`` hears about once a second of every running cell: its key, the round and the rounds; not on a cluster.
    ``on_note`` hears every warning, also of cells, each once (default: Python's warnings).
    ``progress`` shows a bar; by default in notebooks, where nobody else listens (``on_cell``, ``on_start``).
    Every ``checkpoint_minutes`` (0: never) a cell that runs here keeps what it needs to go on. ``keep_model`` keeps
    every trained model in the store (``load_model``).

    Raises ``UsageError`` for a wrong scenario and ``StoreError`` for a folder that cannot be written; a cell that
    crashes, or takes longer than ``cell_minutes``, is recorded as *failed* and the others go on.
    """
    execution = Execution(
        device=device, threads=threads, root=root, state_memory=state_memory, checkpoint_minutes=checkpoint_minutes,
        keep_model=keep_model, cell_minutes=cell_minutes, track=tuple(track), jobs=jobs,
        gpus=None if gpus is None else tuple(gpus), slots=slots, cluster=cluster, on_note=on_note,
    )  # fmt: skip
    heard = on_start is not unheard or on_cell is not unheard or on_round is not None
    with shown(progress, on_start, on_cell, on_round, heard=heard) as (started, ended, at_round):
        heeded = _Warnings(ended, on_note)
        return run_grid(scenario, execution, out=out, on_start=started, on_cell=heeded.see, on_round=at_round)


@dataclass
class _Warnings:
    """Hands the warnings of cells that ended to ``on_note``, each once."""

    on_cell: Callable[[Finished], None]
    on_note: Callable[[str], None]
    known: set[str] = field(default_factory=set)

    def see(self, finished: Finished) -> None:
        self.on_cell(finished)
        for warning in finished.warnings:
            if warning not in self.known:
                self.known.add(warning)
                self.on_note(WARNING + warning)


def run_grid(
    scenario: Scenario | str | Path,
    execution: Execution,
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
    workers = execution.workers
    todo = plan(scenario, out=out, root=execution.root)
    store = Store(todo.folder)
    if store.has_old_keys():
        execution.on_note(
            f"warning: {todo.folder} has records with keys of version 1, which do not count as run: their cells run "
            f"again; `robustfl merge {todo.folder} --out NEW/{scenario.name}` converts them, for a grid with --out NEW"
        )
    store.describe(_described(todo, facts or {}))
    for key in todo.cells.keys() - set(todo.missing):
        discard(todo.folder, key)  # of a cell that was killed between its record and this
    on_start(todo)
    running = (cell for cell in todo.cells.values() if refusal(cell) is None)
    for warning in scenario_warnings(scenario, running):
        execution.on_note(WARNING + warning)
    without = missing_models(store, todo.cells.keys() - set(todo.missing)) if execution.keep_model else 0
    if without:
        execution.on_note(
            f"warning: {without} stored cells have no model and do not run again; take a fresh --out for theirs"
        )
    computed, stored = 0, len(todo.cells) - len(todo.missing)
    with store.held() as alone:
        tasks = _tasks(todo, execution)
        if not alone:
            tasks.reverse()
            execution.on_note(f"another grid works in {todo.folder}; this one begins at the end, and they meet")
        if execution.cluster is None:
            ended = run_tasks(tasks, _devices(todo, execution, workers), execution, on_round or unheard)
        else:
            ended = run_on_cluster(tasks, execution)
        for finished in ended:
            computed, stored = computed + (not finished.found), stored + finished.found
            on_cell(finished)
    return Results(todo.folder, computed, stored, store.statuses(todo.cells), frozenset(todo.cells))


def _devices(todo: Plan, execution: Execution, workers: int) -> list[str]:
    """The device of every worker; on GPUs that are named, as many as their memory holds."""
    if execution.gpus is None:
        return [execution.device] * workers
    need = memory_of((todo.cells[key] for key in todo.missing), execution.root)
    each = execution.slots or slots_on(execution.gpus, need)
    named = ", ".join(map(str, execution.gpus))
    execution.on_note(f"{len(execution.gpus) * each} cells at once: {each} on each of the GPUs {named}")
    return [f"cuda:{index}" for _ in range(each) for index in execution.gpus]


def _tasks(todo: Plan, execution: Execution) -> list[CellTask]:
    """The missing cells, each with what a worker needs for it; those with the same plug-ins follow one another."""
    cells = {key: todo.cells[key] for key in todo.missing}
    foreign = {key: frozenset(all_origins(resolve(c, todo.fingerprints[c])["methods"])) for key, c in cells.items()}
    used = frozenset[str]().union(*foreign.values())
    plugins = tuple(dict.fromkeys([*todo.scenario.plugins, *loaded_files(used)]))
    sent = pack([entry for entry in guests() if entry.origin in used and execution.jobs != 0])
    here, store = replace(execution.of_a_cell, store=todo.folder), Store(todo.folder)
    tasks = [
        CellTask(key, cell, todo.scenario.name, todo.fingerprints[cell], here, store, foreign[key], plugins, sent)
        for key, cell in cells.items()
    ]
    return sorted(tasks, key=lambda task: sorted(task.foreign))


def _described(todo: Plan, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a store, with what its boards must know of AutoByz and the ``facts`` of who runs it."""
    scenario = todo.scenario
    described: dict[str, Any] = {
        "name": scenario.name,
        "description": scenario.description,
        "scenario": plain(scenario.model_dump(mode="json")),
        "cells": {key: labels(cell) for key, cell in todo.cells.items()},
        "defaults": labels(Cell.of({})),
    }
    ensemble = asked(scenario)
    if ensemble is not None:
        described["autobyz"] = {"version": ensemble.version, "scope": scenario.cell.get("scope", SCOPE)}
    return {**described, **plain(dict(facts))}
