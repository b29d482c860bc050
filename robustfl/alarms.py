"""Limits of time for code that may never end.

Two clocks: an alarm that raises in Python code, and, for code that never comes back to Python, one that needs neither
Python nor its lock: it writes where the process hangs and ends it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO

GRACE_SECONDS = 5.0  # how much later the second clock rings
_STANDARD_ERROR = 2  # the file, whatever stands for it in Python


@contextmanager
def alarm(
    seconds: float, error: Callable[[FrameType | None], BaseException], trace: IO[str] | None = None
) -> Iterator[None]:
    """Within, raise ``error(frame)`` after so many seconds.

    The second clock writes to ``trace``, by default to standard error. Signals reach main threads only; in any other
    there is no limit. Inside another alarm that one goes on. A copy of the process that was forked within ends here:
    in it the second clock would be waited for without end.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, signal.SIG_IGN):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        del number
        raise error(frame)

    process = os.getpid()
    before = signal.signal(signal.SIGALRM, ring)
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=trace or _STANDARD_ERROR)
    signal.setitimer(signal.ITIMER_REAL, seconds, GRACE_SECONDS / 4)  # again, should the first one be swallowed
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
