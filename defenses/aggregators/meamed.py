"""The mean around the median (SPEC §4.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..columns import NearestMean
from ..rows import Mixed, MixedRule


@register("meamed", version=2)
@dataclass(frozen=True)
class MeaMed(MixedRule):
    """Per coordinate, the mean of the ``n - f`` values nearest to the median.

        F(X)_k = 1/(n-f) Σ_{i ∈ N_k} x_ik,   N_k = the n-f rows with least |x_ik - median_k|, ties to the lowest index

    It keeps one-sided attackers that stay close to the median, so they shift it as they shift a trimmed mean.

    >>> import torch, robustfl
    >>> robustfl.defense("meamed")(torch.tensor([[0.0], [1.0], [5.0], [6.0], [90.0]]), f=1)
    tensor([3.])

    Reference: the mean around the median of the paper below.
    """

    paper: ClassVar[str] = "Xie, Koyejo, Gupta, Generalized Byzantine-tolerant SGD, 2018, arXiv:1802.10116"
    spec: ClassVar[str] = "§4.9"
    cost: ClassVar[str] = "O(nd log² n): sorted columns, then the nearest values"

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        n = rows.count
        return Aggregated(rows.columns(NearestMean(n, (n - 1) // 2, n // 2 + 1, n - f)))

    def min_clients(self, f: int) -> int:
        return 2 * f + 1
