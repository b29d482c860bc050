"""Statistics of a few seeds: accuracies on the logit scale, with variances that borrow strength from their table.

A handful of seeds says little about a variance, and a symmetric interval leaves 0 to 100 %. On the logit scale it
cannot, and the moderated variance of Smyth (Linear Models and Empirical Bayes Methods, SAGMB 2004) draws each variance
towards what the other places of the same table have, the less the more these differ among each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma, stdtr, stdtrit

UNKNOWN_SAMPLES = 1000
"""Test samples to assume where a record does not say."""
MIN_PAIRS = 3
"""Two seeds tell nothing apart: over many rows the moderated test would err too often (13 % at 15 rows)."""

Array = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True)
class Prior:
    """The prior of a table for variances: ``variance`` with the weight of ``dof`` degrees of freedom.

    ``pooled`` are the degrees of freedom of the whole table, which no estimate from it can exceed.
    """

    dof: float
    variance: float
    pooled: float

    def moderate(self, variance: float | Array, dof: float | Array) -> tuple[Array, Array]:
        """The moderated variance and its degrees of freedom."""
        own, d = np.asarray(variance, dtype=np.float64), np.asarray(dof, dtype=np.float64)
        if math.isinf(self.dof):
            return np.full_like(own, self.variance), np.full_like(own, max(self.pooled, 1.0))
        total = self.dof + d
        return (self.dof * self.variance + d * own) / total, np.minimum(total, np.maximum(self.pooled, d))


def logit(values: Sequence[float] | Array, samples: int | None) -> Array:
    """``log(p / (1 - p))``; no accuracy counts as nearer to 0 or 1 than half a test sample."""
    edge = 0.5 / (samples or UNKNOWN_SAMPLES)
    p = np.clip(np.asarray(values, dtype=np.float64), edge, 1 - edge)
    return np.asarray(np.log(p) - np.log1p(-p))


def resolution(values: Sequence[float] | Array, samples: int | None) -> float:
    """The variance that rounding to whole test samples alone gives on the logit scale; smaller ones are chance."""
    m = samples or UNKNOWN_SAMPLES
    p = float(np.clip(np.mean(values), 0.5 / m, 1 - 0.5 / m))
    return float((1 / (m * p * (1 - p))) ** 2 / 12)


def prior_of(variances: Sequence[float] | Array, dofs: Sequence[float] | Array, pooled: float) -> Prior | None:
    """The prior by the moments of the log variances; ``None`` for fewer than three variances.

    Where the variances differ less than chance alone makes them differ, they count as equal (``dof`` infinite).
    """
    s, d = np.asarray(variances, dtype=np.float64), np.asarray(dofs, dtype=np.float64)
    if len(s) < 3:
        return None
    e = np.log(s) - digamma(d / 2) + np.log(d / 2)
    excess = float(e.var(ddof=1) - polygamma(1, d / 2).mean())
    if excess <= 0:
        return Prior(math.inf, float(np.exp(e.mean())), pooled)
    d0 = 2 * _trigamma_inverse(excess)
    return Prior(d0, float(np.exp(e.mean() + digamma(d0 / 2) - math.log(d0 / 2))), pooled)


def _trigamma_inverse(x: float) -> float:
    """The ``y`` whose trigamma is ``x``, by Newton's method (Smyth 2004, appendix)."""
    if x > 1e7:
        return 1 / math.sqrt(x)
    if x < 1e-6:
        return 1 / x
    y = 0.5 + 1 / x
    for _ in range(50):
        tri = float(polygamma(1, y))
        step = tri * (1 - tri / x) / float(polygamma(2, y))
        y += step
        if -step / y < 1e-10:
            break
    return y


def interval(
    values: Sequence[float], *, prior: Prior | None, samples: int | None, confidence: float
) -> tuple[float, float]:
    """The interval of a mean accuracy over at least two seeds: around its logit, so that it stays within [0, 1]."""
    n = len(values)
    seen = max(float(logit(values, samples).var(ddof=1)), resolution(values, samples))
    half = half_width(seen, n, prior, confidence)
    mean = math.fsum(values) / n
    centre = float(logit([mean], samples)[0])
    low, high = 1 / (1 + math.exp(half - centre)), 1 / (1 + math.exp(-half - centre))
    return min(low, mean), max(high, mean)  # a mean next to 0 or 1 is farther out than its logit may be


def half_width(variance: float, n: int, prior: Prior | None, confidence: float) -> float:
    """Half Student's interval of a mean over ``n`` seeds of this variance, which ``prior`` moderates."""
    moderated, dof = (variance, n - 1.0) if prior is None else map(float, prior.moderate(variance, n - 1))
    return float(stdtrit(dof, (1 + confidence) / 2)) * math.sqrt(moderated / n)


def pair_p_values(tables: Array, samples: int | None) -> Array:
    """Two-sided p-values ``[r r]`` of all pairs of rows, 1 of a row with itself; for the arguments see ``p_values``."""
    p = np.ones((len(tables), len(tables)))
    first, second = np.triu_indices(len(tables), 1)
    p[first, second] = p[second, first] = p_values(tables, samples, first, second)[0]
    return p


def p_values(tables: Array, samples: int | None, first: Places, second: Places) -> tuple[Array, Array]:
    """Two-sided p-values of pairs of rows, and by how many seeds they are paired.

    ``tables [r s]`` are accuracies per row and seed, NaN where a row has none. The differences of the logits are tested
    seed by seed with variances that those of the table's pairs moderate (of each row with the next ``_PRIOR_ROWS``,
    which are all pairs of most tables). A pair with fewer than ``MIN_PAIRS`` seeds in common has p = 1, and so has one
    whose accuracies differ the other way on average.
    """
    found = np.ones(len(first))
    if len(tables) < 2:
        return found, np.zeros(len(first))
    x = logit(tables, samples)
    floors = np.array([resolution(row[~np.isnan(row)], samples) if (~np.isnan(row)).any() else 0.0 for row in tables])
    seen, n = _variances(x, floors, *_neighbors(len(tables)))
    known = n >= MIN_PAIRS
    if not known.any():
        return found, _variances(x, floors, first, second)[1]
    dofs = (n[known] - 1).astype(np.float64)
    prior = prior_of(seen[known], dofs, pooled=float((len(tables) - 1) * dofs.max()))
    seen, n = _variances(x, floors, first, second)
    known = n >= MIN_PAIRS
    of, to = first[known], second[known]
    dofs = (n[known] - 1).astype(np.float64)
    variance, dof = (seen[known], dofs) if prior is None else prior.moderate(seen[known], dofs)
    t = np.nanmean(x[to] - x[of], axis=1) / np.sqrt(variance / n[known])
    p = 2 * stdtr(dof, -np.abs(t))
    plain = np.nanmean(tables[to] - tables[of], axis=1)
    p[plain * t < 0] = 1.0  # ranks go by accuracies, which their logits may order differently
    found[known] = p
    return found, n


_PRIOR_ROWS = 50


def _neighbors(rows: int) -> tuple[Places, Places]:
    """The pairs of each row with the next ones, after the last with the first ones; all pairs of a short table."""
    if rows <= 2 * _PRIOR_ROWS + 1:
        return np.triu_indices(rows, 1)
    first = np.repeat(np.arange(rows), _PRIOR_ROWS)
    return first, (first + np.tile(np.arange(1, _PRIOR_ROWS + 1), rows)) % rows


def _variances(x: Array, floors: Array, first: Places, second: Places) -> tuple[Array, Array]:
    """The variances of pairs' differences, not below what the images resolve, and the seeds they have in common."""
    apart = x[second] - x[first]
    n = (~np.isnan(apart)).sum(1)
    several = n > 1
    seen = np.full(len(first), np.nan)
    seen[several] = np.nanvar(apart[several], axis=1, ddof=1)
    return np.fmax(seen, floors[first] + floors[second]), n
