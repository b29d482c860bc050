"""Rules made against backdoors: FLARE and multi-metrics."""

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
from ..rows import MajorityRule, Mixed, MixedRule
from ..ties import smallest

# Discrepancies that differ by less are equal.
_ROUNDING = 1e-9


@register("flare", version=1)
@dataclass(frozen=True)
class FLARE(MajorityRule):
    """Rows weigh by how many others find what their model makes of the server's images near to their own.

        F(X) = Σ S_i x_i,   S_i = exp(ct_i / τk) / Σ_j exp(ct_j / τk)

    ``ct_i`` counts the clients that have ``i`` among their ``k = ⌊n/2⌋`` nearest by the maximum mean discrepancy

        MMD²(R_i, R_j) = mean_{a≠b} κ(r_ia, r_ib) + mean_{a≠b} κ(r_ja, r_jb) - 2 mean_{a,b} κ(r_ia, r_jb)

    of the representations ``R_i`` before the last layer, ``κ(r, r') = exp(-‖r - r'‖² / 2σ²)``. Nobody's weight is zero
    and lengths are not looked at, so that a row that is long enough moves the result. It needs images on the server
    that look like the clients'; attackers that agree with each other, and honest clients with different data, weigh
    more and less than they should. Without the network, as for rows of one's own, a row represents itself, with
    ``κ(x, x) = 1`` in the place of a mean of nothing.

    Args: ``tau`` > 0, temperature of the softmax, in mean counts (1).

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [1.1, 0.0], [-9.0, 3.0]])
    >>> robustfl.defense("flare(tau=0.1)")(X, f=1).round(decimals=2)
    tensor([1., 0.])

    Reference: the trust scores of the paper below. Notes: ``σ²`` is the median, over pairs of clients, of the mean
    squared distance of their representations; counts are divided by their mean ``k``, as implementations do. The paper
    also trains the first model on the server's images.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@wang2022flare"
    cost: ClassVar[str] = "nb forwards on the server's b images, distances of nb representations, one sum"
    on_host: ClassVar[str] = "compares representations"
    sees_representations: ClassVar[bool] = True

    tau: float = param(1.0, gt=0, doc="temperature of the trust scores")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        R = _represented(X, context)
        n, b, _ = R.shape
        points = R.flatten(0, 1)
        squares = (points[:, None] - points[None]).square().sum(-1)
        kernel = (-squares / (2 * _bandwidth(squares.view(n, b, n, b).mean((1, 3))))).exp().view(n, b, n, b)
        same = torch.eye(b, dtype=torch.bool) if b > 1 else torch.zeros(1, 1, dtype=torch.bool)
        within = torch.stack([kernel[i, :, i][~same].mean() for i in range(n)])
        apart = within[:, None] + within[None] - 2 * kernel.mean((1, 3))
        nearest = apart.fill_diagonal_(torch.inf).argsort(dim=1, stable=True)[:, : n // 2]
        count = torch.bincount(nearest.flatten(), minlength=n) / max(1, n // 2)
        return (count / self.tau).softmax(0).to(X) @ X

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        apart = discrepancies(_represented(rows.materialise(), context))
        n = len(apart)
        nearest = smallest(apart.fill_diagonal_(torch.inf), n // 2, torch.full((n, n), _ROUNDING))
        count = torch.bincount(nearest.flatten(), minlength=n)
        trust = (count.double() / max(1, n // 2) / self.tau).softmax(0)
        return Aggregated(rows.combine(trust), facts={"trust": trust.tolist(), "count": count.tolist()})


def _represented(X: Tensor, context: Context) -> Tensor:
    """The representations ``[n b k]`` (float64, on the CPU) by the models of the rows ``X [n d]``."""
    made = X[:, None] if context.representations is None else context.representations(X)
    return made.double().cpu().nan_to_num(nan=0.0)  # a model that an attacker has blown up represents nothing


def _bandwidth(pairs: Tensor) -> Tensor:
    """``σ²``: the median over pairs of clients of their representations' mean squared distance; 1 if that is none."""
    upper = pairs[tuple(torch.triu_indices(len(pairs), len(pairs), offset=1))]
    middle = upper.quantile(0.5) if len(upper) else pairs.new_zeros(())
    return torch.where(middle > 0, middle, 1.0)


def discrepancies(R: Tensor) -> Tensor:
    """``MMD²`` ``[n n]`` between the samples ``R [n b k]``, unbiased, by Gaussian kernels."""
    n, b, _ = R.shape
    R = R - R.mean((0, 1))
    means, power = R.mean(1), R.square().sum(2).mean(1)
    variance = _bandwidth((power[:, None] + power[None] - 2 * means @ means.T).clamp(min=0))
    kernel = R.new_empty((n, n))
    for i in range(n):  # one client at a time: all distances at once would take (nb)² memory
        away = torch.cdist(R[i], R.flatten(0, 1), compute_mode="donot_use_mm_for_euclid_dist")
        kernel[i] = away.square_().div_(-2 * variance).exp_().view(b, n, b).mean((0, 2))
    own = kernel.diagonal()
    within = (own * b - 1) / (b - 1) if b > 1 else own
    made: Tensor = within[:, None] + within[None] - kernel - kernel.T
    return made


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
        length, cosines = lengths(X), torch.cosine_similarity(X[:, None], X[None], dim=2)
        apart = torch.cdist(X, X, p=1.0), (length[:, None] - length[None]).abs(), (1 - cosines).square()
        t = torch.stack([distance.sum(1) for distance in apart], dim=1)
        scores = (t @ torch.linalg.inv(torch.cov(t.T)) * t).sum(1)
        return X[least(scores, floor(self.p * len(X) + 1e-9))].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
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
    """``t_1 … t_n [n 3]``, in float64; those that rounding makes of equal rows are 0."""
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
