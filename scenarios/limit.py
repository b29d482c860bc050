"""The time a cell may take, kept in a worker process of a grid.

Two clocks: an alarm that raises in Python code, and, for code that never comes back to Python, one that needs neither
Python nor its lock: it writes where the process hangs and ends it. The grid then records what was left behind.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from robustfl.contracts import Method
from robustfl.watch import names

GRACE_SECONDS = 5.0  # how much later the second clock rings


class OutOfTimeError(BaseException):
    """The cell's time is up. No ``Exception``: a method that catches everything must not go on."""


def reason(minutes: float, where: str) -> str:
    """Why the cell failed, in words."""
    return f"time limit of {minutes:g} min (--cell-minutes) reached{where}; what was checkpointed is kept"


@contextmanager
def limited(minutes: float | None, trace: Path) -> Iterator[None]:
    """Within, at most so many minutes; ``trace`` is where the second clock writes before it ends the process.

    Signals reach main threads only; in any other there is no limit.
    """
    if minutes is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    seconds = 60 * minutes

    def ring(number: int, frame: FrameType | None) -> None:
        del number
        raise OutOfTimeError(reason(minutes, _method(frame)))

    before = signal.signal(signal.SIGALRM, ring)
    with open(trace, "w", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=file)
        signal.setitimer(signal.ITIMER_REAL, seconds, GRACE_SECONDS / 4)  # again, should the first one be swallowed
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)


def _method(frame: FrameType | None) -> str:
    """Whose code was running: the innermost method on the stack."""
    while frame is not None:
        running = frame.f_locals.get("self")
        if isinstance(running, Method):
            return f" in {names([running])}"
        frame = frame.f_back
    return ""
