"""Worker processes for tasks: the death of one costs its own task alone, and the caller learns which task that was.

``concurrent.futures`` and loky lose every task in flight with one dead worker and do not say which task it had, and
``multiprocessing``'s forkserver imports the caller's main script. Workers here are forks of a supervisor, a fresh
interpreter that has imported robustfl: one starts in milliseconds, whatever the caller's process has in use (threads, a
GPU, a notebook). What they print goes to standard error, so that it never mixes with what a command prints.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol, TypeVar

from robustfl.errors import RobustflError

_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
# A round takes and frees the same megabytes again and again. The GNU C library hands large blocks back to the system,
# which clears every page anew: up to a quarter of a round. Workers keep them; other systems know no such settings.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_STDERR = 2
_POLL_SECONDS, _TRACE_SECONDS = 0.5, 0.3


class Progress(NamedTuple):
    """A message from a task that is still running."""

    round: int
    rounds: int


@dataclass(frozen=True)
class Died:
    """The end of a worker during its task: exit status, negative for a signal, and the trace ``faulthandler`` wrote."""

    status: int
    late: bool = False
    trace: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.status >= 0:
            return f"exit status {self.status}"
        with suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"


class PoolTask(Protocol):
    """A task that a worker calls with its device. It pickles, and its call never raises."""

    @property
    def foreign(self) -> frozenset[str]:
        """The plug-ins it loads; a worker runs only tasks with the same ones."""

    def __call__(self, device: str, send: Callable[[Progress], None]) -> Any: ...


T = TypeVar("T", bound=PoolTask)


def run_in_workers(
    tasks: Sequence[T], devices: Sequence[str], *, threads: int = 1, deadline: float | None = None
) -> Iterator[tuple[T, Any]]:
    """Yield tasks as they end, each with its result or ``Died``, and before that with every ``Progress`` it sends.

    There is one worker per device. A task whose worker dies is tried once more, after the others and alone. A worker
    that has no result ``deadline`` seconds after its task began is killed, also a stopped one, and the task not tried
    again; ``SIGUSR1`` lets ``faulthandler`` write the trace before. Raises ``RobustflError`` if workers cannot start.
    """
    ours, theirs = Pipe()
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import supervise; supervise({theirs.fileno()})"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the caller alone is interrupted
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-c", code], env=_MEMORY | os.environ | dict.fromkeys(_THREADS, str(threads)),
            stdin=subprocess.DEVNULL, stdout=_STDERR, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    left = len(tasks)
    try:
        ours.send((tasks, devices, deadline))
        while left:
            index, message = ours.recv()
            left -= not isinstance(message, Progress)
            yield tasks[index], message
    except (EOFError, ConnectionError):
        raise RobustflError(f"worker processes ended ({Died(supervisor.wait())}); see their output above") from None
    finally:
        ours.close()
        supervisor.terminate()  # for one that has not begun; later it ends with the pipe
        supervisor.wait()


# --- in the supervisor -----------------------------------------------------------------------------------------------


def supervise(handle: int) -> None:
    """Run the tasks that come through the pipe in workers, and send their messages, until the caller closes it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the caller gets it, too, and closes the pipe
    caller, died = Connection(handle), dict[int, Any]()
    with suppress(EOFError, ConnectionError):
        tasks, devices, deadline = caller.recv()
        for index, message in _messages(caller, dict(enumerate(tasks)), devices, deadline):
            if isinstance(message, Died) and not message.late:
                died[index] = tasks[index]
            else:
                caller.send((index, message))
        for answer in _messages(caller, died, devices[:1], deadline):
            caller.send(answer)


def _messages(
    caller: Connection, tasks: Mapping[int, PoolTask], devices: Sequence[str], deadline: float | None
) -> Iterator[tuple[int, Any]]:
    """What workers send, with the number of its task. Raises ``EOFError`` when the caller is gone."""
    waiting, running, workers = deque(tasks), dict[_Worker, int](), [_Worker(caller, device) for device in devices]
    try:
        while waiting or running:
            for worker in workers:
                if waiting and worker not in running:
                    running[worker] = waiting.popleft()
                    worker.start(tasks[running[worker]])
            ready = wait([caller, *(worker.connection for worker in running)], timeout=_POLL_SECONDS)
            if caller in ready:
                raise EOFError
            for worker, index in list(running.items()):
                message = worker.message(worker.connection in ready, deadline)
                if message is not None:
                    yield index, message
                    if not isinstance(message, Progress):
                        del running[worker]
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """The worker of one device: a process that runs a task at a time, another one after a death or other plug-ins."""

    connection: Connection

    def __init__(self, caller: Connection, device: str) -> None:
        self._caller, self._device, self._foreign = caller, device, frozenset[str]()
        self._process: Any = None

    def start(self, task: PoolTask) -> None:
        """Begin the task. A process that is gone is noticed later."""
        if self._process is None or self._foreign != task.foreign:
            self.end()
            self.connection, theirs = Pipe()
            self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process ends
            given = (self._caller, theirs, self._trace.fileno(), os.getpid())
            self._process, self._foreign = get_context("fork").Process(target=_serve, args=given), task.foreign
            self._process.start()
            theirs.close()
        self._began = time.monotonic()
        with suppress(ConnectionError):
            self.connection.send((task, self._device))

    def message(self, ready: bool, deadline: float | None) -> Any:
        """What the process sent, how it died, or None."""
        if ready or self._process.exitcode is not None:  # one that it started may hold the pipe open
            if self.connection.poll():
                with suppress(EOFError, OSError, pickle.UnpicklingError):
                    return self.connection.recv()
            self._process.join(_POLL_SECONDS)
            return self._death()
        if deadline is None or time.monotonic() - self._began <= deadline:
            return None
        os.kill(self._process.pid, signal.SIGUSR1)
        time.sleep(_TRACE_SECONDS)
        return self._death(late=True)

    def _death(self, *, late: bool = False) -> Died:
        self._process.kill()
        self._process.join()
        self._trace.seek(0)
        trace = self._trace.read().decode(errors="replace").partition("\nExtension modules:")[0]
        died = Died(self._process.exitcode, late, trace)
        self.end()
        return died

    def end(self) -> None:
        """Kill the process, whatever it is at: threads of plug-ins may never leave."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._trace.close()
            self.connection.close()
            self._process = None


def _serve(caller: Connection, connection: Connection, trace: int, supervisor: int) -> None:
    """Run the tasks that come through the pipe, until somebody ends this worker."""
    caller.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(supervisor,), daemon=True).start()
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    try:
        while True:
            task, device = connection.recv()
            result = task(device, connection.send)
            sys.stdout.flush()
            connection.send(result)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _end_with(supervisor: int) -> None:
    """End this worker when the supervisor is gone, killed without a chance to say so."""
    while os.getppid() == supervisor:
        time.sleep(1)
    os._exit(1)
