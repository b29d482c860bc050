"""The plan and the rough cost of a grid: cells, refusals, seconds and memory, without training it."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from robustfl.data import data_root
from robustfl.engine import initial_state, train
from robustfl.engine.clients import Clients
from robustfl.errors import DataMissing, Diverged, Refused, Terminated, told
from robustfl.origins import in_words, origins
from robustfl.reports.store import Store
from robustfl.torch_settings import standard_settings

from .build import Built, Split, build, check_sizes, skeleton, split_data
from .cell import Cell, of_each
from .expand import expand, fingerprints, labels, resolve
from .memory import message_bytes
from .methods import method
from .noop_settings import scenario_warnings
from .plan import ResolvedCell
from .progress import duration
from .refusals import refusal
from .run_options import RunOptions, unheard
from .spec import Scenario

AS_GRID = RunOptions()
ROUNDS = 2  # of the cell that is timed; the first one warms up
IMAGES = 32  # of the batch of which a pass is timed, fewer where they take more than a second
SECONDS = 10.0  # what rounds that are timed may take
_LIBRARIES = 700 * 2**20  # bytes that every process takes
T = TypeVar("T")
_EMPTY: dict[type, str] = {MemoryError: ": this machine has not enough memory"}  # what errors without words mean


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
                f"About {duration(self.seconds)} with {self.jobs} worker(s) on this machine, "
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
    options: RunOptions = AS_GRID,
    on_probe: Callable[[int, int], None] = unheard,
) -> Estimate:
    """Expand ``scenario``, look into its store, and estimate the cells that are left from a few timed batches.

    ``on_probe`` is told before each kind of training how many of how many are done.
    """
    cells = expand(scenario)
    reasons = of_each(cells, refusal)
    axes, workers = _axes(cells) or ("attack", "defense"), options.workers
    warnings = tuple(scenario_warnings(scenario, (c for c, why in zip(cells, reasons, strict=True) if why is None)))
    try:
        known = fingerprints(cells, options.root, download=False)
    except DataMissing as error:
        planned = [_planned(cell, why) for cell, why in zip(cells, reasons, strict=True)]
        note = f"No estimate: {error}\nPartitions were not drawn either: they may leave clients too few images."
        return Estimate(tuple(planned), axes, workers, None, None, note, warnings)
    reasons = [why or more for why, more in zip(reasons, data_refusals(cells, reasons, options), strict=True)]
    store = Store(Path(out) / scenario.name)
    keys = [ResolvedCell.of(cell, known[cell]).key for cell in cells] if store.keys() else []
    done = store.done(keys)
    stored = {cell for cell, key in zip(cells, keys, strict=False) if key in done}
    todo = [cell for cell, why in zip(cells, reasons, strict=True) if why is None and cell not in stored]
    costs = Costs(todo, options, on_probe)
    seconds = dict(zip(todo, of_each(todo, costs.seconds), strict=True))
    planned = [_planned(c, why, seconds.get(c), stored=c in stored) for c, why in zip(cells, reasons, strict=True)]
    spent = [cell.seconds for cell in planned if cell.seconds is not None]
    total = sum(spent) / max(1, min(workers, len(spent))) if spent or not todo else None
    return Estimate(tuple(planned), axes, workers, total, costs.memory, costs.note, warnings, costs.failed)


def _planned(cell: Cell, why: str | None, seconds: float | None = None, *, stored: bool = False) -> PlannedCell:
    state = "stored" if stored else "refused" if why else "to run"
    return PlannedCell(state, cell, seconds, None if stored else why)


def data_refusals(cells: Sequence[Cell], reasons: Sequence[str | None], options: RunOptions) -> Iterator[str | None]:
    """Why only data and network refuse each cell without a reason; every partition is drawn, every network made once.

    Labels are read, and images only where a client has a single sample. Errors other than ``Refused`` are left to the
    estimate, which reports them.
    """
    load = cache(lambda dataset: dataset.load(data_root(options.root), download=False))
    known: dict[tuple[Any, ...], Any] = {}

    def once(key: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
        """What ``ask`` returns for cells of this key, or the reason for which it refuses them."""
        if key not in known:
            try:
                known[key] = ask()
            except Exception as error:
                known[key] = str(error) if isinstance(error, Refused) else None
        return known[key]

    def refused(cell: Cell) -> str | None:
        parts = partial(map, load, cell.methods.datasets)
        split = once(_split_of(cell), lambda: split_data(cell, cell.methods, list(parts())))
        if not isinstance(split, Split):
            return None if split is None else str(split)
        try:
            check_sizes(cell, split)
        except Refused as error:
            return str(error)
        first = next(parts())
        made = partial(skeleton, cell, shape=first.shape, classes=first.classes)
        network = (cell.dataset, cell.domains, cell.model, cell.norm)
        if isinstance(found := once(network, made), str) or min(cell.batch, *map(len, split.train)) > 1:
            return found if isinstance(found, str) else None
        batches = (*_split_of(cell), *network, cell.algorithm, cell.attack, cell.f, cell.batch)
        found = once(batches, lambda: Clients(build(cell, root=options.root).experiment, unheard))
        return found if isinstance(found, str) else None  # too few samples where a batch's variance is needed

    return (None if why else refused(cell) for cell, why in zip(cells, reasons, strict=True))


def _split_of(cell: Cell) -> tuple[Any, ...]:
    """The settings on which depends who has which samples."""
    copies = (cell.f, cell.byzantine, cell.at) if cell.owners < cell.clients else ()
    return (
        cell.dataset, cell.domains, cell.users, cell.domain_share, cell.user_sizes, cell.partition, cell.clients,
        copies, cell.validation, cell.tests, cell.imbalance, cell.server_samples, cell.seed, cell.evasions,
        cell.train_evasion,
    )  # fmt: skip


def _axes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The settings in which cells differ."""
    settings = [vars(cell) for cell in cells]
    return tuple(k for k, value in settings[0].items() if any(s[k] is not value and s[k] != value for s in settings))


def _without_numbers(reason: str) -> str:
    return re.sub(r"[0-9.]+", "#", reason)


# --- costs ------------------------------------------------------------------------------------------------------------


class Costs:
    """Rough costs of cells: a batch of every network is timed, and rounds of the cell with the least work.

    What attack, defense and engine take in these rounds beside the work is taken to be the same in all cells.
    """

    def __init__(self, cells: Sequence[Cell], options: RunOptions, on_probe: Callable[[int, int], None]) -> None:
        self._options, self._beside = options, None
        self._networks: dict[tuple[Any, ...], tuple[Built, float]] = {}
        self._wrong: list[str] = []
        self.failed, self.memory, kinds = 0, 0, dict(zip(map(network_of, cells), cells, strict=True))
        with standard_settings():
            torch.set_num_threads(options.threads)
            for done, (kind, cell) in enumerate(kinds.items()):
                on_probe(done, len(kinds))
                if (found := self._guarded(self._network, cell)) is not None:
                    self._networks[kind] = found
                    self.memory = max(self.memory, message_bytes(cell, found[0].experiment) + _LIBRARIES)
            timed = [cell for cell in cells if network_of(cell) in self._networks]
            if timed:
                rounds = of_each(timed, self._round)
                self._beside = self._guarded(self._rest, timed[rounds.index(min(rounds))])

    @property
    def note(self) -> str:
        """Sentences about what was timed, and about what could not be."""
        if not self._networks and not self._wrong:
            return "No cell is left to run."
        rounds = "" if self._beside is None else f" and {ROUNDS} rounds of the smallest cell"
        first = f"Rough: from one batch of {len(self._networks)} network(s){rounds}."
        return "\n".join([first, *self._wrong])

    def seconds(self, cell: Cell) -> float | None:
        """Seconds of a cell, or None where its network could not be timed."""
        if network_of(cell) not in self._networks:
            return None
        built, each = self._networks[network_of(cell)]
        e = built.experiment
        users = cell.clients if e.norm.private and not built.tests else 1  # each with a model of its own
        images = len(built.test) * users
        points = 1 + (cell.end // cell.evaluate_every if cell.evaluate_every else 10)
        attacked = sum(passes(evasion) for evasion in cell.evasions) * min(images, cell.ra_limit or images)
        seen: float = points * images + attacked * (points if cell.evaluate_ra else 1)
        if cell.select == "validation":  # and the selected model is tested beside the last one
            looked, share = len(e.train) * cell.domain_share * cell.validation, len(cell.adversarial) / cell.clients
            seen += points * looked * (share * passes(cell.train_evasion) + 1 - share) + images + attacked
        return cell.end * (self._round(cell) + (self._beside or 0)) + seen * each / 3

    def _round(self, cell: Cell) -> float:
        """Seconds of the forwards and backwards of a round."""
        built, each = self._networks[network_of(cell)]
        m, samples = cell.methods, len(built.experiment.train) * cell.domain_share * (1 - cell.validation) / cell.owners
        steps = m.algorithm.steps(max(1, int(samples)), cell.batch) * (2 if "again" in m.algorithm.asks else 1)
        share = len(cell.adversarial) / cell.clients if m.objective.needs_adversaries else 0.0
        attacked = 1 + passes(cell.train_evasion) / 3 if m.objective.asks_evasion else 1.0
        trained = steps * cell.batch * (1 - share + share * attacked * m.objective.replays)
        plan = m.norm.statistics_pass
        looked = 0 if plan is None else min(samples, plan.samples or samples)
        return float(cell.participants * each * (trained + looked / 3))

    def _network(self, cell: Cell) -> tuple[Built, float]:
        """The data and the network of a cell, and seconds of an image's forward and backward."""
        built = build(cell, root=self._options.root, device=self._options.first_device)
        e, images, seconds = built.experiment, 1, math.inf
        for _ in range(4):  # a single image first, which says how many a second takes; the fastest counts
            index = torch.arange(images, device=e.device)
            clock = time.perf_counter()
            logits = e.model.eval()(e.train.pixels(index, dtype=next(e.model.parameters()).dtype))
            nn.functional.cross_entropy(logits, e.train.labels(index)).backward()  # type: ignore[no-untyped-call]
            if e.device.type == "cuda":  # which works on while this process goes on
                torch.cuda.synchronize(e.device)
            seconds = min(seconds, (time.perf_counter() - clock) / images)
            images = max(1, min(len(e.train), IMAGES, int(1 / seconds)))
        e.model.zero_grad(set_to_none=True)
        return built, seconds

    def _rest(self, cell: Cell) -> float | None:
        """Seconds of a round beside its work; None of a cell whose rounds would take too long."""
        work = self._round(cell)
        if ROUNDS * work > SECONDS:
            return None
        e = build(cell, root=self._options.root, device=self._options.first_device).experiment
        clock, times = time.perf_counter(), []
        for record in train(e, initial_state(e)):
            times.append(time.perf_counter() - clock)
            if record.round == ROUNDS:
                break
            clock = time.perf_counter()
        return max(0.0, min(times) - work)

    def _guarded(self, ask: Callable[[Cell], T | None], cell: Cell) -> T | None:
        """The answer of ``ask``, or None with a note of the error, whatever a plug-in raises; the others go on."""
        try:
            return ask(cell)
        except Diverged:  # the grid will record it
            return None
        except Refused as error:  # what only training tells
            self._wrong.append(f"A cell could not be timed, and cells like it may be refused: {error}")
            return None
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, Terminated)):
                raise
            words = told(error).splitlines()[0] + _EMPTY.get(type(error), "") * (not error.args)
            foreign = in_words(origins(resolve(cell, "")))
            words += f" [{foreign}]" if foreign else ""
            self._wrong.append(f"A cell could not be timed, and cells like it will not run here: {words}")
            self.failed += 1
            return None


def network_of(cell: Cell) -> tuple[Any, ...]:
    """The settings of data and network, a batch of which is timed once."""
    return (cell.dataset, cell.domains, cell.model, cell.norm, cell.dtype, cell.clients, cell.users)


def passes(evasion: str) -> int:
    """Forward-sized passes of an evasion attack per image: a step is one forward and about two of backward."""
    built = method("train_evasion", evasion)
    steps = 3 * int(getattr(built, "steps", 1)) * int(getattr(built, "restarts", 1))
    return int(getattr(built, "passes", steps)) + 1
