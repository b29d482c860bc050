"""Divide and conquer."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..directions import leading
from ..draws import generator_of, subset
from ..rows import Mixed, MixedRule
from ..ties import largest


@register("dnc", version=2)
@dataclass(frozen=True)
class DivideAndConquer(MixedRule):
    """Rows that stick out along the direction of greatest spread of random coordinates are dropped, several times over.

        S = ∩_t {rows without the ⌊c f⌋ largest (u_t·(x_i - x̄))²},   u_t = top singular vector of b random coordinates

    The result is the mean of ``S``. Attackers that hide in low-variance directions are not seen.

    Args: ``c`` > 0 dropped rows per attacker (1); ``niters`` ≥ 1 rounds (5); ``b`` ≥ 1 coordinates, at most all (10⁴).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[0.0], [1.0], [2.0], [90.0]])
    >>> robustfl.defense("dnc")(X, f=1, generator=stream(0, "defense"))
    tensor([1.])

    Reference: Algorithm 2 of the paper below. Notes: if no row is left, the rows that were dropped least often.
    Projections that are equal but for rounding are dropped by index, the lowest first; where several directions spread
    equally far, their mean counts.
    """

    paper: ClassVar[str] = "@shejwalkar2021manipulating"
    cost: ClassVar[str] = "niters times b·n² + n³ on b sampled entries, one sum"
    on_host: ClassVar[str] = "draws coordinates and compares spreads"

    c: float = param(1.0, gt=0, doc="rows dropped per attacker and round")
    niters: int = param(5, ge=1, doc="rounds of dropping")
    b: int = param(10_000, ge=1, doc="random coordinates looked at in a round, at most all")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        d, drop = rows.stack.shape[1], self._drop(f)
        times = torch.zeros(rows.count, dtype=torch.int64)
        # Without rows to drop there is nothing to look for.
        for _ in range(self.niters if drop else 0):
            b = min(d, self.b)
            seen = rows if b == d else rows.at(subset(d, b, generator_of(context, "dnc")))
            times[_sticking_out(seen.products()[:-1, :-1], seen.slack(), drop)] += 1
        kept = (times == times.min()).nonzero().flatten()
        return Aggregated(rows.combine(rows.mean_of(kept)), facts={"kept": kept.tolist()})

    def min_clients(self, f: int) -> int:
        return self._drop(f) + 1

    def _drop(self, f: int) -> int:
        return floor(self.c * f)


def _sticking_out(products: Tensor, slack: Tensor, drop: int) -> Tensor:
    """The ``drop`` rows of largest squared projection on the top singular vector of the centred rows; see ``ties``."""
    n = len(products)
    _, share, off = leading(products.numpy(), np.full(n, 1 / n), slack.numpy())
    return largest(torch.from_numpy(share), drop, torch.from_numpy(off))
