"""Means and standard deviations over the rows of a stack."""

from __future__ import annotations

import math
from time import perf_counter

import torch
from torch import Tensor

from robustfl.kernels import native
from robustfl.kernels.blocks import at_once, blocks, width


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
