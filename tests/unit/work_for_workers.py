"""Functions that end the worker that runs them, in a module that takes no time to import."""

from __future__ import annotations

import os
import signal


def half(x: int) -> int:
    """Half of ``x``, of 3 the end."""
    if x == 3:
        os._exit(7)
    return x // 2


def stopping(x: int) -> int:
    """``x``; of 0 a process that does nothing until it is continued."""
    if x == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return x


def forking(x: int) -> int:
    """``x``; of 0 the end, with a child left behind."""
    if x == 0:
        if os.fork() == 0:
            signal.alarm(60)
            signal.pause()
        os._exit(3)
    return x
