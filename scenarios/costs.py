"""Costs of cells from a bounded number of timed passes: rounds of the cheap ones, one batch per network for the rest.

Work is counted in multiply-accumulates. A network's batch, timed once, tells how many seconds so much work takes here;
what no round was timed of costs its work at that pace. Attacks and defenses count where a round was timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from robustfl.errors import Diverged, Refused, Terminated, told
from robustfl.evaluation import ProductCounter, macs_per_epoch
from robustfl.federation import Experiment, initial_state, train
from robustfl.origins import in_words, origins
from robustfl.torch_settings import standard_settings

from .build import Built, build
from .cell import Cell
from .execution import Execution
from .expand import resolve
from .methods import method

ROUNDS = 2  # of a cell that is timed; the first one warms up
MOST_TIMED = 16  # cells of which rounds are timed
WORK = 1e10  # multiply-accumulates of all timed rounds together: seconds on any machine
BATCH_WORK = 3e9  # of the batch that is timed of a network
STEP_WORK = 2e7  # what a step costs beside its images, in multiply-accumulates
_EMPTY: dict[type, str] = {MemoryError: ": this machine has not enough memory"}  # what errors without words mean


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

    def __init__(self, execution: Execution, rounds: Mapping[tuple[Any, ...], float]) -> None:
        self._execution, self._rounds = execution, dict(rounds)
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
            torch.set_num_threads(self._execution.threads)
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
        stack = cell.participants * e.layout.d * next(e.model.parameters()).element_size()
        share = len(cell.adversarial) / cell.clients
        looks = len(e.train) * cell.domain_share * cell.validation * (share * passes(cell.train_evasion) + 1 - share)
        memory = int(2.5 * stack) + 700 * 2**20  # the message stacks, beside the libraries themselves
        return Cost(seconds, network.pace * network.forward, len(built.test) * users, memory, looks)

    def _network(self, cell: Cell) -> _Network:
        key = _network_of(cell)
        if key not in self._networks:
            built = build(cell, root=self._execution.root, device=self._execution.first_device)
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
        e = build(cell, root=self._execution.root, device=self._execution.first_device).experiment
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
