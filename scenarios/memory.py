"""Memory of a cell: its peak, of the process on the CPU, of the allocator on a GPU; and what to do without enough."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the high-water mark of resident memory


def peak_bytes(device: torch.device) -> int:
    """The peak since ``reset_peak``; of the whole process's life where the mark cannot be reset."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


REMEDY = "run fewer cells at once (--jobs), or smaller ones (batch, clients, model)"


def exhausted(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of the device."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
