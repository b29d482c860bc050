"""Rules that clip rows and cover their mean with noise: FLAME and weak differential privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import clusters, cosine_distances, settled
from ..draws import generator_of
from ..reference import clipped, lengths, weights_of
from ..rows import MajorityRule, Mixed, shares, shortened


@register("flame", version=2)
@dataclass(frozen=True)
class Flame(MajorityRule):
    """The majority cluster of directions is clipped to the median length, averaged, and covered with noise.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i + N(0, (λ M)²),   M = median length of all rows

    ``S`` is the cluster of more than half of the rows that HDBSCAN finds with cosine distances. Made against backdoors:
    many attackers with small deviations of direction stay inside, and the noise costs accuracy.

    Args: ``noise`` λ ≥ 0 (0.001, the paper's value for images; 0 for none).

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-5.0, 1.0]])
    >>> robustfl.defense("flame(noise=0)")(X, f=1).round(decimals=2)
    tensor([1., 0.])

    Reference: Algorithm 1 of the paper below. Notes: rows are updates, so directions are theirs and not those of whole
    models. HDBSCAN keeps the densest part of a single cluster, often just over half of all rows; if there is none all
    rows are kept, which the fact ``no_cluster`` says. The noise has one size for all entries: on normalization
    statistics it can make a small variance negative, which the merge then lifts to its floor; ``noise=0`` leaves them
    alone. Distances that are equal but for rounding are made equal first.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@nguyen2022flame"
    cost: ClassVar[str] = "n²d for the inner products, a clustering of n points, one sum"
    on_host: ClassVar[str] = "clusters rows and draws noise"

    noise: float = param(0.001, ge=0, doc="standard deviation of the noise, in median lengths")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del f
        length, unit = lengths(X), X / lengths(X)[:, None]
        admitted = _majority(1 - unit @ unit.T, torch.full((len(X), len(X)), 1e-12).to(X))
        kept = admitted | ~admitted.any()
        middle, generator = length.quantile(0.5), generator_of(context, "flame")
        return clipped(X[kept], middle).mean(0) + self.noise * middle * torch.randn(X.shape[1], generator=generator)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        length = rows.norms()
        middle = length.quantile(0.5)
        distance, off = cosine_distances(rows)
        admitted = _majority(distance, off)
        kept = admitted if bool(admitted.any()) else torch.ones_like(admitted)
        weights = shortened(kept, length, middle)
        vector = rows.combine(weights)
        _cover(vector, rows, float(self.noise * middle), context, self.name)
        return Aggregated(
            vector, facts={"kept": kept.nonzero().flatten().tolist(), "no_cluster": not bool(admitted.any())}
        )


def _majority(distance: Tensor, off: Tensor) -> Tensor:
    """Which rows ``[n]`` belong to the cluster of more than half; distances ``[n n]`` are known up to ``off``."""
    n = len(distance)
    if n < 3:
        return torch.ones(n, dtype=torch.bool)
    return clusters(settled(distance, off), n // 2 + 1) >= 0


def _cover(vector: Tensor, rows: Mixed, deviation: float, context: Context, owner: str) -> None:
    """Add Gaussian noise of the standard deviation to every entry of ``vector [d]``, in place."""
    if deviation > 0:
        generator = generator_of(context, owner)
        # Drawn in float32 whatever the rows are, so that precision does not change the draw.
        drawn = torch.randn(rows.stack.shape[1], generator=generator, device=generator.device)
        vector.add_(rows.here(drawn).to(vector), alpha=deviation)


@register("weak-dp", version=1)
@dataclass(frozen=True)
class WeakDP(MajorityRule):
    """Rows longer than ``M`` are shortened to it, and their weighted mean is covered with noise.

        F(X) = Σ p_i x_i / max(1, ‖x_i‖ / M) + N(0, σ² I),   p_i = w_i / Σ w_j   (1/n without weights)

    Made against backdoors: clipping bounds what one row can do, noise hides what is left of it. Both are absolute
    lengths, to be chosen with network and learning rate; noise of length ``σ √d`` above that of the mean ends learning.
    It is too little noise for a privacy guarantee, and none is claimed; clients add their own with ``dp-dsgd``.

    Args: ``M`` > 0, greatest length of a row (5); ``sigma`` ≥ 0, standard deviation of the noise on every entry
    (0.025), both as other projects have them.

    >>> import robustfl
    >>> robustfl.defense("weak-dp(M=2, sigma=0)")(torch.tensor([[1.0], [8.0]]), f=0)
    tensor([1.5000])

    Reference: norm thresholding with weak differential privacy, of the paper below.
    """

    uses_f: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    paper: ClassVar[str] = "@sun2019can"
    cost: ClassVar[str] = "nd for the lengths, one sum, d draws"
    on_host: ClassVar[str] = "draws noise"
    exempt: ClassVar[Mapping[str, str]] = {"no harm": "rows are shortened to a fixed length, and noise is added"}
    unfit_for_statistics: ClassVar[str] = "it shortens rows to a fixed length, and with them variances"

    M: float = param(5.0, gt=0, doc="greatest length of a row")
    sigma: float = param(0.025, ge=0, doc="standard deviation of the noise")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del f
        share, generator = weights_of(X, context), generator_of(context, "weak-dp")
        noise = torch.randn(X.shape[1], generator=generator)
        return share / share.sum() @ clipped(X, self.M) + self.sigma * noise

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        scale = (self.M / rows.norms().clamp(min=1e-300)).clamp(max=1)
        vector = rows.combine(shares(rows, context, self.name) * scale)
        _cover(vector, rows, self.sigma, context, self.name)
        return Aggregated(vector, facts={"clipped": (scale < 1).sum()})
