"""The covariance-bound agnostic filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..directions import leading
from ..rows import MajorityRule, Mixed

# Eigenvalues this close are equal, and the first is kept.
_EQUAL = 1e-9
_ROUNDED = 1e-9


@register("caf", version=2)
@dataclass(frozen=True)
class CovarianceFilter(MajorityRule):
    """Rows lose weight by how far they stick out along the direction of greatest spread; the calmest mean wins.

        c_i ← c_i (1 - τ_i / max τ),   τ_i = (u·(x_i - μ_c))²,   u = leading eigenvector of the c-weighted covariance

    until ``Σ c_i ≤ n - 2f``; the result is the ``μ_c`` of least leading eigenvalue met on the way. Attackers that add
    spread in no direction are not seen.

    Args: ``max_steps`` ≥ 1 (1000). A row far out that has no weight left still has the greatest ``τ``; the weights of
    the others then shrink by so little in a step that the filter would hardly ever end. After ``max_steps`` steps the
    maximum is taken over rows with weight, each step removes one of them, and the filter ends: the fact ``slow``.

    >>> import robustfl
    >>> robustfl.defense("caf")(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.0085])

    Reference: the rule CAF of the paper below. Notes: the exact eigenvector, from the n × n inner products, instead of
    power steps from a random start; where several directions spread equally far, the mean of their τ; of equal
    eigenvalues the first; for f = 0 and for identical rows the mean.
    """

    paper: ClassVar[str] = "@allouah2025towards"
    cost: ClassVar[str] = "n²d for the inner products; an eigenvalue problem n³ for each of at most max_steps + n steps"
    on_host: ClassVar[str] = "takes weight away until enough is gone"

    max_steps: int = param(1000, ge=1, doc="filter steps after which rows without weight no longer set the pace")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        n = rows.count
        products, slack = rows.products()[:-1, :-1].numpy(), rows.slack().numpy()
        c = np.ones(n)
        share, least, steps = c / n, float("inf"), 0
        while (left := c.sum()) > n - 2 * f + _ROUNDED:
            steps += 1
            weights = c / left
            value, excess, _ = leading(products, weights, slack)
            if value < least * (1 - _EQUAL):
                share, least = weights, value
            judged = excess if steps <= self.max_steps else excess[c > 0]
            worst = float(judged.max())
            # Rows equal but for rounding are left.
            if not worst > 0:
                break
            c = np.maximum(c * (1 - excess / worst), 0)
            c[c < _ROUNDED] = 0  # of rows that stand out as far as the worst but for rounding nothing is left
        slow = steps > self.max_steps
        return Aggregated(
            rows.combine(torch.from_numpy(share)), facts={"lambda": least, "iterations": steps, "slow": slow}
        )
