"""Memory of a cell: its peak, of the process on the CPU, of the allocator on a GPU; an estimate for GPUs; a remedy."""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from robustfl.engine import Experiment
from robustfl.errors import Refused, UsageError
from robustfl.evaluation.accuracy import activations

from .build import Built, build
from .cell import Cell

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


REMEDY = "run fewer cells at once (--jobs, --slots), or smaller ones (batch, clients, model)"


def exhausted(error: BaseException) -> bool:
    """Tell whether memory ran out, of the machine or of the device."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


_CONTEXT = 600 << 20  # what CUDA and its libraries take on a GPU for every process
_USABLE = 0.9  # of the free memory
_MOST = 16


def slots_on(gpus: Sequence[int], need: int) -> int:
    """The number of cells of ``need`` bytes that fit at once on every one of the GPUs, at least one and at most 16."""
    free = min(int(torch.cuda.mem_get_info(index)[0]) for index in gpus)
    return max(1, min(_MOST, int(free * _USABLE) // max(1, need)))


def memory_of(cells: Iterable[Cell], root: str | Path | None = None) -> int:
    """An estimate of what the largest of the cells takes on a GPU; those that cannot be built take nothing."""
    built, most = dict[tuple[object, ...], Built](), 0
    for cell in cells:
        kind = (cell.dataset, cell.domains, cell.model, cell.norm, cell.algorithm, cell.dtype)
        try:
            if kind not in built:
                built[kind] = build(cell, root=root)
        except Refused:
            continue
        most = max(most, _bytes(cell, built[kind]))
    return most


def message_bytes(cell: Cell, e: Experiment) -> int:
    """The bytes of 2.5 message stacks, which a round holds at once."""
    return int(2.5 * cell.participants * e.layout.d * next(e.model.parameters()).element_size())


def _bytes(cell: Cell, built: Built) -> int:
    """Message stacks, the images, and activations of all clients' batches with their gradients, also recorded."""
    e = built.experiment
    dtype = next(e.model.parameters()).dtype
    size = dtype.itemsize
    kept = cell.clients * e.layout.d * size if e.algorithm.remembers else 0
    images = e.train.x.numel() * e.train.x.element_size() + built.test.x.numel() * built.test.x.element_size()
    samples = cell.participants * cell.batch if "one_batch" in e.algorithm.asks else cell.batch
    image = built.test.pixels(torch.arange(1), dtype=dtype)
    return _CONTEXT + message_bytes(cell, e) + kept + images + 4 * samples * activations(e.model, image) * size
