"""Order statistics over the rows of a stack without sorting, and means and standard deviations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from robustfl.errors import UsageError
from robustfl.kernels import fused, native
from robustfl.kernels.blocks import at_once, blocks, width
from robustfl.kernels.networks import MIN, Network, Program, network, program


@dataclass(frozen=True)
class RankMean:
    """Per column, the mean of the values with ``low ≤ rank < high`` among ``n`` finite ones (a ``ColumnRule``)."""

    n: int
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= self.n:
            raise UsageError(f"rank mean: 0 ≤ low={self.low} < high={self.high} ≤ n={self.n} does not hold")

    @property
    def program(self) -> Program:
        """The instructions of the torch path."""
        return program(self.n, self.low, self.high)

    @property
    def network(self) -> Network:
        """The comparators of the C path; those of the torch path."""
        return network(self.n, self.low, self.high)

    @property
    def scratch_rows(self) -> int:
        return self.program.buffers

    def whole(self, X: Tensor) -> bool:
        return at_once(X) or native.ready(X)

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        if at_once(rows):
            if not fused.rank_mean(rows, self.low, self.high, out):
                torch.mean(rows.sort(dim=0).values[self.low : self.high], dim=0, out=out)
                out.add_(0.0)  # as in ``run``
        elif native.ready(rows):
            native.rank_mean(rows, self.network, out)
        else:
            start = perf_counter()
            run(self.program, rows, out, scratch)
            native.charge(perf_counter() - start)


def tame_rank_mean(X: Tensor, rule: RankMean) -> Tensor | None:
    """``rule`` on every column of ``X [n d]``, by C code that looks at every entry in the same sweep.

    ``None`` without C, or if an entry is not finite or so large that its row may be longer than 1e150.
    """
    if at_once(X) or not native.ready(X):
        return None
    out = torch.empty(X.shape[1], dtype=X.dtype)
    return out if native.rank_mean(X, rule.network, out) else None


def run(plan: Program, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
    """The torch path of ``RankMean``: whole rows through elementwise minima and maxima, into reused buffers."""
    registers = [*rows.unbind(0), *scratch.unbind(0)]
    minimum, maximum = torch.minimum, torch.maximum
    for kind, a, b, target in plan.instructions:
        (minimum if kind == MIN else maximum)(registers[a], registers[b], out=registers[target])
    first, *others = (registers[k] for k in plan.kept)
    if others:
        torch.add(first, others[0], out=out)
        for row in others[1:]:
            out.add_(row)
        out.div_(len(plan.kept))
    else:
        out.copy_(first)
    # -0 becomes +0: which of two equal zeros a comparator moves is nobody's business.
    out.add_(0.0)


def trimmed_mean_rule(n: int, f: int) -> RankMean:
    """The rule that drops the ``f`` lowest and the ``f`` highest of ``n`` values."""
    return RankMean(n, f, n - f)


def median_rule(n: int) -> RankMean:
    """The rule that takes the middle value, or the mean of the two middle ones."""
    return RankMean(n, (n - 1) // 2, n // 2 + 1)


def mean_and_std(X: Tensor, ddof: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation ``[d]`` of every column of ``X [n d]``, in two passes over each block.

    The divisor of the variance is ``n - ddof``; where that is not positive the deviation is NaN, as in torch.

    >>> mean_and_std(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    (tensor([2., 5.]), tensor([1.4142, 0.0000]))
    """
    n, d = X.shape
    X = X.detach()
    mean, std = X.new_empty(d), X.new_empty(d)
    divisor = n - ddof if n > ddof else math.nan
    if at_once(X):
        mean = (X - X[0]).mean(0).add_(X[0])
        return mean, (X - mean).square_().sum(0).div_(divisor).sqrt_()
    if native.ready(X):
        native.mean_and_variance(X, divisor, mean, std)
        return mean, std.sqrt_()
    began = perf_counter()
    step = width(n + 3, d, X)
    scratch = X.new_empty((2, step))
    for block in blocks(d, step):
        w = block.stop - block.start
        _mean_and_variance(X[:, block], mean[block], std[block], scratch[:, :w], divisor)
    native.charge(perf_counter() - began)
    return mean, std.sqrt_()


def _mean_and_variance(rows: Tensor, mean: Tensor, variance: Tensor, scratch: Tensor, divisor: float) -> None:
    """One block. The mean is taken of the differences to the first row, so equal rows have deviation exactly 0."""
    difference, total = scratch.unbind(0)
    first, *others = rows.unbind(0)
    mean.zero_()
    for row in others:
        torch.sub(row, first, out=difference)
        mean.add_(difference)
    mean.div_(len(others) + 1).add_(first)
    total.zero_()
    for row in (first, *others):
        torch.sub(row, mean, out=difference)
        total.add_(difference.mul_(difference))
    torch.div(total, divisor, out=variance)
