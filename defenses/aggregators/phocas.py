"""Phocas: the mean around the trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..columns import NearestMean
from ..rows import MajorityRule, Mixed


@register("phocas", version=2)
@dataclass(frozen=True)
class Phocas(MajorityRule):
    """Per coordinate, the mean of the ``n - f`` values nearest to the trimmed mean.

        F(X)_k = 1/(n-f) Σ_{i ∈ N_k} x_ik,   N_k = the n-f rows with least |x_ik - trimmed-mean_k|

    Like the trimmed mean it is shifted by attackers within the honest spread.

    >>> import torch, robustfl
    >>> robustfl.defense("phocas")(torch.tensor([[0.0], [1.0], [5.0], [6.0], [90.0]]), f=1)
    tensor([3.])

    Reference: the rule Phocas of the paper below, with ``b = f``. Notes: ties go to the lowest index; distances
    that are equal but for rounding tie.
    """

    paper: ClassVar[str] = "@xie2018phocas"
    cost: ClassVar[str] = "O(nd log² n): sorted columns, then the nearest values"
    by_columns: ClassVar[bool] = True

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        n = rows.count
        return Aggregated(rows.columns(NearestMean(n, f, n - f, n - f)))
