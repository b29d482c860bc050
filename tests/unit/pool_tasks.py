"""Tasks of a worker pool, in a module that takes no time to import."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.scenarios.worker_pool import Progress


@dataclass(frozen=True)
class PoolTask:
    """A function with its argument, and the plug-ins that it pretends to load."""

    function: Callable[[int], Any]
    x: int
    foreign: frozenset[str] = frozenset()

    def __call__(self, device: str, send: Callable[[Progress], None]) -> tuple[str, int, Any]:
        """The device, the process and the result, after a report of progress."""
        send(Progress(self.x, 9))
        return device, os.getpid(), self.function(self.x)


def half(x: int) -> int:
    """Half of ``x``; the end of the worker where that is 3.5."""
    if x == 7:
        os._exit(x)
    return x // 2


def stopping(x: int) -> None:
    """A process that does nothing until it is continued."""
    os.kill(os.getpid(), signal.SIGSTOP)


def spinning(x: int) -> None:
    """Work without an end."""
    while True:
        time.sleep(0.01)


def forking(x: int) -> None:
    """The end, with a child left behind."""
    if os.fork() == 0:
        signal.alarm(60)
        signal.pause()
    os._exit(x)


def killing_the_supervisor(x: int) -> None:
    """The end of the process that workers are forks of."""
    os.kill(os.getppid(), signal.SIGKILL)


def threads(x: int) -> tuple[str, int]:
    """The number of threads as libraries read it at their start, and that of threads of this process's parent."""
    return os.environ["OMP_NUM_THREADS"], len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


def page_faults(megabytes: int) -> int:
    """The pages that the system finds while so large a tensor is made and let go of twenty times, after a first one."""
    import torch

    torch.ones(megabytes * 2**18)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(megabytes * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def peaks(megabytes: int) -> tuple[int, int]:
    """The peaks of memory of two cells, a large and a small one."""
    import torch

    from robustfl.scenarios.memory import peak_bytes, reset_peak

    found = []
    for size in (megabytes, 1):
        reset_peak(torch.device("cpu"))
        torch.ones(size * 2**18)
        found.append(peak_bytes(torch.device("cpu")))
    return found[0], found[1]
