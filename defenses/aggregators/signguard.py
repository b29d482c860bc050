"""SignGuard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import check, param
from robustfl.registry import register

from ..draws import generator_of, subset
from ..reference import clipped, lengths
from ..rows import MajorityRule, Mixed, shortened

_FEWEST_COORDINATES = 1_000
_LAST_BITS = 1e-9


@register("signguard", version=2)
@dataclass(frozen=True)
class SignGuard(MajorityRule):
    """Rows of unusual length or with unusual shares of signs are left out; the others are clipped and averaged.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i,   M = median length,   S = S_1 ∩ S_2

    ``S_1``: rows with ``lower ≤ ‖x_i‖ / M ≤ upper``; ``S_2``: the largest cluster (mean shift) of the shares of
    positive, zero and negative entries among random coordinates. Attackers that imitate honest sign shares (and are no
    longer) pass.

    Args: ``lower`` ≥ 0 (0.1) and ``upper`` > 0 (3), bounds of lengths; ``fraction`` in (0, 1] of the coordinates (0.1).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [90.0, 90.0]])
    >>> robustfl.defense("signguard")(X, f=2, generator=stream(0, "defense"))
    tensor([1., 1.])

    Reference: plain SignGuard (no similarity) of the paper below. Notes: at least 1,000 coordinates are looked at
    (or all); the bandwidth is the mean distance to the farther end of the nearest half of the rows; if ``S`` is
    empty, ``S_2``; a length on a bound is within it. Biases before a batch norm have no gradient but rounding,
    whose signs are counted like others: elsewhere other rows may be kept. The authors' code differs: it looks at
    one window of consecutive coordinates, divides each of the three shares by its largest among the rows, leaves
    rows that reach no cluster out, starts mean shift from bins, and takes the lower of two middle lengths to clip
    at.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@xu2022byzantine"
    cost: ClassVar[str] = "fraction·n·d signs, a clustering of n points, 2nd for lengths and the sum"
    on_host: ClassVar[str] = "draws coordinates and clusters rows"

    lower: float = param(0.1, ge=0, doc="least length, in median lengths")
    upper: float = param(3.0, gt=0, doc="greatest length, in median lengths")
    fraction: float = param(0.1, gt=0, le=1, doc="share of the coordinates whose signs are counted")

    def __post_init__(self) -> None:
        check(self)
        if self.lower > self.upper:
            raise UsageError(f"SignGuard: lower={self.lower:g} > upper={self.upper:g}: no length is between")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del f
        d, length = X.shape[1], lengths(X)
        count = max(ceil(self.fraction * d), min(d, _FEWEST_COORDINATES))
        seen = X if count == d else X[:, subset(d, count, generator_of(context, "signguard"))]
        shares = torch.stack([(seen.sign() == sign).double().mean(1) for sign in (1, 0, -1)], dim=1)
        alike = _largest_cluster(shares.numpy())
        usual = (self.lower * length.quantile(0.5) <= length) & (length <= self.upper * length.quantile(0.5))
        kept = alike & usual if bool((alike & usual).any()) else alike
        return clipped(X[kept], length.quantile(0.5)).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        d = rows.stack.shape[1]
        looked_at = max(ceil(self.fraction * d), min(d, _FEWEST_COORDINATES))
        seen = rows if looked_at == d else rows.at(subset(d, looked_at, generator_of(context, "signguard")))
        alike = _largest_cluster(_sign_shares(seen))
        length = rows.norms()
        middle = length.quantile(0.5)
        # A length on a bound is within it, on whichever side its last bit lies.
        off = rows.slack_of_norms(length)
        usual = (length + off >= self.lower * middle) & (length - off <= self.upper * middle)
        kept = alike & usual if bool((alike & usual).any()) else alike
        weights = shortened(kept, length, middle)
        return Aggregated(rows.combine(weights), facts={"kept": kept.nonzero().flatten().tolist()})


def _sign_shares(rows: Mixed) -> np.ndarray:
    """Shares ``[n 3]`` of positive, zero and negative entries; what mixing left of rounding alone counts as zero."""
    X = rows.materialise()
    zero = X.abs() <= 4 * rows.stack.last_bits * rows.magnitudes()
    positive = ((X > 0) & ~zero).sum(1).double().cpu()
    negative = ((X < 0) & ~zero).sum(1).double().cpu()
    counts = torch.stack([positive, X.shape[1] - positive - negative, negative], dim=1)
    return np.asarray(counts / X.shape[1])


def _largest_cluster(features: np.ndarray) -> Tensor:
    """Which rows ``[n]`` belong to the largest cluster; of equally large ones that of the lowest row."""
    # Imported late: it takes a second that other rules need not wait for.
    from sklearn.cluster import MeanShift, estimate_bandwidth

    with _threads().limit(limits=1, user_api="openmp"):  # for so few points several only wait for each other
        bandwidth = float(estimate_bandwidth(features, quantile=0.5))
        if bandwidth > 1e-9:
            # A little wider, so that points at exactly that distance count as near on any machine.
            labels = MeanShift(bandwidth=bandwidth * (1 + _LAST_BITS)).fit_predict(features)
        else:
            labels = np.unique(features, axis=0, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(labels)[labels]
    return torch.from_numpy(labels == labels[int(sizes.argmax())])


@cache
def _threads() -> ThreadpoolController:
    """The pools of threads of the libraries that are loaded; looking for them takes longer than clustering."""
    return ThreadpoolController()
