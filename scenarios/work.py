"""The cells of a grid as worker processes run them: each is committed where it ran, whatever ends the worker."""

from __future__ import annotations

import faulthandler
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from robustfl.errors import LONGEST, RobustflError, StoreError, Terminated, UsageError, told
from robustfl.origins import origins
from robustfl.outside import cut
from robustfl.records import CellResult
from robustfl.registry import Entry, load_file, load_plugins, pack, unpack
from robustfl.reports import tracking
from robustfl.reports.store import RERUN, Store
from robustfl.scratch import scratch, sweep
from robustfl.workers import Died, spread

from . import round_files
from .checkpoint import discard
from .execution import Execution
from .expand import key_of, labels
from .memory import REMEDY
from .round_files import OnRoundOf
from .run import Task
from .slots import claim


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
    """Somebody else stored it; it did not run here."""


class Places(NamedTuple):
    """Where workers find the slots of GPUs."""

    folder: str
    gpus: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class Work(Task):
    """A missing cell of a grid, with what a worker needs for it."""

    plugins: tuple[str, ...]
    execution: Execution
    folder: Path
    traces: str = ""
    places: Places | None = None
    guests: tuple[Entry, ...] = ()
    sent: bytes = b""

    @property
    def trace(self) -> Path:
        """A file that is there once a worker took the cell; in it, where it was when it hung or crashed."""
        return Path(self.traces) / self.key

    @property
    def plug_ins(self) -> str:
        """The plug-ins of the cell, as messages name them."""
        return "".join(f" [{n}: {origin}]" for n, origin in origins(self.resolved).items())


def run_all(work: Sequence[Work], workers: int, on_round: OnRoundOf | None) -> Iterator[Finished]:
    """Run all of ``work``; a cell whose worker dies is tried once more alone, then recorded as failed."""
    sweep()
    if workers == 0:
        for item in work:
            yield _execute(item, on_round)
        return
    sent = pack(work[0].guests if work else ())
    with scratch("traces") as traces, round_files.watched(str(traces), on_round):
        left = [replace(item, traces=str(traces), guests=(), sent=sent) for item in work]
        for together, some in ((True, workers), (False, 1)):
            execution, again = work[0].execution if work else Execution(), list[Work]()
            deadline = None if execution.cell_minutes is None else 60 * execution.cell_minutes
            for item, outcome in spread(_in_worker, left, some, threads=execution.threads, deadline=deadline):
                if isinstance(outcome, RobustflError):
                    raise outcome
                if not isinstance(outcome, Died):
                    yield outcome
                elif (settled := _settled(item, outcome)) is not None:
                    yield settled
                elif together:
                    again.append(item)
                else:
                    yield _crashed(item, outcome)
            left = again


def _stored(item: Work) -> Finished | None:
    """The end of a cell that somebody has stored since: another grid, or a worker that died before it could say so."""
    store = Store(item.folder)
    if not store.done([item.key]):
        return None
    discard(item.folder, item.key)
    return _finished(store.read(item.key))


def _settled(item: Work, end: Died) -> Finished | None:
    """The end of a cell whose worker died, if there is no need to try it again."""
    if (stored := _stored(item)) is not None:
        return stored
    if not end.late:
        return None
    trace = item.trace.read_text(encoding="utf-8", errors="replace") if item.trace.is_file() else ""
    limit = f"time limit of {item.execution.cell_minutes:g} min (--cell-minutes) reached"
    return _failed(item, f"{limit}{item.plug_ins}; what was checkpointed is kept\n{trace}".rstrip())


def _crashed(item: Work, end: Died) -> Finished:
    """The record of a cell that took its worker with it twice. Raises where workers do not even start."""
    if not item.trace.is_file():
        raise RobustflError(f"worker processes end before they begin ({end.words}); what they said is above")
    remedy = f" (out of memory?); {REMEDY}" if -end.status == signal.SIGKILL else ""
    trace = item.trace.read_text(encoding="utf-8", errors="replace").partition("\nExtension modules:")[0]
    reason = f"the worker process died twice on this cell{remedy}: {end.words}{item.plug_ins}\n{trace}"
    return _failed(item, reason.rstrip())


def run_on_cluster(work: Sequence[Work], execution: Execution) -> Iterator[Finished]:
    """Run all of ``work`` on a cluster; every record is committed here, as soon as it arrives."""
    from .cluster import RemoteCell, connected, contents, methods_of, run_remotely, software

    if not work:
        return
    mine, plugins = software(), contents(work[0].plugins)
    sent = pack(work[0].guests)
    with connected(str(execution.cluster)) as client:
        cells = [
            RemoteCell(i.key, i.cell, i.scenario, i.fingerprint, plugins, mine, methods_of(i.resolved),
                       execution.of_a_cell, sent)
            for i in work
        ]  # fmt: skip
        for record in run_remotely(client, cells, execution.on_note):
            Store(work[0].folder).commit(record)
            yield _finished(record)


def _failed(item: Work, reason: str) -> Finished:
    record = item.failed(reason)
    Store(item.folder).commit(record)
    return _finished(record)


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM ends the process in order, with its workers, as an interrupt does; exit status 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)  # a second one would cut short what the first one set off
        raise Terminated(number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _in_worker(item: Work) -> Finished | StoreError | UsageError:
    """Run and commit one cell, whatever its methods do short of ending the process.

    Errors that concern the whole grid come back as values: they must reach the parent.
    """
    item.trace.write_text("", encoding="utf-8")
    with open(item.trace, "a", encoding="utf-8") as trace:
        faulthandler.enable(trace, all_threads=False)
        faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
        try:
            load_plugins()
            unpack(item.sent)
            return _execute(item)
        except (StoreError, UsageError) as error:
            return error
        except BaseException as error:  # a method's own exit or interrupt: nobody else's reaches a worker
            detail = "".join(traceback.format_exception(error))
            return _failed(item, f"{cut(told(error), LONGEST)}{item.plug_ins}\n{detail}")
        finally:
            faulthandler.disable()
            faulthandler.unregister(signal.SIGUSR1)


def _execute(item: Work, on_round: OnRoundOf | None = None) -> Finished:
    """Run and commit one cell; in a worker its rounds are told through a file."""
    for plugin in item.plugins:
        load_file(plugin)
    if key_of(item.resolved) != item.key:
        raise UsageError(f"a plug-in changed after the grid began{item.plug_ins}; start the grid again")
    if (stored := _stored(item)) is not None:
        return replace(stored, found=True)
    followed = tracking.Followed(item.execution.track, item.folder, item.key, labels(item.cell))
    execution = replace(
        item.execution,
        device=claim(*item.places) if item.places else item.execution.device,
        on_round=round_files.teller(item.key, item.traces, on_round),
        on_point=followed.evaluated,
    )
    record = item.run(execution)
    Store(item.folder).commit(record)
    if record.status not in RERUN:
        discard(item.folder, item.key)
    followed.finished(record)
    return _finished(record)


def _finished(record: CellResult) -> Finished:
    metrics = record.metrics
    return Finished(
        key=record.key,
        labels=record.labels,
        status=record.status,
        reason=record.reason,
        sa=metrics.sa if metrics else None,
        ra=metrics.ra_worst if metrics else None,
        seconds=record.timing.seconds,
        notes=tuple(record.timing.notes),
        warnings=tuple(record.certificates.get("warnings") or ()),
    )
