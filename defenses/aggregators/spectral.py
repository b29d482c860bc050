"""Rules that leave out rows along the directions of largest variance: DnC and CAF."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..draws import generator_of, subset
from ..rows import MajorityRule, Mixed, MixedRule
from ..ties import largest

# Eigenvalues this close, relative to the greatest, count as equal: what parts them moves eigenvectors at random.
_EQUAL = 1e-9
_ROUNDED = 1e-9
_LARGE = 1e100
Array = NDArray[np.float64]


def leading(products: Array, weights: Array, slack: Array, *, judged: bool = True) -> tuple[float, Array, Array]:
    """``(λ, τ [n], slack of τ)`` for rows with inner products ``[n n]``, weights ``[n]`` and ``slack`` of distances.

    ``λ`` is the greatest eigenvalue of the weighted covariance and ``τ_i = (u·(x_i - μ))²`` along its unit eigenvector
    ``u``. An eigenvalue that several directions share, up to rounding, has no eigenvector of its own: ``τ`` is then the
    mean over them, which does not depend on the basis an eigenvalue problem happens to return. Rows that are equal but
    for rounding have ``τ = 0``. Its slack is 0 unless it is to be ``judged``. Arrays are NumPy's: filters ask thousands
    of times of few numbers, where torch's calls took three times as long (``caf``, 10 rows).
    """
    mean = products @ weights
    about = products - mean[:, None] - mean[None, :] + weights @ mean
    root = np.sqrt(weights)
    values, vectors = np.linalg.eigh(root[:, None] * about * root[None, :])
    value = max(float(values[-1]), 0.0)
    # A weighted variance along any direction is half the weighted mean square over pairs of rows.
    off = float(weights @ slack @ weights) / 2
    if value <= 2 * off:
        return value, np.zeros_like(weights), np.zeros_like(weights)
    equal = values >= value - 2 * off - _EQUAL * value
    # In units that keep squares of the longest rows finite.
    unit = value if value > _LARGE else 1.0
    along = about @ (root[:, None] * vectors[:, equal]) / unit
    shares = np.square(along) / np.maximum(values[equal] / unit, value / unit * _EQUAL)
    share = (shares[:, 0] if shares.shape[1] == 1 else np.mean(shares, axis=1)) * unit
    if not judged:
        return value, share, np.zeros_like(weights)
    below = values[~equal]
    gap = value - (float(below[-1]) if len(below) else 0.0)
    # To first order an eigenvector turns by error over gap, and so do the lengths along it.
    turn = min(1.0, (off + 1e-13 * value) / max(gap, 1e-300))
    spread = np.maximum(about.diagonal(), 0)
    off_share = 2 * turn * np.sqrt(share / unit * (spread / unit)) * unit + turn**2 * spread + slack @ weights
    return value, share, off_share


@register("dnc", version=2)
@dataclass(frozen=True)
class DivideAndConquer(MixedRule):
    """Rows that stick out along the direction of greatest spread of random coordinates are dropped, several times over.

        S = ∩_t {rows without the ⌊c f⌋ largest (u_t·(x_i - x̄))²},   u_t = top singular vector of b random coordinates

    The result is the mean of ``S``. Attackers that hide in low-variance directions are not seen.

    Args: ``c`` > 0 dropped rows per attacker (1); ``niters`` ≥ 1 rounds (5); ``b`` ≥ 1 coordinates, at most all (10⁴).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[0.0], [1.0], [2.0], [90.0]])
    >>> robustfl.defense("dnc")(X, f=1, generator=stream(0, "defense"))
    tensor([1.])

    Reference: Algorithm 2 of the paper below. Notes: if no row is left, the rows that were dropped least often.
    Projections that are equal but for rounding are dropped by index, the lowest first; where several directions spread
    equally far, their mean counts.
    """

    paper: ClassVar[str] = "@shejwalkar2021manipulating"
    cost: ClassVar[str] = "niters times b·n² + n³ on b sampled entries, one sum"
    on_host: ClassVar[str] = "draws coordinates and compares spreads"

    c: float = param(1.0, gt=0, doc="rows dropped per attacker and round")
    niters: int = param(5, ge=1, doc="rounds of dropping")
    b: int = param(10_000, ge=1, doc="random coordinates looked at in a round, at most all")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        times = torch.zeros(len(X))
        for _ in range(self.niters):
            seen = X[:, subset(X.shape[1], min(X.shape[1], self.b), generator_of(context, "dnc"))]
            centred = seen - seen.mean(0)
            away = (centred @ torch.linalg.svd(centred, full_matrices=False).Vh[0]).square()
            times[away.argsort(descending=True)[: floor(self.c * f)]] += 1
        return X[times == times.min()].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        d, drop = rows.stack.shape[1], self._drop(f)
        times = torch.zeros(rows.count, dtype=torch.int64)
        # Without rows to drop there is nothing to look for.
        for _ in range(self.niters if drop else 0):
            b = min(d, self.b)
            seen = rows if b == d else rows.at(subset(d, b, generator_of(context, "dnc")))
            times[_sticking_out(seen.products()[:-1, :-1], seen.slack(), drop)] += 1
        kept = (times == times.min()).nonzero().flatten()
        return Aggregated(rows.combine(rows.mean_of(kept)), facts={"kept": kept.tolist()})

    def min_clients(self, f: int) -> int:
        return self._drop(f) + 1

    def _drop(self, f: int) -> int:
        return floor(self.c * f)


def _sticking_out(products: Tensor, slack: Tensor, drop: int) -> Tensor:
    """The ``drop`` rows of largest squared projection on the top singular vector of the centred rows; see ``ties``."""
    n = len(products)
    with np.errstate(over="ignore", invalid="ignore"):
        _, share, off = leading(products.numpy(), np.full(n, 1 / n), slack.numpy())
    return largest(torch.from_numpy(share), drop, torch.from_numpy(off))


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

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        c, met = torch.ones(len(X)).to(X), [(torch.inf, X.mean(0))]
        while f and float(c.sum()) > len(X) - 2 * f:
            mean = c @ X / c.sum()
            values, vectors = torch.linalg.eigh((c[:, None] * (X - mean)).T @ (X - mean) / c.sum())
            met.append((float(values[-1]), mean))
            away = ((X - mean) @ vectors[:, -1]).square()
            c = c * (1 - away / away.max())
        return min(met, key=lambda one: one[0])[1]

    @np.errstate(over="ignore", invalid="ignore")
    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        products, slack = rows.products()[:-1, :-1].numpy(), rows.slack().numpy()
        c = np.ones(n)
        share, least, steps = c / n, float("inf"), 0
        while (left := c.sum()) > n - 2 * f + _ROUNDED:
            steps += 1
            weights = c / left
            value, excess, _ = leading(products, weights, slack, judged=False)
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
