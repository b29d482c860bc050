"""Commands run in a child process, so that one whose process is ended by somebody else's code still says so.

``os._exit(0)`` or a segmentation fault in a plug-in would otherwise be silence, with an exit code of 0 or a signal's.
The child is forked before anything is imported, which takes a few milliseconds, and shares terminal and output.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from robustfl.cli.printing import say, take_output
from robustfl.running import Page, shared
from robustfl.workers import Died

_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL, signal.SIGSYS}
_TOGETHER = 0.5  # seconds within which two interrupts are one, sent to both processes
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG

_told: list[int] = []


def supervised() -> None:
    """Return in a child process; this one waits for it, passes signals on, and ends as the child does.

    Nothing happens where a debugger or profiler looks at this very process, where the system tells no senders of
    signals, and where it allows no further process.
    """
    if sys.gettrace() or sys.getprofile() or not hasattr(signal, "sigwaitinfo"):
        return
    page, (ours, theirs), parent = shared(), os.pipe(), os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    if child:
        os.close(theirs)
        _leave_as(_waited(child), _said(ours), page)
    os.close(ours)
    _told.append(theirs)
    _die_with(parent)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupt())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def farewell(code: int) -> None:
    """Tell the process that waits for this one that it ends by itself, with this exit code."""
    for pipe in _told:
        with suppress(OSError):
            os.write(pipe, bytes([code % 256]))


class _Interrupt:
    """The usual answer to an interrupt, given once where a process group and the waiting process both pass it on."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > _TOGETHER:
            signal.default_int_handler(number, frame)


def _die_with(parent: int) -> None:
    """Let this process end when the one that waits for it is killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _waited(child: int) -> int:
    """The status with which the child ended, as an exit code or minus a signal. Signals of others are passed on.

    Those of a terminal are not: it sends them to both processes.
    """
    while True:
        came = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if came.si_signo != signal.SIGCHLD:
            if came.si_code <= 0:  # a process sent it
                os.kill(child, came.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _said(pipe: int) -> int | None:
    """The exit code that the child took leave with, or ``None`` if it did not."""
    os.set_blocking(pipe, False)  # a process that the child left behind may hold the other end open
    try:
        told = os.read(pipe, 1)
    except BlockingIOError:
        return None
    return told[0] if told else None


def _leave_as(status: int, told: int | None, page: Page) -> NoReturn:
    """End this process as the child ended, with a word about an end that it did not choose."""
    if told is not None:
        os._exit(told)
    if status < 0 and -status not in _CRASHES:
        signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
    take_output()
    found = page.read()
    how = Died(status).words + (" (out of memory?)" if status == -signal.SIGKILL else "")
    if found.importing:
        say(f"Error: {found.whose} could not be imported: it ended the process, {how}", err=True)
        os._exit(2)
    at_hand = f"; plug-ins in use: {found.plug_ins}" if found.plug_ins else ""
    whose = f"{found.whose} ended the process" if found.whose else f"the process ended unexpectedly{at_hand}"
    say(f"Error: {whose}: {how}", err=True)
    os._exit(1)
