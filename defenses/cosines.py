"""Cosine distances between rows, with how far rounding may have moved them, for rules that cluster directions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .rows import Mixed, Stack
from .ties import snapped

# Directions that rounding may turn this far, in radians, are not known.
_UNKNOWN = 1e-2
_FAR = 100.0


def comparable(rows: Mixed) -> Mixed:
    """The rows; or, where some are far longer than others, all with length 1, or 0 for one that points nowhere.

    Inner products are computed about one of the rows: beside a long one those of short rows would lose their digits.
    """
    length = rows.norms()
    directed = length > rows.slack_of_norms(length)
    if not bool(directed.any()) or float(length.max()) <= _FAR * float(length[directed].min()):
        return rows
    X = rows.materialise()
    scale = torch.where(directed, length, torch.inf)[:, None].to(X.device)
    made = [(row.double() / own).to(X.dtype) for row, own in zip(torch.split(X, 1), scale, strict=True)]
    return Mixed(Stack(torch.cat(made)))


def cosine_distances(rows: Mixed) -> tuple[Tensor, Tensor]:
    """``1 - cos`` of all rows ``[n n]`` and how far each may be off; 1 for a row of zeros, which points nowhere."""
    rows = comparable(rows)
    length = rows.norms()
    distance = _distances(rows.inner(), length > rows.slack_of_norms(length))
    share = _share(rows, length)
    return distance, _off(distance, rows.stack.last_bits, share) + 8 * rows.stack.gram.rounding * share**2


def feature_distances(features: Tensor, rows: Mixed) -> tuple[Tensor, Tensor]:
    """The same for ``features [n k]`` (float64) that were made of rows by a map that makes no difference longer.

    What rounding can do to a row is the more to its features the shorter they are; features that consist of nothing
    else count as zeros.
    """
    seen, bits, norms = Mixed(Stack(features)), rows.stack.last_bits, rows.norms()
    length = seen.norms()
    turn = bits * norms / length.clamp(min=1e-300)
    known = turn < _UNKNOWN
    distance = _distances(comparable(seen).inner(), known)
    off = _off(distance, (turn[:, None] + turn) / 2, _share(rows, norms)) + 8 * seen.stack.gram.rounding
    return distance, torch.where(known[:, None] & known[None, :], off, bits)


def _share(rows: Mixed, norms: Tensor) -> Tensor:
    """Distances ``[n n]`` of two rows from their neighbors, relative to their ``norms``, at most 1."""
    share = (rows.reach() / norms.clamp(min=1e-300)).clamp(max=1)
    return torch.maximum(share[:, None], share)


def _off(distance: Tensor, turn: Tensor | float, share: Tensor) -> Tensor:
    """The error of cosine distances whose rows a last bit turns by ``turn``: of second order where they are near 1.

    Rows farther apart than their last bits are compared about a row near both, where rounding is that of distances.
    """
    turn = torch.where((2 * distance).sqrt() <= 2 * turn, turn, turn * share)
    return turn * (8 * distance).sqrt() + 4 * turn**2 + 1e-15


def settled(distance: Tensor, off: Tensor) -> Tensor:
    """Distances that are equal but for rounding made equal, and free of the digits that rounding has made.

    The clustering then meets its ties in the order of rows; it also sums and compares inverses of distances.
    """
    digit = torch.exp2(torch.log2(8 * snapped(off, off / 2)).ceil())
    return (snapped(distance, off) / digit).round() * digit


def clusters(distance: Tensor, least: int) -> Tensor:
    """HDBSCAN's cluster of each of ``distance [n n]``, ``least`` or more together; -1 for those in none."""
    # Imported late: it takes a second that other rules need not wait for.
    from sklearn.cluster import HDBSCAN

    # scikit-learn counts a point among its own neighbors: two here are the paper's one.
    made = HDBSCAN(min_cluster_size=least, min_samples=2, metric="precomputed", allow_single_cluster=True, copy=True)
    return torch.from_numpy(np.asarray(made.fit_predict(distance.clone().fill_diagonal_(0).numpy()), dtype=np.int64))


def _distances(inner: Tensor, directed: Tensor) -> Tensor:
    """``[n n]``, 1 for a row of zeros: it has no direction, though rounding may say otherwise."""
    length = torch.where(directed, inner.diagonal().clamp(min=1e-300).sqrt(), torch.inf)
    cosine = (inner / (length[:, None] * length[None, :])).clamp(-1, 1)
    return (1 - (cosine + cosine.T) / 2).fill_diagonal_(0)
