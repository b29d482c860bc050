"""Bucketing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Context, Step
from robustfl.parameters import param
from robustfl.registry import register

from ..draws import generator_of, permutation


def grouped(order: Tensor, s: int) -> Tensor:
    """Coefficients ``[⌈n/s⌉ n]`` of the means of ``s`` consecutive rows in the given order; the last may have fewer."""
    n = len(order)
    buckets = -(-n // s)
    mixing = torch.zeros((buckets, n), dtype=torch.float64, device=order.device)
    mixing[torch.arange(n, device=order.device) // s, order] = 1.0
    return mixing / mixing.sum(dim=1, keepdim=True)


@register("bucketing", version=1)
@dataclass(frozen=True)
class Bucketing(Step):
    """Means of ``s`` rows at a time, in random order, take the place of the rows.

        y_j = 1/s Σ_{k=(j-1)s+1}^{js} x_{π(k)},   π a random permutation, the last bucket may be smaller

    It evens out honest clients that differ, but each attacker spoils a whole bucket, so ``f`` of ``⌈n/s⌉`` are bad.

    Args: ``s`` ≥ 1 rows in a bucket; ``None`` (default) for ``⌊n/2f⌋``, reduced until ``⌈n/s⌉ > 2f``, and 1 for f = 0.

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[1.0], [1.0], [1.0], [1.0], [1.0], [90.0]])
    >>> robustfl.defense("bucketing(s=2)+median")(X, f=1, generator=stream(0, "defense"))
    tensor([1.])

    Reference: Algorithm 1 of the paper below.
    """

    paper: ClassVar[str] = "@karimireddy2022byzantine"
    cost: ClassVar[str] = "nd"
    on_host: ClassVar[str] = "draws which rows share a bucket"
    lengths_only: ClassVar[bool] = True

    s: int | None = param(None, ge=1, doc="rows in a bucket; None means as many as f allows, at most n/2f")

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        n = gram.shape[0]
        return grouped(permutation(n, generator_of(context, "bucketing")), self.size(n, f))

    def min_clients(self, f: int) -> int:
        return 2 * f * (self.s or 1) + 1

    def rows_after(self, n: int, f: int) -> int:
        return -(-n // self.size(n, f))

    def size(self, n: int, f: int) -> int:
        """The number of rows in a bucket, of ``n``."""
        if self.s is not None:
            return self.s
        size = max(1, n // (2 * f)) if f else 1
        while size > 1 and -(-n // size) <= 2 * f:
            size -= 1
        return size
