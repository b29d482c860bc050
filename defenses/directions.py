"""The direction in which weighted rows spread most, without a choice that rounding makes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Eigenvalues this close, relative to the greatest, count as equal: what parts them moves eigenvectors at random.
_EQUAL = 1e-9
_LARGE = 1e100
Array = NDArray[np.float64]


@np.errstate(over="ignore", invalid="ignore")
def leading(products: Array, weights: Array, slack: Array) -> tuple[float, Array, Array]:
    """``(λ, τ [n], slack of τ)`` for rows with inner products ``[n n]``, weights ``[n]`` and ``slack`` of distances.

    ``λ`` is the greatest eigenvalue of the weighted covariance and ``τ_i = (u·(x_i - μ))²`` along its unit eigenvector
    ``u``. An eigenvalue that several directions share, up to rounding, has no eigenvector of its own: ``τ`` is then the
    mean over them, which does not depend on the basis an eigenvalue problem happens to return. Rows that are equal but
    for rounding have ``τ = 0``. Arrays are NumPy's: filters ask thousands of times of few numbers, where torch's calls
    took three times as long (``caf``, 10 rows).
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
    share = np.mean(np.square(along) / np.maximum(values[equal] / unit, value / unit * _EQUAL), axis=1) * unit
    below = values[~equal]
    gap = value - (float(below[-1]) if len(below) else 0.0)
    # To first order an eigenvector turns by error over gap, and so do the lengths along it.
    turn = min(1.0, (off + 1e-13 * value) / max(gap, 1e-300))
    spread = np.maximum(about.diagonal(), 0)
    off_share = 2 * turn * np.sqrt(share / unit * (spread / unit)) * unit + turn**2 * spread + slack @ weights
    return value, share, off_share
