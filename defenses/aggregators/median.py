"""The coordinate-wise median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import WeightedMedian
from ..rows import MajorityRule, Mixed


@register("median", version=1)
@dataclass(frozen=True)
class Median(MajorityRule):
    """Per coordinate, the middle value; of an even number of rows the mean of the middle two.

        F(X)_k = median(x_1k, …, x_nk)

    It ignores how coordinates belong together, so on heterogeneous clients it is biased even without attackers.

    Args: ``weighted`` (False) takes the weighted median for sample weights, if there are any: the middle between the
    least value that holds half of the weight with those below it and the greatest that does with those above it.

    >>> import torch, robustfl
    >>> robustfl.defense("median")(torch.tensor([[0.0], [1.0], [4.0], [90.0]]), f=1)
    tensor([2.5000])

    Reference: Option I of Algorithm 1 of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@yin2018byzantine"
    cost: ClassVar[str] = "O(n log² n) comparisons per entry"
    by_columns: ClassVar[bool] = True

    weighted: bool = param(False, doc="weigh values by the clients' samples")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        if self.weighted and context.weights is not None:
            return Aggregated(rows.columns(WeightedMedian(context.weights.cpu())))
        return Aggregated(rows.median())
