"""The way cells run, in one value: where, with what at hand, and who hears of it. None of it is in a cell's key."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from robustfl.distributed import ALONE, Team
from robustfl.engine.personal import LIMIT
from robustfl.errors import UsageError
from robustfl.parameters import python_numbers
from robustfl.records import CurvePoint

from . import tracking

CHECKPOINT_MINUTES = 5.0
THREADS = 512  # of one cell; more than any machine gains from
_SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
WARNING = "warning: "
OnRound = Callable[[int, int, float], None]
"""Round, rounds, loss."""
OnCellRound = Callable[[str, int, int], None]
"""Key, round, rounds."""


def unheard(*told: object) -> None:
    """Nobody listens; unlike a lambda, this travels to other processes."""


def warned(note: str) -> None:
    """Make a Python warning, at the line that called robustfl, of a note that is one; others nobody hears."""
    words = note.removeprefix(WARNING)
    if words == note:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "robustfl":
        level, frame = level + 1, frame.f_back
    warnings.warn(words, UserWarning, stacklevel=level)


OF_A_GRID = frozenset({"jobs", "gpus", "slots", "cluster", "cell_minutes"})
"""Options that a single cell has no use for."""
_NUMBERS = ("threads", "state_memory", "checkpoint_minutes", "cell_minutes", "keep_model", "jobs", "gpus", "slots")


@dataclass(frozen=True)
class RunOptions:
    """Options that decide how cells run, nothing of what they measure. Raises ``UsageError`` for what cannot be.

    Of every cell: its ``device``, ``threads``, the ``root`` of the data; clients' state of more than ``state_memory``
    bytes lies in a file. With the folder of a ``store`` a cell keeps a checkpoint there every ``checkpoint_minutes``
    (0: none) and goes on from one that it finds, and with ``keep_model`` leaves its trained model there
    (``load_model``). A cell fails after ``cell_minutes``. ``track`` names trackers (``"tensorboard"``) that follow it.
    Of a ``team`` of processes that share a cell only the leading one evaluates; it keeps no checkpoints. ``on_round``
    is called after every round, ``on_point`` after every evaluation of one, ``on_note`` with what a user should know.

    Of a grid: ``jobs`` worker processes (default: one per core, or one on a GPU), with 0 cells run in this very
    process, where a debugger reaches them and a crash ends all; or cells are spread over ``gpus``, ``slots`` at a time
    on each (default: as many as their memory holds); or the workers of a ``cluster``, the address of a dask scheduler,
    run them (``scenarios/cluster.py``). Results do not depend on it.
    """

    device: str = "auto"
    threads: int = 1
    root: str | Path | None = None
    state_memory: int = LIMIT
    checkpoint_minutes: float = CHECKPOINT_MINUTES
    cell_minutes: float | None = None
    track: Sequence[str] = ()
    store: Path | None = None
    keep_model: bool = False
    team: Team = ALONE
    jobs: int | None = None
    gpus: Sequence[int] | None = None
    slots: int | None = None
    cluster: str | None = None
    on_round: OnRound = field(default=unheard, repr=False)
    on_point: Callable[[CurvePoint], None] = field(default=unheard, repr=False)
    on_note: Callable[[str], None] = field(default=unheard, repr=False)

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            object.__setattr__(self, name, python_numbers(getattr(self, name)))
        object.__setattr__(self, "track", tuple(self.track))
        object.__setattr__(self, "gpus", None if self.gpus is None else tuple(self.gpus))
        tracking.check(self.track)
        if not 0 <= self.checkpoint_minutes < math.inf:
            raise UsageError(f"checkpoint_minutes={self.checkpoint_minutes:g} must be a finite number; 0: never")
        if self.cell_minutes is not None and not 0 < self.cell_minutes < math.inf:
            raise UsageError(f"cell_minutes={self.cell_minutes:g} must be a finite number of minutes above 0")
        if self.cell_minutes is not None and self.jobs == 0:
            raise UsageError(f"cell_minutes={self.cell_minutes:g} needs worker processes; jobs=0 has none")
        check_threads(self.threads)
        self._check_workers()

    def _check_workers(self) -> None:
        """Refuse what contradicts itself about who runs the cells of a grid."""
        for count, given in (("jobs", self.jobs), ("slots", self.slots)):
            if given is not None and type(given) is not int:
                raise UsageError(f"{count}={given!r} must be a whole number")
        if self.jobs is not None and self.jobs < 0:
            raise UsageError(f"jobs={self.jobs} must be ≥ 1, or 0 for cells in this very process")
        if self.slots is not None and (self.gpus is None or self.slots < 1):
            raise UsageError(
                f"slots={self.slots} is how many cells share each of the gpus, at least 1; it goes with gpus"
            )
        if self.gpus is not None:
            self._refuse_beside("gpus", "jobs", "cluster", "device")
            check_gpus(self.gpus)
        if self.cluster is None:
            return
        self._refuse_beside("cluster", "jobs", "cell_minutes", "keep_model", "track")
        _check_address(self.cluster)

    def _refuse_beside(self, name: str, *others: str) -> None:
        """Refuse options that have no part in what another one decides."""
        for other in others:
            value = getattr(self, other)
            if value is not None and value is not False and value not in ((), "auto"):
                said = f"{other}={value!r} does not go with {name}={getattr(self, name)!r}"
                raise UsageError(f"{said}{_REASONS.get((name, other), '')}; leave one of them out")

    @property
    def workers(self) -> int:
        """The number of worker processes: one per core, or one on a GPU, unless the user says otherwise.

        Raises ``UsageError`` for a device that is not there.
        """
        if self.gpus is not None:
            return len(self.gpus) * (self.slots or 1)
        on_gpu = self.cluster is None and self.first_device.type == "cuda"
        return self.jobs if self.jobs is not None else 1 if on_gpu else max(1, cores() // self.threads)

    @property
    def first_device(self) -> torch.device:
        """Where the first cell runs, or the first process of a team."""
        return device_of(self.device if self.gpus is None else f"cuda:{self.gpus[0]}")

    @property
    def of_a_cell(self) -> RunOptions:
        """The options of a single cell, with nobody listening: as other processes get them."""
        return replace(
            self, jobs=None, gpus=None, slots=None, cluster=None,
            on_round=unheard, on_point=unheard, on_note=unheard,
        )  # fmt: skip


_REASONS = {
    ("gpus", "jobs"): "; with gpus, slots is the number",
    ("cluster", "jobs"): "; its workers decide how many cells run",
    ("cluster", "keep_model"): ": models do not travel from there",
}
"""What more there is to say of two options that do not go together."""


def device_of(name: str | torch.device) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:i`` as a device. Raises ``UsageError`` for one that is not there."""
    said = str(name)
    if said == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu(:0)?|cuda(:(0|[1-9][0-9]{0,3}))?", said):
        raise UsageError(f"device {said!r}: use auto, cpu, cuda or cuda:0")
    device, have = torch.device(said), torch.cuda.device_count()
    if device.type == "cuda" and int(said.partition(":")[2] or 0) >= have:  # torch itself wraps a large number
        raise UsageError(f"device {said!r}: this machine has {have} CUDA device(s); use cpu")
    return device


def check_gpus(gpus: Sequence[int]) -> None:
    """Raise ``UsageError`` for GPUs that are not there, or are named twice."""
    have = torch.cuda.device_count()
    known = ", ".join(map(str, range(have))) or "none"
    for index in gpus:
        if not 0 <= index < have:
            raise UsageError(f"gpus: there is no GPU {index}; this machine has {known} (see robustfl doctor)")
    if not gpus or len(set(gpus)) != len(gpus):
        raise UsageError(f"gpus={list(gpus)} must name each GPU once; this machine has {known}")


def check_threads(count: int) -> int:
    """``count``, if this machine can have so many threads. Raises ``UsageError``; torch would end the process."""
    most = max(THREADS, cores())
    if type(count) is not int or not 1 <= count <= most:
        raise UsageError(f"threads={count!r:.40} must be a whole number from 1 to {most}")
    return count


def _check_address(address: str) -> None:
    """Raise ``UsageError`` for what is no scheduler's address, or where dask is not installed."""
    scheme, colon, place = address.partition("://")
    if not colon or scheme not in _SCHEMES or not place.rpartition(":")[2].isdigit() or place.startswith(":"):
        raise UsageError(f"cluster {address!r} must be the address of a dask scheduler such as tcp://HOST:8786")
    if find_spec("distributed") is None:
        raise UsageError("a cluster needs dask.distributed: pip install 'robustfl[cluster]'")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
