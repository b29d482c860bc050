"""The plan and the cost of a grid: cells, refusals, seconds and memory, without training it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustfl.contracts import Arrays
from robustfl.data import data_root
from robustfl.engine import Experiment, initial_state, train
from robustfl.engine.clients import Clients
from robustfl.errors import DataMissing, Diverged, Refused, Terminated, told
from robustfl.evaluation import ProductCounter, macs_per_epoch
from robustfl.origins import in_words, origins
from robustfl.records import CellResult
from robustfl.reports.store import Store
from robustfl.torch_settings import standard_settings

from .build import Built, Sizes, build, check_sizes, skeleton, split_sizes
from .cell import Cell, of_each
from .expand import expand, fingerprints, labels, refusal, resolve
from .memory import message_bytes
from .methods import method
from .noop_settings import scenario_warnings
from .plan import ResolvedCell
from .run_options import RunOptions, unheard
from .spec import Scenario

AS_GRID = RunOptions()
ROUNDS = 2  # of a cell that is timed; the first one warms up
MOST_TIMED = 16  # cells of which rounds are timed
WORK = 1e10  # multiply-accumulates of all timed rounds together: seconds on any machine
BATCH_WORK = 3e9  # of the batch that is timed of a network
STEP_WORK = 2e7  # what a step costs beside its images, in multiply-accumulates
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
    options: RunOptions = AS_GRID,
    on_probe: Callable[[int, int], None] = unheard,
) -> Estimate:
    """Expand ``scenario``, look into its store, and time a few rounds and batches; the other cells follow from them.

    ``on_probe`` is told before each kind of cell how many of how many are done.
    """
    cells = expand(scenario)
    reasons = of_each(cells, refusal)
    axes = _axes(cells) or ("attack", "defense")
    workers = options.workers
    warnings = tuple(scenario_warnings(scenario, (c for c, why in zip(cells, reasons, strict=True) if why is None)))
    try:
        known = fingerprints(cells, options.root, download=False)
    except DataMissing as error:
        planned = tuple(_planned(c, why, None) for c, why in zip(cells, reasons, strict=True))
        note = f"No estimate: {error}\nPartitions were not drawn either: they may leave clients too few images."
        return Estimate(planned, axes, workers, None, None, note, warnings)
    of_data = DataRefusals(options)
    reasons = [why or of_data(cell) for cell, why in zip(cells, reasons, strict=True)]
    store = Store(Path(out) / scenario.name)
    filled = bool(store.keys())  # else no cell's key is asked for
    rows = [
        (cell, ResolvedCell.of(cell, known[cell]).key if filled else "", why)
        for cell, why in zip(cells, reasons, strict=True)
    ]
    stored = store.done([key for _, key, _ in rows])
    todo = [cell for cell, key, why in rows if why is None and key not in stored]
    measured = _measured([(cell, store.read(key)) for cell, key, _ in rows if key in stored], options) if todo else {}
    kinds = Counter(kind_of(cell) for cell in todo)
    costs = Costs(options, measured)
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

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._load = cache(lambda dataset: dataset.load(data_root(options.root), download=False))
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
        Clients(build(cell, root=self._options.root).experiment, unheard)


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


def _measured(records: Sequence[tuple[Cell, CellResult]], options: RunOptions) -> dict[tuple[Any, ...], float]:
    """Seconds of a round, by kind and by shape, of finished cells that ran as these will."""
    here, found = (options.first_device.type, options.threads), dict[tuple[Any, ...], float]()
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
    attacked = sum(passes(e) for e in cell.evasions) * min(cost.images, cell.ra_limit or cost.images)
    images: float = points * cost.images + attacked * (points if cell.evaluate_ra else 1)
    if cell.select == "validation":  # and the selected model is tested beside the last one
        images += points * cost.validated + cost.images + attacked
    return cell.end * cost.round + images * cost.image


# --- costs ------------------------------------------------------------------------------------------------------------
# A bounded number of passes is timed: rounds of the cheap cells, one batch per network for the rest. Work is counted in
# multiply-accumulates. A network's batch, timed once, tells how many seconds so much work takes here; what no round was
# timed of costs its work at that pace. Attacks and defenses count where a round was timed.


@dataclass(frozen=True)
class Cost:
    """Seconds of a round and of a test image, test images of one evaluation, bytes, and images of one look at the
    validation data; or why the cell fails or is refused.
    """

    round: float = 0.0
    image: float = 0.0
    images: int = 0
    memory: int = 0
    validated: float = 0.0
    failed: str = ""
    refused: str = ""


@dataclass(frozen=True)
class _Network:
    """A cell's data and network, seconds per multiply-accumulate, and those of one image's forward."""

    built: Built
    pace: float
    forward: float


def kind_of(cell: Cell) -> tuple[Any, ...]:
    """Cells of one kind cost the same per round."""
    return (*shape_of(cell), cell.defense, cell.statistics_rule, cell.attack)


def shape_of(cell: Cell) -> tuple[Any, ...]:
    """Clients of cells of one shape do the same work."""
    return (
        *_network_of(cell), cell.algorithm, cell.objective, cell.at, cell.train_evasion, cell.finetune == "none",
        cell.propagation, cell.batch, cell.participation, cell.engine, cell.precision, cell.domain_share,
        cell.validation,
    )  # fmt: skip


def _network_of(cell: Cell) -> tuple[Any, ...]:
    return (cell.dataset, cell.domains, cell.model, cell.norm, cell.dtype, cell.clients, cell.users)


class Costs:
    """Costs of cells by kind. ``rounds`` are seconds of a round that are known already, by kind or by shape; ``timed``
    counts the cells of which rounds were timed, ``networks`` those of which a batch was.
    """

    def __init__(self, options: RunOptions, rounds: Mapping[tuple[Any, ...], float]) -> None:
        self._options, self._rounds = options, dict(rounds)
        self._networks: dict[tuple[Any, ...], _Network] = {}
        self._paces: dict[tuple[Any, ...], tuple[float, float]] = {}
        self._works: dict[tuple[Any, ...], float] = {}
        self._left, self.timed = WORK, 0

    @property
    def networks(self) -> int:
        return len(self._paces)

    def of(self, cells: Iterable[Cell], on_cell: Callable[[int], None]) -> dict[tuple[Any, ...], Cost]:
        """The cost of every kind of the cells; ``on_cell`` is told before each how many are done."""
        kinds = {kind_of(cell): cell for cell in cells}
        shapes = {shape_of(cell): kind for kind, cell in reversed(kinds.items())}
        first = set(shapes.values())
        found: dict[tuple[Any, ...], Cost] = {}
        with standard_settings():
            torch.set_num_threads(self._options.threads)
            for kind in sorted(kinds, key=lambda kind: kind not in first):  # a round of every shape comes first
                on_cell(len(found))
                found[kind] = self._guarded(kind, kinds[kind])
        return found

    def _guarded(self, kind: tuple[Any, ...], cell: Cell) -> Cost:
        foreign = in_words(origins(resolve(cell, "")))
        try:
            return self._cost(kind, cell)
        except Refused as error:  # what only training tells
            return Cost(refused=str(error))
        except Diverged:  # the grid will record it; it costs next to nothing
            return Cost()
        except BaseException as error:  # too large for this machine, or a plug-in's: the others go on
            if isinstance(error, (KeyboardInterrupt, Terminated)):
                raise
            words = told(error).splitlines()[0] + _EMPTY.get(type(error), "") * (not error.args)
            return Cost(failed=words + (f" [{foreign}]" if foreign else ""))

    def _cost(self, kind: tuple[Any, ...], cell: Cell) -> Cost:
        network = self._network(cell)
        work = self._work(cell, network.built.experiment)
        seconds = self._rounds.get(kind)
        if seconds is None and self.timed < MOST_TIMED and ROUNDS * work <= self._left:
            self._left -= ROUNDS * work
            self.timed += 1
            seconds = self._rounds[shape_of(cell)] = self._timed(cell)
        if seconds is None:
            seconds = self._rounds.get(shape_of(cell), work * network.pace)
        built, e = network.built, network.built.experiment
        users = cell.clients if e.norm.private and not built.tests else 1  # each with a model of its own
        share = len(cell.adversarial) / cell.clients
        looks = len(e.train) * cell.domain_share * cell.validation * (share * passes(cell.train_evasion) + 1 - share)
        memory = message_bytes(cell, e) + 700 * 2**20  # beside the libraries themselves
        return Cost(seconds, network.pace * network.forward, len(built.test) * users, memory, looks)

    def _network(self, cell: Cell) -> _Network:
        key = _network_of(cell)
        if key not in self._networks:
            built = build(cell, root=self._options.root, device=self._options.first_device)
            like = (cell.dataset, cell.domains, cell.model, cell.dtype)
            if like not in self._paces:
                self._paces[like] = _pace(built.experiment)
            self._networks[key] = _Network(built, *self._paces[like])
        return self._networks[key]

    def _work(self, cell: Cell, like: Experiment) -> float:
        """Multiply-accumulates of a round of a cell whose data and network are those of ``like``."""
        m, samples = cell.methods, _samples(cell, like)
        key = (*_network_of(cell), cell.objective, cell.at, cell.train_evasion)
        if key not in self._works:
            small = replace(
                like, settings=replace(cell.settings, batch=2), objective=m.objective, evasion=m.train_evasion,
                adversarial=cell.adversarial,
            )  # fmt: skip
            self._works[key] = macs_per_epoch(small)["mean"] * cell.clients / sum(len(part) for part in like.parts)
        steps = m.algorithm.steps(max(1, int(samples)), cell.batch) * (2 if "again" in m.algorithm.asks else 1)
        each, plan = self._works[key], m.norm.statistics_pass
        looked = 0.0 if plan is None else each / 3 * min(samples, plan.samples or samples)
        return cell.participants * (steps * (cell.batch * each + STEP_WORK) + looked)

    def _timed(self, cell: Cell) -> float:
        """Seconds of a round."""
        e = build(cell, root=self._options.root, device=self._options.first_device).experiment
        clock, times = time.perf_counter(), []
        for record in train(e, initial_state(e)):
            times.append(time.perf_counter() - clock)
            if record.round == min(ROUNDS, cell.end):
                break
            clock = time.perf_counter()
        return min(times)


def _samples(cell: Cell, like: Experiment) -> float:
    """Training samples of a client in the mean."""
    return len(like.train) * cell.domain_share * (1 - cell.validation) / cell.owners


def _pace(e: Experiment) -> tuple[float, float]:
    """Seconds per multiply-accumulate of a network's forward and backward, and those of one image's forward."""
    e.model.eval()
    counter = ProductCounter()
    with counter:
        _pass(e, 1)
    each = max(1.0, counter.macs)
    images = max(1, min(len(e.train), 64, int(BATCH_WORK / each)))
    clock = time.perf_counter()
    _pass(e, images)
    seconds = time.perf_counter() - clock
    e.model.zero_grad(set_to_none=True)
    return seconds / (images * each + STEP_WORK), each / 3


def _pass(e: Experiment, images: int) -> None:
    index = torch.arange(images, device=e.device)
    x = e.train.pixels(index, dtype=next(e.model.parameters()).dtype)
    nn.functional.cross_entropy(e.model(x), e.train.labels(index)).backward()  # type: ignore[no-untyped-call]
    if e.device.type == "cuda":  # which works on while this process goes on
        torch.cuda.synchronize(e.device)


def passes(evasion: str) -> int:
    """Forward-sized passes of an evasion attack per image: a step is one forward and about two of backward."""
    built = method("train_evasion", evasion)
    steps = 3 * int(getattr(built, "steps", 1)) * int(getattr(built, "restarts", 1))
    return int(getattr(built, "passes", steps)) + 1
