"""FoundationFL."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.kernels import RankMean
from robustfl.parameters import param
from robustfl.registry import register

from ..reference import lengths, middle, trimmed_mean
from ..rows import MajorityRule, Mixed
from ..ties import largest, smallest

_RULES = ("trimmed-mean", "median")
_COPIED = ("farthest", "nearest")


@register("foundationfl", version=1)
@dataclass(frozen=True)
class FoundationFL(MajorityRule):
    """Copies of the row farthest from the extremes join the rows before the trimmed mean or the median is taken.

        F(X) = R(x_1 … x_n, x_* … x_*),   * = argmax_i min(‖x_i - max X‖, ‖x_i - min X‖),   m copies of x_*

    ``max X`` and ``min X`` are the largest and the smallest value of every coordinate. The copies shall make the stack
    more alike. Everything hangs on the row that is copied: one attacker who sends huge entries of both signs is
    farther from both extremes than anybody else, and with his copies outlives the trimming.

    Args: ``rule`` R, ``trimmed-mean`` (default; it trims ``f`` of ``n + m`` values at either end) or ``median``;
    ``copied``, the row ``farthest`` from the extremes (default) or ``nearest`` to one of them; ``share`` > 0, how many
    copies: ``m = ⌊share · n⌋`` (0.5).

    >>> import torch, robustfl
    >>> X = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 2.0], [90.0, -9.0]])
    >>> robustfl.defense("foundationfl(rule=median)")(X, f=1)
    tensor([2., 2.])

    Reference: Algorithm 1 of the paper below. Notes: the paper contradicts itself. Its Equation 5 and Algorithm 1 copy
    the row with the highest score, which is the default here; its text calls high scores likely malicious, and its
    results under Gaussian noise are out of reach of Equation 5 (noise is copied: on iid digits 6.8 % SA), but not of
    the lowest score (``copied=nearest``: 94.1 %). Of rows that are equally far away, the lowest is copied.
    """

    paper: ClassVar[str] = "@fang2025foundationfl"
    cost: ClassVar[str] = "extremes, 2nd for the scores, then the rule on n + m rows"

    rule: str = param("trimmed-mean", choices=_RULES, doc="rule on rows and copies")
    copied: str = param(
        "farthest", choices=_COPIED, doc="the row that is copied, by its distance to the nearer extreme"
    )
    share: float = param(0.5, gt=0, lt=float("inf"), doc="copies per row received")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        near = torch.minimum(lengths(X - X.max(dim=0).values), lengths(X - X.min(dim=0).values))
        copied = X[near.argmax() if self.copied == "farthest" else near.argmin()]
        both = torch.cat([X, copied.expand(floor(self.share * len(X) + 1e-9), -1)])
        return middle(both) if self.rule == "median" else trimmed_mean(both, f)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        high, low = (rows.columns(RankMean(n, rank, rank + 1)) for rank in (n - 1, 0))
        scores = torch.minimum(rows.distances_to(high), rows.distances_to(low))
        slack = 2 * rows.stack.last_bits * scores
        chosen = (largest if self.copied == "farthest" else smallest)(scores, 1, slack)
        copies = floor(self.share * n + 1e-9)
        made = rows.chosen(torch.cat([torch.arange(n, device=chosen.device), chosen.repeat(copies)]))
        vector = made.median() if self.rule == "median" else made.trimmed_mean(f)
        return Aggregated(vector, facts={"copied": chosen[0], "copies": copies})
