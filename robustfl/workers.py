"""Worker processes: each does one piece of work at a time, and a death takes nothing with it but that piece.

They are fresh interpreters, whatever this one has in use (threads, a GPU, a notebook), and end with the work. What they
print goes to standard error, so that it never mixes with what a command prints.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

W = TypeVar("W")
R = TypeVar("R")
_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
# A round takes and frees the same megabytes again and again. The GNU C library hands large blocks back to the system,
# which clears every page anew: up to a quarter of a round. Workers keep them; other systems know no such settings.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_ERROR = 2  # the file of standard error
_LOOK = 2.0  # seconds


_START, _LAST_WORDS = 60.0, 0.3
"""Seconds for a worker to import what it needs, and to write where it is before it is killed."""


@dataclass(frozen=True)
class _Busy:
    """A worker that has its work and no result yet, as it says when it begins."""


@dataclass(frozen=True)
class Died:
    """The end of a worker in the middle of its work: an exit status, negative for a signal; killed where ``late``."""

    status: int
    late: bool = False

    @property
    def words(self) -> str:
        """The way it ended, in words."""
        if self.status >= 0:
            return f"exit status {self.status}"
        with suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"


def spread(
    function: Callable[[W], R], work: Sequence[W], workers: int, *, threads: int, deadline: float | None = None
) -> Iterator[tuple[W, R | Died]]:
    """``function`` on every piece of ``work``, in ``workers`` processes, as they are done; ``function`` never raises.

    A worker that has no result ``deadline`` seconds after it began is killed, also one that a signal stopped; before,
    ``SIGUSR1`` lets Python's ``faulthandler`` write where it is.
    ``function`` and its arguments travel as pickles; a module that this process found by ``sys.path`` is found there.
    """
    left, busy, idle = deque(work), dict[Connection, tuple[_Worker, W]](), list[_Worker]()
    try:
        while left or busy:
            while left and len(busy) < workers:
                worker = idle.pop() if idle else _Worker(threads)
                busy[worker.connection] = (worker, left[0])
                worker.take(function, left.popleft())
            ready = set(wait(list(busy), timeout=_LOOK))
            for connection, (worker, item) in list(busy.items()):
                result = worker.look(connection in ready, deadline)
                if isinstance(result, _Busy):
                    continue
                del busy[connection]
                if isinstance(result, Died):
                    worker.end()
                else:
                    idle.append(worker)
                yield item, result
    finally:
        for worker in [*idle, *(w for w, _ in busy.values())]:
            worker.end()


class _Worker:
    """One process, and this side of the pipe to it."""

    def __init__(self, threads: int) -> None:
        self.connection, theirs = Pipe()
        handle = theirs.fileno()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from robustfl.workers import serve; "
            f"serve({handle}, {os.getpid()})"
        )
        try:
            with _no_interrupts():
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=_MEMORY | os.environ | dict.fromkeys(_THREADS, str(threads)),
                    stdin=subprocess.DEVNULL, stdout=_ERROR, pass_fds=[handle],
                )  # fmt: skip
        finally:
            theirs.close()

    def take(self, function: Callable[[Any], Any], item: Any) -> None:
        """Begin with ``item``. A worker that is gone says so by its result."""
        self._began = time.monotonic() + _START
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((function, item))

    def look(self, ready: bool, deadline: float | None) -> Any:
        """The result of ``function``, ``_Busy`` as long as there is none, or the way the process ended."""
        if ready or self.gone:
            found = self.result()
            if isinstance(found, _Busy):
                self._began = time.monotonic()
            return found
        if deadline is None or time.monotonic() - self._began <= deadline:
            return _Busy()
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(_LAST_WORDS)
        return Died(self.end(), late=True)

    @property
    def gone(self) -> bool:
        """True if the process has ended; one that it started may still hold the pipe open."""
        return self._process.poll() is not None

    def result(self) -> Any:
        """The result of ``function``, or the way the process ended."""
        if self.connection.poll():
            with suppress(EOFError, OSError, pickle.UnpicklingError):
                return self.connection.recv()
        with suppress(subprocess.TimeoutExpired):
            return Died(self._process.wait(_LOOK))
        return Died(self.end())

    def end(self) -> int:
        """End the process, whatever it is at: threads of plug-ins may never leave. Returns its exit status."""
        self._process.kill()
        self.connection.close()
        return self._process.wait()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes that start within never see an interrupt: this one decides what it means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a worker -----------------------------------------------------------------------------------------------------


def serve(handle: int, parent: int) -> None:
    """Work until the other side of the pipe is closed; this process ends here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.set_inheritable(handle, False)
    connection = Connection(handle)
    try:
        while True:
            try:
                function, item = connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            connection.send(_Busy())
            result = function(item)
            sys.stdout.flush()
            connection.send(result)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _end_with(parent: int) -> None:
    """Let this worker die when the process it works for is gone, killed without a chance to say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
