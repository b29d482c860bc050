"""Memory of a cell: its peak, of the process on the CPU, of the allocator on a GPU; and what to do without enough."""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
import sys
from pathlib import Path

import torch

from robustfl.errors import UsageError

_STATUS = Path("/proc/self/status")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """A size such as ``500MB`` or ``4GiB`` in bytes. Raises ``UsageError``.

    >>> bytes_of("4GiB"), bytes_of("0")
    (4294967296, 0)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2].lower() not in _UNITS:
        raise UsageError(f"{text!r} is no size; write 500MB or 4GiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks, where the system can."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # or there is no allocator yet to ask
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(AttributeError, OSError):  # what earlier work left in the C library's hands
        ctypes.CDLL(None).malloc_trim(0)
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
    """Tell whether memory ran out, of the machine or of the device."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
