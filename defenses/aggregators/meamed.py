"""The mean around the median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import NearestMean
from ..rows import MajorityRule, Mixed


@register("meamed", version=2)
@dataclass(frozen=True)
class MeaMed(MajorityRule):
    """Per coordinate, the mean of the ``n - f`` values nearest to the median.

        F(X)_k = 1/(n-f) Σ_{i ∈ N_k} x_ik,   N_k = the n-f rows with least |x_ik - median_k|, ties to the lowest index

    It keeps one-sided attackers that stay close to the median, so they shift it as they shift a trimmed mean.

    >>> import torch, robustfl
    >>> robustfl.defense("meamed")(torch.tensor([[0.0], [1.0], [5.0], [6.0], [90.0]]), f=1)
    tensor([3.])

    Args: ``center`` of an even number of values, ``"middle"`` (default): the mean of the middle two, as in ByzFL and
    NumPy; ``"lower"``: the lower of them, as ``torch.median`` has it.

    Reference: the mean around the median of the paper below, which does not say what the median of an even number is.
    Notes: distances that are equal but for rounding are ties.
    """

    paper: ClassVar[str] = "@xie2018generalized"
    cost: ClassVar[str] = "O(nd log² n): sorted columns, then the nearest values"
    by_columns: ClassVar[bool] = True

    center: Literal["middle", "lower"] = param(
        "middle", choices=("middle", "lower"), doc="the median of an even number of values"
    )

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        n = rows.count
        low = (n - 1) // 2
        return Aggregated(rows.columns(NearestMean(n, low, n // 2 + 1 if self.center == "middle" else low + 1, n - f)))
