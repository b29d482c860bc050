"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import WeightedTrim
from ..rows import MajorityRule, Mixed


@register("trimmed-mean", version=1)
@dataclass(frozen=True)
class TrimmedMean(MajorityRule):
    """Per coordinate, the mean without the ``f`` lowest and the ``f`` highest values.

        F(X)_k = 1/(n-2f) Σ_{i=f+1}^{n-f} x_(i)k,   x_(1)k ≤ … ≤ x_(n)k

    Attackers that stay within the honest spread (ALIE) are never trimmed and still shift it.

    Args: ``weighted`` (False) takes the mean of what is left with the sample weights of the rows, if there are any.
    What is trimmed is counted in rows either way; of equal values the one from the lower row counts as the lower.

    >>> import torch, robustfl
    >>> robustfl.defense("trimmed-mean")(torch.tensor([[0.0], [1.0], [4.0], [90.0]]), f=1)
    tensor([2.5000])

    Reference: Option II of Algorithm 1 of the paper below. Notes: the paper trims a fraction β; here ``f`` values.
    The weighted mean is ours.
    """

    paper: ClassVar[str] = "@yin2018byzantine"
    cost: ClassVar[str] = "O(n log² n) comparisons per entry"
    by_columns: ClassVar[bool] = True

    weighted: bool = param(False, doc="weigh the values left by the clients' samples")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        if self.weighted and context.weights is not None:
            return Aggregated(rows.columns(WeightedTrim(context.weights.cpu(), f)))
        return Aggregated(rows.trimmed_mean(f))
