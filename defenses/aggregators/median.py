"""The coordinate-wise median (SPEC §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..rows import Mixed, MixedRule


@register("median", version=1)
@dataclass(frozen=True)
class Median(MixedRule):
    """Per coordinate, the middle value; of an even number of rows the mean of the middle two.

        F(X)_k = median(x_1k, …, x_nk)

    It ignores how coordinates belong together, so on heterogeneous clients it is biased even without attackers.

    >>> import torch, robustfl
    >>> robustfl.defense("median")(torch.tensor([[0.0], [1.0], [4.0], [90.0]]), f=1)
    tensor([2.5000])

    Reference: Option I of Algorithm 1 of the paper below.
    """

    paper: ClassVar[str] = (
        "Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, "
        "ICML 2018, arXiv:1803.01498"
    )
    spec: ClassVar[str] = "§4.2"

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f, context
        return Aggregated(rows.median())

    def min_clients(self, f: int) -> int:
        return 2 * f + 1
