"""Multi-metrics."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import cosine_distances
from ..reference import least, lengths
from ..rows import Mixed, MixedRule
from ..ties import smallest

_LAST_BITS = 16.0
"""How many last bits of a row a sum of its distances may be off by."""
_COLUMNS = 65_536
_NO_SPREAD = 1e-15
"""What float64 makes of no variance, of features whose largest value is one."""


@register("multi-metrics", version=2)
@dataclass(frozen=True)
class MultiMetrics(MixedRule):
    """The mean of the rows that three distances together, each as its spread weighs it, find nearest to all others.

        F(X) = mean of the ⌊p n⌋ rows of least t_iᵀ Σ⁻¹ t_i,   Σ = covariance of t_1 … t_n

        t_i = Σ_j (‖x_i - x_j‖₁, |‖x_i‖ - ‖x_j‖|, (1 - cos(x_i, x_j))²)

    Long vectors are far from each other in every single distance; in which of them an attack shows depends on the
    attack. Made against backdoors. ``p`` is a share of the clients and no bound on attackers: few rows make a noisy
    mean, many let attackers in, and several of these that send the same are near to each other.

    Args: ``p`` in (0, 1], the share of rows that are averaged (0.3).

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0], [1.1, 0.1], [0.9, 0.1], [1.0, -0.1], [1.0, 0.1], [-4.0, 3.0]])
    >>> robustfl.defense("multi-metrics(p=0.5)")(X, f=1).round(decimals=2)
    tensor([0.9700, 0.0700])

    Reference: the algorithm of the paper below, in the form of the authors' code: distances between clients, where the
    paper measures each from the server's model. Notes: rows are updates, where that code compares models, and count
    alike, where it weighs them by samples. Directions in which the three spread no more than the rows' last bits do
    are left out of Σ⁻¹; scores that are equal but for rounding go to the lowest index.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@huang2023multi"
    cost: ClassVar[str] = "n²d absolute differences, n²d for the inner products, one sum"
    on_host: ClassVar[str] = "selects rows by scores"

    p: float = param(0.3, gt=0, le=1, doc="share of the rows that are averaged")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del f, context
        length, cosines = lengths(X), torch.cosine_similarity(X[:, None], X[None], dim=2)
        apart = torch.cdist(X, X, p=1.0), (length[:, None] - length[None]).abs(), (1 - cosines).square()
        t = torch.stack([distance.sum(1) for distance in apart], dim=1)
        scores = (t @ torch.linalg.inv(torch.cov(t.T)) * t).sum(1)
        return X[least(scores, floor(self.p * len(X) + 1e-9))].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f, context
        scores, slack = whitened(_distances(rows), rows.stack.last_bits)
        kept = smallest(scores, floor(self.p * rows.count + 1e-9), slack)
        facts = {"kept": kept.tolist(), "scores": scores.tolist()}
        return Aggregated(rows.combine(rows.mean_of(kept)), facts=facts)

    def min_clients(self, f: int) -> int:
        return max(2 * f + 1, ceil(1 / self.p - 1e-9))


def whitened(features: Tensor, bits: float) -> tuple[Tensor, Tensor]:
    """``t_iᵀ Σ⁻¹ t_i`` for ``features [n k]``, and how far each may be off where ``bits`` is their relative rounding.

    Σ⁻¹ is a pseudo-inverse where features spread no more than rounding alone makes them.
    """
    # The score does not depend on the features' units; their largest values make spreads comparable.
    scaled = features / features.abs().amax(0).clamp(min=1e-300)
    if len(scaled) < 2:
        return scaled.new_zeros(len(scaled)), scaled.new_zeros(len(scaled))
    off = _LAST_BITS * bits
    values, vectors = torch.linalg.eigh(torch.cov(scaled.T))
    along = scaled @ vectors
    none = max(_NO_SPREAD, off**2)
    inverse = torch.where(values > none, 1 / values.clamp(min=none), 0.0)
    scores: Tensor = (along.square() * inverse).sum(1)
    return scores, off * (scores + 2 * (along.abs() * inverse).sum(1))


def _distances(rows: Mixed) -> Tensor:
    """``t_1 … t_n [n 3]``, in float64; what rounding makes of no distance is none."""
    X, bits, (length, slack) = rows.materialise(), rows.stack.last_bits, rows.exact_norms()
    size = X.abs().sum(1, dtype=torch.float64).cpu()
    manhattan = torch.zeros((len(X), len(X)), dtype=torch.float64)
    for part in torch.split(X, _COLUMNS, 1):  # in float64: in float32 entries of 3e38 have infinite distances
        manhattan += torch.cdist(part.double(), part.double(), p=1.0).cpu()
    shorter = (length[:, None] - length[None, :]).abs()
    turned, off = cosine_distances(rows)
    differ = manhattan > bits * (size[:, None] + size[None, :])
    told = (
        manhattan * differ,
        shorter * (differ & (shorter > slack[:, None] + slack[None, :])),
        (turned * (turned > off)).square(),
    )
    return torch.stack([distance.sum(1) for distance in told], dim=1)
