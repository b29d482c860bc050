"""Means of order statistics on a GPU: a sorting network as one kernel, each column in the registers of a thread.

To sort the columns of 50 rows takes an H100 as long as 60 reads of them, the network as long as one. Triton, which
comes with torch's builds for GPUs, compiles it once on a machine, in 2 seconds for 50 rows and 28 for a hundred; that
is why stacks that are soon sorted are sorted. Which way one goes depends on its form alone, so that runs repeat.
``ROBUSTFL_NATIVE=never`` lets all be sorted.
"""

from __future__ import annotations

import linecache
import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from robustfl.kernels.networks import Network, network

LEAST = 1 << 22  # entries; to sort fewer takes less than half a millisecond
_PER_SQUARE = 100  # entries per squared number of comparators: to compile takes as long as to sort so many 3,000 times
_MOST = {torch.float32: 128, torch.float64: 64}  # rows that fit into registers
_BLOCK = 128
_FAILED: set[Network] = set()
_HEAD = """
import triton
import triton.language as tl


@triton.jit
def kernel(X, out, d, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < d
"""


def rank_mean(rows: Tensor, low: int, high: int, out: Tensor) -> bool:
    """Write per column the mean of the ranks ``low ≤ rank < high`` of ``rows [n d]`` to ``out [d]``; false: sort."""
    if torch.compiler.is_compiling() or not _suits(rows):
        return False
    plan = network(len(rows), low, high)
    if rows.numel() < _PER_SQUARE * len(plan.comparators) ** 2 or plan in _FAILED:
        return False
    try:
        _launch(plan, rows, out)
    except Exception:  # no compiler for the launcher, a chip that Triton does not know: from now on they are sorted
        _FAILED.add(plan)
    return plan not in _FAILED


def _suits(rows: Tensor) -> bool:
    if rows.device.type != "cuda" or rows.numel() < LEAST or len(rows) > _MOST.get(rows.dtype, 0):
        return False
    return rows.stride(1) == 1 and os.environ.get("ROBUSTFL_NATIVE") != "never" and find_spec("triton") is not None


def _launch(plan: Network, rows: Tensor, out: Tensor) -> None:
    d = rows.shape[1]
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        _kernel(plan)[(-(-d // _BLOCK),)](rows, out, d, rows.stride(0), BLOCK=_BLOCK, num_warps=4)


@cache
def _kernel(plan: Network) -> Any:
    text, name = source(plan), f"<rank mean {plan.n} {plan.kept[0]} {plan.kept[-1]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # where Triton looks for a function's text
    made: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, name, "exec"), made)
    return made["kernel"]


def source(plan: Network) -> str:
    """The kernel's text: a load per row, a minimum and a maximum per comparator, the sum of the kept wires."""
    lines = [f"v{i} = tl.load(X + {i} * stride + at, mask=inside, other=0.0)" for i in range(plan.n)]
    for i, j, smaller, larger in plan.comparators:
        if smaller and larger:
            lines.append(f"v{i}, v{j} = tl.minimum(v{i}, v{j}), tl.maximum(v{i}, v{j})")
        else:
            lines.append(f"v{i if smaller else j} = tl.{'minimum' if smaller else 'maximum'}(v{i}, v{j})")
    total = " + ".join(f"v{k}" for k in plan.kept)
    # -0 becomes +0: which of two equal zeros a comparator moves is nobody's business.
    lines.append(f"tl.store(out + at, ({total}) * {1 / len(plan.kept)!r} + 0.0, mask=inside)")
    return _HEAD + "".join(f"    {line}\n" for line in lines)
