"""The missing cells of a grid as tasks of worker processes or a cluster, and how each gets its record in the store."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from robustfl.errors import LONGEST, RobustflError, StoreError, UsageError, told
from robustfl.origins import origins
from robustfl.outside import cut
from robustfl.records import CellResult
from robustfl.registry import load_file, load_plugins, unpack
from robustfl.reports import tracking
from robustfl.reports.store import Store
from robustfl.scratch import sweep

from .checkpoint import commit, discard
from .execution import Execution, OnCellRound
from .expand import key_of, labels
from .memory import REMEDY
from .run import Task
from .worker_pool import Died, Progress, run_in_workers

_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Finished:
    """One cell that just ended, as progress displays need it."""

    key: str
    labels: dict[str, Any]
    status: str
    reason: str | None
    sa: float | None
    ra: float | None
    seconds: float
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    found: bool = False
    """Another grid stored it; it did not run here."""

    @classmethod
    def of(cls, record: CellResult, *, found: bool = False) -> Finished:
        """The end of a cell with this record."""
        metrics, timing = record.metrics, record.timing
        return cls(
            record.key, record.labels, record.status, record.reason, metrics.sa if metrics else None,
            metrics.ra_worst if metrics else None, timing.seconds, tuple(timing.notes),
            tuple(record.certificates.get("warnings") or ()), found,
        )  # fmt: skip


@dataclass(frozen=True)
class CellTask(Task):
    """A missing cell of a grid, with what a worker needs for it."""

    execution: Execution
    store: Store
    foreign: frozenset[str]
    """The origins of its plug-ins. Without any, a worker loads none of the following."""
    plugins: tuple[str, ...] = ()
    sent: bytes = b""

    @property
    def plug_ins(self) -> str:
        """The plug-ins of the cell, as messages name them."""
        return "".join(f" [{n}: {origin}]" for n, origin in origins(self.resolved).items())

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
            detail = "".join(traceback.format_exception(error))
            return self.failed(f"{cut(told(error), LONGEST)}{self.plug_ins}\n{detail}")

    def execute(self, device: str, send: Callable[[Progress], None]) -> CellResult | Finished:
        """Run it, unless another grid has stored it; its rounds are sent about once a second."""
        for plugin in self.plugins if self.foreign else ():
            load_file(plugin)
        if key_of(self.resolved) != self.key:
            raise UsageError(f"a plug-in changed after the grid began{self.plug_ins}; start the grid again")
        if (stored := self._stored()) is not None:
            return stored
        sent = time.monotonic()

        def on_round(round: int, rounds: int, loss: float) -> None:
            nonlocal sent
            del loss
            if time.monotonic() - sent >= _PROGRESS_SECONDS:
                sent = time.monotonic()
                send(Progress(round, rounds))

        followed = tracking.Followed(self.execution.track, self.store.folder, self.key, labels(self.cell))
        record = self.run(replace(self.execution, device=device, on_round=on_round, on_point=followed.evaluated))
        followed.finished(record)
        return record

    def end(self, outcome: CellResult | Finished | Died | RobustflError) -> Finished:
        """Store its record, of a death that of a failure. Raises an error of the grid."""
        if isinstance(outcome, RobustflError):
            raise outcome
        if isinstance(outcome, Died):
            outcome = self._stored() or self.failed(self._reason(outcome))
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
        if died.late:
            limit = f"time limit of {self.execution.cell_minutes:g} min (--cell-minutes) reached"
            return f"{limit}{self.plug_ins}; what was checkpointed is kept\n{died.trace}".rstrip()
        remedy = f" (out of memory?); {REMEDY}" if died.status == -signal.SIGKILL else ""
        return f"the worker process died twice on this cell{remedy}: {died}{self.plug_ins}\n{died.trace}".rstrip()


def run_tasks(
    tasks: Sequence[CellTask], devices: Sequence[str], execution: Execution, on_round: OnCellRound
) -> Iterator[Finished]:
    """Run the cells in one worker process per device, or without devices in this very process."""

    def send(key: str, progress: Progress) -> None:
        on_round(key, *progress)

    sweep()
    if not devices:
        for task in tasks:
            yield task.end(task.execute(execution.device, partial(send, task.key)))
    elif tasks:
        deadline = None if execution.cell_minutes is None else 60 * execution.cell_minutes
        for task, message in run_in_workers(tasks, devices, threads=execution.threads, deadline=deadline):
            if isinstance(message, Progress):
                send(task.key, message)
            else:
                yield task.end(message)


def run_on_cluster(tasks: Sequence[CellTask], execution: Execution) -> Iterator[Finished]:
    """Run the cells on a cluster; every record is committed here, as soon as it arrives."""
    from .cluster import RemoteCell, connected, contents, methods_of, run_remotely, software

    if not tasks:
        return
    mine, plugins, by_key = software(), contents(tasks[0].plugins), {task.key: task for task in tasks}
    with connected(str(execution.cluster)) as client:
        cells = [
            RemoteCell(t.key, t.cell, t.scenario, t.fingerprint, plugins, mine, methods_of(t.resolved),
                       execution.of_a_cell, t.sent)
            for t in tasks
        ]  # fmt: skip
        for record in run_remotely(client, cells, execution.on_note):
            yield by_key[record.key].end(record)
