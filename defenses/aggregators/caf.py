"""The covariance-bound agnostic filter (SPEC §4.14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import Mixed, MixedRule


@register("caf", version=1)
@dataclass(frozen=True)
class CovarianceFilter(MixedRule):
    """Rows lose weight by how far they stick out along the direction of greatest spread; the calmest mean wins.

        c_i ← c_i (1 - τ_i / max τ),   τ_i = (u·(x_i - μ_c))²,   u = leading eigenvector of the c-weighted covariance

    until ``Σ c_i ≤ n - 2f``; the result is the ``μ_c`` of least leading eigenvalue met on the way. Attackers that add
    spread in no direction are not seen.

    Args: ``max_steps`` ≥ 1 (1000): rows far out that have no weight left can make progress slow.

    >>> import robustfl
    >>> robustfl.defense("caf")(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.0085])

    Reference: the rule CAF of the paper below. Notes: the exact eigenvector, from the n × n inner products, instead of
    power steps from a random start; for f = 0 and for identical rows the mean.
    """

    paper: ClassVar[str] = (
        "Allouah, Guerraoui, Stephan, Towards Trustworthy Federated Learning with Untrusted Participants, ICML 2025, "
        "arXiv:2505.01874"
    )
    spec: ClassVar[str] = "§4.14"
    cost: ClassVar[str] = "n²d for the inner products; an eigenvalue problem n³ for each of at most max_steps steps"

    max_steps: int = param(1000, ge=1, doc="largest number of filter steps")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        n = rows.count
        products = rows.products()[:-1, :-1]
        c = torch.ones(n, dtype=torch.float64)
        share, least, steps = c / n, float("inf"), 0
        while float(c.sum()) > n - 2 * f and steps < self.max_steps:
            steps += 1
            weights = c / c.sum()
            value, excess = _leading(products, weights)
            if value < least:
                share, least = weights, value
            worst = float(excess.max())
            # Of identical rows nothing but rounding is left.
            if not worst > 1e-30 * float(products.diagonal().max()):
                break
            c = c * (1 - excess / worst)
        return Aggregated(rows.combine(share), facts={"lambda": least, "iterations": steps})

    def min_clients(self, f: int) -> int:
        return 2 * f + 1


def _leading(products: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """The greatest eigenvalue of the covariance with ``weights [n]``, and ``τ [n]`` along its eigenvector."""
    mean = products @ weights
    about = products - mean[:, None] - mean[None, :] + weights @ mean
    root = weights.sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * about * root[None, :])
    value = max(float(values[-1]), 0.0)
    along = about @ (root * vectors[:, -1])
    return value, along.square() / value if value > 0 else torch.zeros_like(weights)
