"""FLARE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import MajorityRule, Mixed
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
        del f
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
        del f
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
