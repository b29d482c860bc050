"""The plan and the cost of a grid: cells, refusals, seconds and memory, without training it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from robustfl.contracts import Arrays
from robustfl.data import data_root
from robustfl.errors import DataMissing, Refused
from robustfl.federation.clients import Clients
from robustfl.records import CellResult
from robustfl.reports.store import Store

from .build import Sizes, build, check_sizes, skeleton, split_sizes
from .cell import Cell, of_each
from .costs import ROUNDS, Cost, Costs, kind_of, passes, shape_of
from .execution import Execution, unheard
from .expand import expand, fingerprints, key_of, labels, refusal, resolve
from .noop_settings import scenario_warnings
from .spec import Scenario

AS_GRID = Execution()


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a dry run: ``stored``, ``refused`` or ``to run``, and its estimated seconds, if it could be timed."""

    state: str
    cell: Cell
    seconds: float | None
    reason: str | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """The settings as tables print them."""
        return labels(self.cell)


@dataclass(frozen=True)
class Estimate:
    """A dry run's findings. ``seconds`` is wall-clock time of the whole grid with ``jobs`` workers."""

    cells: tuple[PlannedCell, ...]
    axes: tuple[str, ...]
    jobs: int
    seconds: float | None
    memory_bytes: int | None
    note: str
    warnings: tuple[str, ...] = ()
    untimed: int = 0
    """How many kinds of cells could not be timed: they fail here."""

    @property
    def refusals(self) -> dict[str, int]:
        """The number of refused cells for each reason."""
        return dict(Counter(c.reason for c in self.cells if c.reason is not None))

    def grouped_refusals(self) -> list[str]:
        """One line for all reasons that differ in numbers only, with the count of cells and the first reason."""
        groups: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.reason is not None:
                groups.setdefault(_without_numbers(cell.reason), []).append(cell.reason)
        return [
            f"refused ({len(reasons)}{', for example' if len(set(reasons)) > 1 else ''}): {reasons[0]}"
            for reasons in groups.values()
        ]

    def grouped_cells(self) -> list[tuple[str, int, dict[str, str], float | None]]:
        """State, number of cells, values of the axes and seconds of groups: refused cells by reason, others by all
        settings but the seed. An axis in which a group differs has the number of its values.
        """
        groups: dict[tuple[Any, ...], list[PlannedCell]] = {}
        for cell in self.cells:
            alike = tuple(getattr(cell.cell, k) for k in self.axes if k != "seed")
            kind = alike if cell.reason is None else (_without_numbers(cell.reason),)
            groups.setdefault((cell.state, *kind), []).append(cell)
        rows = []
        for (state, *_), cells in groups.items():
            counts = {axis: len({getattr(c.cell, axis) for c in cells}) for axis in self.axes}
            first = cells[0].labels
            shown = {axis: str(first[axis]) if count == 1 else f"{count} values" for axis, count in counts.items()}
            spent = [c.seconds for c in cells if c.seconds is not None]
            rows.append((state, len(cells), shown, sum(spent) if len(spent) == len(cells) else None))
        return rows

    def summary(self) -> str:
        """The first lines of a dry run: cells by state, time and memory."""
        states = Counter(c.state for c in self.cells)
        lines = [", ".join(f"{n} {state}" for state, n in states.items()) + "; nothing was trained."]
        if self.seconds and self.memory_bytes is not None:
            lines.append(
                f"About {_duration(self.seconds)} with {self.jobs} worker(s) on this machine, "
                f"{self.memory_bytes / 2**30:.1f} GiB per worker. {self.note}"
            )
        else:
            lines.append(self.note)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        cells = [{"state": c.state, "reason": c.reason, "seconds": c.seconds, **c.labels} for c in self.cells]
        return {
            "jobs": self.jobs, "seconds": self.seconds, "memory_bytes": self.memory_bytes, "cells": cells,
            "untimed": self.untimed, "warnings": list(self.warnings),
        }  # fmt: skip


def estimate(
    scenario: Scenario,
    *,
    out: str | Path = "runs",
    execution: Execution = AS_GRID,
    on_probe: Callable[[int, int], None] = unheard,
) -> Estimate:
    """Expand ``scenario``, look into its store, and time a few rounds and batches; the other cells follow from them.

    ``on_probe`` is told before each kind of cell how many of how many are done.
    """
    cells = expand(scenario)
    reasons = of_each(cells, refusal)
    axes = _axes(cells) or ("attack", "defense")
    workers = execution.workers
    warnings = tuple(scenario_warnings(scenario, (c for c, why in zip(cells, reasons, strict=True) if why is None)))
    try:
        known = fingerprints(cells, execution.root, download=False)
    except DataMissing as error:
        planned = tuple(_planned(c, why, None) for c, why in zip(cells, reasons, strict=True))
        note = f"No estimate: {error}\nPartitions were not drawn either: they may leave clients too few images."
        return Estimate(planned, axes, workers, None, None, note, warnings)
    of_data = DataRefusals(execution)
    reasons = [why or of_data(cell) for cell, why in zip(cells, reasons, strict=True)]
    store = Store(Path(out) / scenario.name)
    filled = bool(store.keys())  # else no cell's key is asked for
    rows = [
        (cell, key_of(resolve(cell, known[cell])) if filled else "", why)
        for cell, why in zip(cells, reasons, strict=True)
    ]
    stored = store.done([key for _, key, _ in rows])
    todo = [cell for cell, key, why in rows if why is None and key not in stored]
    measured = _measured([(cell, store.read(key)) for cell, key, _ in rows if key in stored], execution) if todo else {}
    kinds = Counter(kind_of(cell) for cell in todo)
    costs = Costs(execution, measured)
    found = costs.of(todo, lambda done: on_probe(done, len(kinds)))
    planned = tuple(
        PlannedCell("stored", c, None) if key in stored else _planned(c, why, _seconds(c, found.get(kind_of(c))))
        for c, key, why in rows
    )
    spent = [p.seconds for p in planned if p.state == "to run" and p.seconds is not None]
    total = sum(spent) / max(1, min(workers, len(spent))) if spent or not found else None
    memory = max((cost.memory for cost in found.values()), default=0)
    note = _timed_words(costs, found, kinds, measured)
    wrong = Counter(cost.failed for cost in found.values() if cost.failed)
    for words, count in wrong.items():
        note += f"\n{count} kind(s) of cells could not be timed, and will not run here: {words}"
    return Estimate(planned, axes, workers, total, memory, note, warnings, wrong.total())


class DataRefusals:
    """Reasons to refuse cells that only data and network tell; every partition is drawn once.

    Labels are read, and images only where a client has a single sample. Errors other than ``Refused`` are left to the
    timing, which reports them.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._load = cache(lambda dataset: dataset.load(data_root(execution.root), download=False))
        self._known: dict[tuple[Any, ...], Sizes | str | None] = {}

    def __call__(self, cell: Cell) -> str | None:
        """The reason to refuse a cell, or None."""
        sizes = self._once(_split_of(cell), lambda: split_sizes(cell, self._parts(cell)))
        if not isinstance(sizes, Sizes):
            return sizes  # the reason, or None after another error
        try:
            check_sizes(cell, sizes)
        except Refused as error:
            return str(error)
        found = self._once((cell.dataset, cell.domains, cell.model, cell.norm), lambda: self._build_network(cell))
        if found is None and min(cell.batch, *sizes.train) == 1:  # too few where a batch's variance is needed
            alike = (*_split_of(cell), cell.model, cell.norm, cell.algorithm, cell.attack, cell.f, cell.batch)
            found = self._once(alike, lambda: self._check_batches(cell))
        return found if isinstance(found, str) else None

    def _once(self, key: tuple[Any, ...], ask: Callable[[], Sizes | None]) -> Sizes | str | None:
        if key not in self._known:
            try:
                self._known[key] = ask()
            except Refused as error:
                self._known[key] = str(error)
            except Exception:
                self._known[key] = None
        return self._known[key]

    def _parts(self, cell: Cell) -> list[Arrays]:
        return [self._load(dataset) for dataset in cell.methods.datasets]

    def _build_network(self, cell: Cell) -> None:
        first = self._parts(cell)[0]
        skeleton(cell, shape=first.shape, classes=first.classes)

    def _check_batches(self, cell: Cell) -> None:
        Clients(build(cell, root=self._execution.root).experiment, unheard)


def _split_of(cell: Cell) -> tuple[Any, ...]:
    """The settings on which depends who has which samples."""
    copies = (cell.f, cell.byzantine, cell.at) if cell.owners < cell.clients else ()
    return (
        cell.dataset, cell.domains, cell.users, cell.domain_share, cell.user_sizes, cell.partition, cell.clients,
        copies, cell.validation, cell.server_samples, cell.seed, cell.evasions, cell.train_evasion,
    )  # fmt: skip


def _timed_words(
    costs: Costs,
    found: Mapping[tuple[Any, ...], Cost],
    kinds: Counter[tuple[Any, ...]],
    measured: Mapping[tuple[Any, ...], float],
) -> str:
    """Sentences about what was timed, and about what could not be because it is refused."""
    if not kinds:
        return "No cell is left to run."
    note = (
        f"Timed: {ROUNDS} rounds of {costs.timed} of {len(kinds)} kind(s) of cells, and a batch of {costs.networks} "
        "network(s), from which the others follow; other load on the machine counts in."
    )
    if known_before := len(kinds.keys() & measured.keys()):
        note += f" Of {known_before} kind(s), what stored cells took."
    for words in dict.fromkeys(cost.refused for cost in found.values() if cost.refused):
        alike = [kind for kind, cost in found.items() if cost.refused == words]
        count = f"{sum(kinds[kind] for kind in alike)} cells of {len(alike)} kind(s)"
        note += f"\n{count} could not be timed, and may be refused as the first of each kind is: {words}"
    return note


def _axes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The settings in which cells differ."""
    settings = [vars(cell) for cell in cells]
    return tuple(k for k, value in settings[0].items() if any(s[k] is not value and s[k] != value for s in settings))


def _measured(records: Sequence[tuple[Cell, CellResult]], execution: Execution) -> dict[tuple[Any, ...], float]:
    """Seconds of a round, by kind and by shape, of finished cells that ran as these will."""
    here, found = (execution.first_device.type, execution.threads), dict[tuple[Any, ...], float]()
    for cell, record in records:
        seconds, known = record.timing.seconds_per_round, record.certificates
        if seconds and (known.get("device"), known.get("threads")) == here:
            found |= {shape_of(cell): seconds, kind_of(cell): seconds}
    return found


def _planned(cell: Cell, reason: str | None, seconds: float | None) -> PlannedCell:
    return PlannedCell("refused" if reason else "to run", cell, None if reason else seconds, reason)


def _without_numbers(reason: str) -> str:
    return re.sub(r"[0-9.]+", "#", reason)


def _duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, hours and days."""
    for unit, length, limit in (("seconds", 1, 120), ("minutes", 60, 7200), ("hours", 3600, 2 * 86400)):
        if seconds < limit:
            return f"{seconds / length:.{0 if length == 1 else 1}f} {unit}"
    return f"{seconds / 86400:.1f} days"


def _seconds(cell: Cell, cost: Cost | None) -> float | None:
    if cost is None or cost.failed or cost.refused:
        return None
    points = 1 + (cell.end // cell.evaluate_every if cell.evaluate_every else 10)
    attacked = sum(passes(e) for e in cell.evasions) * (points if cell.evaluate_ra else 1)
    images: float = points * cost.images + attacked * min(cost.images, cell.ra_limit or cost.images)
    if cell.select == "validation":  # and the selected model is tested beside the last one
        images += points * cost.validated + cost.images
        images += sum(passes(e) for e in cell.evasions) * min(cost.images, cell.ra_limit or cost.images)
    return cell.end * cost.round + images * cost.image
