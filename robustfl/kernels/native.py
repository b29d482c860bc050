"""The two kernels that gain most, in C: from the wheel or compiled on the spot, used only when it pays.

The C code does the same floating-point operations in the same order as the torch code beside it, so results are the
same bit for bit and nothing depends on whether it is there. A wheel may hold it (``setup.py``), ready from the first
call; else it is compiled (a fraction of a second) once the torch code has cost a process more time than that.
``ROBUSTFL_NATIVE=never`` or ``always`` overrules.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from robustfl.kernels.compiling import HERE, compiled, prebuilt
from robustfl.kernels.networks import Network
from robustfl.tempdirs import scratch

# Compiling takes 0.2 to 0.5 s. Waiting until the slow code has cost twice that bounds the regret in both directions.
BREAK_EVEN_SECONDS = 1.0
# Under this many entries per thread a thread costs more than it brings.
_ENTRIES_PER_THREAD = 1 << 16
# Entries up to this size (finite, and in a row no longer than 1e150 in any dimension there is) need no second look.
_TAME = {torch.float32: torch.finfo(torch.float32).max, torch.float64: 1e140}
_NO_MEMORY, _WILD = 1, 2
_FOLDER = Path(__file__).parent
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


class _Account:
    """Seconds the torch code has cost this process; only decides when to compile, never what is computed."""

    def __init__(self) -> None:
        self.seconds = 0.0


_account = _Account()


def charge(seconds: float) -> None:
    """Add the cost of one call that the C code would have made cheaper."""
    _account.seconds += seconds


def ready(X: Tensor) -> bool:
    """True if the C code can and should take the stack ``X [n d]``."""
    if X.device.type != "cpu" or X.dtype not in _SUFFIX or (X.shape[1] > 1 and X.stride(1) != 1):
        return False
    wish = os.environ.get("ROBUSTFL_NATIVE", "auto")
    if wish == "never" or (wish != "always" and _account.seconds < BREAK_EVEN_SECONDS and shipped() is None):
        return False
    return library() is not None


@cache
def shipped() -> ctypes.CDLL | None:
    """The kernels that came with the wheel."""
    found = prebuilt(_FOLDER, torch.backends.cpu.get_cpu_capability())
    if found is not None:
        with suppress(OSError):  # of another platform: a folder copied by hand
            return ctypes.CDLL(str(found))
    return None


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels: those of the wheel, or compiled now; ``None`` without either."""
    if (loaded := shipped()) is not None:
        return loaded
    with scratch("kernels") as folder:
        target = folder / "kernels.so"
        for options in HERE:
            if compiled(_FOLDER / "native.c", target, options):
                with suppress(OSError):
                    return ctypes.CDLL(str(target))  # a loaded library stays mapped after its file is gone
    return None


def _threads(X: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), X.numel() // _ENTRIES_PER_THREAD))


def _ints(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * max(1, len(values)))(*values)


@cache
def _tables(plan: Network) -> tuple[ctypes.Array[ctypes.c_int], ctypes.Array[ctypes.c_int]]:
    flat = [v for i, j, low, high in plan.comparators for v in (i, j, int(low) + 2 * int(high))]
    return _ints(flat), _ints(plan.kept)


@cache
def _pool() -> ctypes.c_void_p:
    """The entry of the OpenMP runtime torch runs on, if it is a common one: its idle threads then do the work."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p)
    except (AttributeError, OSError):
        return ctypes.c_void_p(None)


def _call(function: str, X: Tensor, *rest: object) -> int:
    loaded = library()
    if loaded is None:
        raise RuntimeError("the C kernels are not there; ask ready() first")
    n, d = X.shape
    size = ctypes.c_ssize_t
    outcome: int = getattr(loaded, f"{function}_{_SUFFIX[X.dtype]}")(
        ctypes.c_void_p(X.data_ptr()), size(X.stride(0)), n, size(d), _threads(X), *rest, _pool()
    )
    if outcome & _NO_MEMORY:
        raise MemoryError(f"{function}: no memory for the work space of {n} rows")
    return outcome


def rank_mean(X: Tensor, plan: Network, out: Tensor) -> bool:
    """Write the mean of the kept ranks of every column of ``X [n d]`` to ``out [d]``.

    Returns whether all entries are tame: finite, and in float64 so small that no row is longer than 1e150.
    """
    table, kept = _tables(plan)
    place, bound = ctypes.c_void_p(out.data_ptr()), ctypes.c_double(_TAME[X.dtype])
    outcome = _call("rank_mean", X, table, len(plan.comparators), kept, len(plan.kept), place, bound)
    return not outcome & _WILD


def mean_and_variance(X: Tensor, divisor: float, mean: Tensor, variance: Tensor) -> None:
    """Write mean and variance of every column of ``X [n d]``."""
    outputs = (ctypes.c_void_p(mean.data_ptr()), ctypes.c_void_p(variance.data_ptr()))
    _call("mean_and_variance", X, ctypes.c_double(divisor), *outputs)
