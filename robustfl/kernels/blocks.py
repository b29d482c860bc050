"""Walking a tall stack ``[n d]`` in blocks of columns that stay in cache.

A stack of clients' messages is read from memory once; everything a kernel does in between happens on one block with
buffers that are made once per call. Fresh temporaries of the size of the stack would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

# torch splits an elementwise operation over threads only above 32,768 entries; twice that feeds two threads.
WIDTH = 65_536
# Above this many bytes a block of all rows falls out of the last-level cache of a small machine, ...
_CACHE = 8 << 20
# ... and above this many the product of a block with a small matrix runs at two thirds of its speed.
_NEAR = 2 << 20


def at_once(X: Tensor) -> bool:
    """True if ``X`` is worked on as a whole: on an accelerator, and where ``torch.compile`` looks on.

    There blocks and loops over rows only add launches, and C code is not to be had.
    """
    return X.device.type != "cpu" or torch.compiler.is_compiling()


def width(n: int, d: int, like: Tensor, *, itemsize: int | None = None) -> int:
    """Columns of ``n`` rows in a block; all ``d`` where rows are worked on ``at_once``."""
    if at_once(like):
        return max(d, 1)
    fitting = _CACHE // max(1, n * (itemsize or like.element_size()))
    return max(1, min(d, WIDTH, max(8_192, fitting // 4_096 * 4_096)))


def blocks(d: int, step: int) -> Iterator[slice]:
    """Consecutive column slices of at most ``step`` that cover ``d`` columns."""
    for start in range(0, d, step):
        yield slice(start, min(start + step, d))


class ColumnRule(Protocol):
    """A rule that treats every column alike: ``[n w] -> [w]``."""

    @property
    def scratch_rows(self) -> int:
        """The number of buffers of one block's width that ``reduce`` needs."""

    def whole(self, X: Tensor) -> bool:
        """True if ``reduce`` should be given all columns of ``X`` at once, and needs no scratch for that."""

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Write the result for ``rows [n w]`` to ``out [w]``; ``scratch [scratch_rows w]`` may be overwritten."""


def over_columns(X: Tensor, rule: ColumnRule, *, mixing: Tensor | None = None) -> Tensor:
    """``rule`` on every column of ``X [n d]``, or of ``mixing [m n] @ X`` without ever holding the mixed stack."""
    n, d = X.shape
    out = torch.empty(d, dtype=X.dtype, device=X.device)
    coefficients = None if mixing is None else mixing.to(dtype=X.dtype, device=X.device)
    if at_once(X) or (coefficients is None and rule.whole(X)):
        rows = X if coefficients is None else coefficients @ X
        rule.reduce(rows, out, X.new_empty((0 if rule.whole(X) else rule.scratch_rows, d)))
        return out
    m = n if coefficients is None else len(coefficients)
    step = width(m + rule.scratch_rows, d, X)
    if coefficients is not None:
        step = min(step, max(4_096, _NEAR // (n * X.element_size()) // 4_096 * 4_096))
    scratch, mixed = X.new_empty((rule.scratch_rows, step)), X.new_empty((0 if coefficients is None else m, step))
    for block in blocks(d, step):
        rows, w = X[:, block], block.stop - block.start
        if coefficients is not None:
            rows = torch.mm(coefficients, rows, out=mixed if w == step else X.new_empty((m, w)))
        rule.reduce(rows, out[block], scratch[:, :w])
    return out
