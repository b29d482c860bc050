"""Rules that cluster directions: (clipped) clustering, FLAME beside weak differential privacy, FreqFed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import clusters, cosine_distances, feature_distances, settled
from ..draws import generator_of
from ..reference import clipped, lengths, weights_of
from ..rows import MajorityRule, Mixed, MixedRule, shares, shortened


@register("clipped-clustering", version=1)
@dataclass(frozen=True)
class ClippedClustering(MajorityRule):
    """Rows are clipped to the median length of all rounds; the larger of two clusters of directions is averaged.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i,   M = min(τ, median of all lengths seen so far, these included)

    ``S`` is the larger of the two clusters that average linkage ends with, in cosine distances ``1 - cos(x_i, x_j)``;
    of one or two rows it is all. Attackers that stay as close to the honest directions as honest rows are to each other
    are averaged with them (``clipped-clustering-adaptive``); where nobody attacks, one cluster of honest clients is
    left out.

    Args: ``tau`` > 0, a bound of the radius (10⁵, the authors'). State: ``"norms" [k]``, the lengths so far.

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.1], [-9.0, 1.0]])
    >>> robustfl.defense("clipped-clustering")(X, f=1).round(decimals=2)
    tensor([1.1700, 0.0300])

    Reference: ClippedClustering of the paper below. Notes: of two equally large clusters the one with the
    lowest row; distances that are equal but for rounding are made equal first. The authors' code takes cosine
    *similarities* off the diagonal and labels of a library in ties; here they are distances, as the paper has them.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@li2024experimental"
    cost: ClassVar[str] = "n²d for the inner products, n³ for the clusters, one sum"
    on_host: ClassVar[str] = "clusters rows"
    unfit_for_statistics: ClassVar[str] = "rows are shortened towards the origin, so variances would shrink"

    tau: float = param(1e5, gt=0, doc="bound of the clipping radius")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        seen = torch.cat([context.state.get("norms", X[:0, 0]).to(X), lengths(X)])
        return clipped(X[_reference_cluster(X, "average")], min(self.tau, float(seen.quantile(0.5)))).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        length, before = rows.norms(), context.state.get("norms")
        norms = length if before is None else torch.cat([before.detach().to(length), length])
        radius = min(self.tau, float(norms.quantile(0.5)))
        kept = _larger_cluster(settled(*cosine_distances(rows)).fill_diagonal_(0), "average")
        weights = shortened(kept, length, radius)
        facts = {"kept": kept.nonzero().flatten().tolist(), "radius": radius}
        return Aggregated(rows.combine(weights), state={"norms": norms}, facts=facts)


@register("clustering", version=1)
@dataclass(frozen=True)
class Clustering(MajorityRule):
    """The mean of the larger of the two clusters of rows whose directions differ most.

        F(X) = 1/|S| Σ_{i ∈ S} x_i,   {S, S'} = argmin max_{i ∈ S, j ∈ S'} cos(x_i, x_j),   |S| ≥ |S'|

    The optimal bipartition is what single linkage of cosine distances merges last; of one or two rows ``S`` is all.
    Lengths are not looked at, so that one long row of an honest direction decides the mean; where nobody attacks, some
    honest clients are left out.

    Args: ``linkage`` is ``single`` (the equation), ``complete`` (the authors' code, and that of Blades) or ``average``.

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.1], [-9.0, 1.0]])
    >>> robustfl.defense("clustering")(X, f=1).round(decimals=2)
    tensor([1.3300, 0.0300])

    Reference: the optimal bipartitioning of the paper below, whose larger part counts as honest. Notes: the paper
    splits only where clients disagree by more than a threshold, and a converged model; here every round does. Of two
    equally large clusters the one with the lowest row; distances that are equal but for rounding are made equal first.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@sattler2020byzantine"
    cost: ClassVar[str] = "n²d for the inner products, n³ for the clusters, one sum"
    on_host: ClassVar[str] = "clusters rows"

    linkage: str = param("single", choices=("single", "complete", "average"), doc="distance of two clusters")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X[_reference_cluster(X, self.linkage)].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        kept = _larger_cluster(settled(*cosine_distances(rows)).fill_diagonal_(0), self.linkage).nonzero().flatten()
        return Aggregated(rows.combine(rows.mean_of(kept)), facts={"kept": kept.tolist()})


def _reference_cluster(X: Tensor, linkage: str) -> Tensor:
    """Which rows ``[n]`` of ``X [n d]`` belong to the larger of two clusters, by scipy's own distances and cut."""
    from scipy.cluster.hierarchy import fcluster
    from scipy.cluster.hierarchy import linkage as linked

    labels = fcluster(linked(X.numpy(), linkage, metric="cosine"), 2, "maxclust").tolist()
    larger = max(labels, key=lambda label: (labels.count(label), -labels.index(label)))
    return torch.tensor([label == larger for label in labels])


def _larger_cluster(distance: Tensor, method: str) -> Tensor:
    """Which rows ``[n]`` belong to the larger of the two clusters that are merged last."""
    n = len(distance)
    if n < 3:
        return torch.ones(n, dtype=torch.bool)
    # Imported late: it takes a second that other rules need not wait for.
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    merges = linkage(squareform(distance.numpy(), checks=False), method=method)
    members = [{i} for i in range(n)]
    for one, other in merges[:, :2].astype(int).tolist():
        members.append(members[one] | members[other])
    halves = [members[int(k)] for k in merges[-1, :2]]
    larger = max(halves, key=lambda half: (len(half), -min(half)))
    return torch.tensor([i in larger for i in range(n)])


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
        length, unit = lengths(X), X / lengths(X)[:, None]
        admitted = _majority(1 - unit @ unit.T, torch.full((len(X), len(X)), 1e-12).to(X))
        kept = admitted | ~admitted.any()
        middle, generator = length.quantile(0.5), generator_of(context, "flame")
        return clipped(X[kept], middle).mean(0) + self.noise * middle * torch.randn(X.shape[1], generator=generator)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
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
        share, generator = weights_of(X, context), generator_of(context, "weak-dp")
        noise = torch.randn(X.shape[1], generator=generator)
        return share / share.sum() @ clipped(X, self.M) + self.sigma * noise

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        scale = (self.M / rows.norms().clamp(min=1e-300)).clamp(max=1)
        vector = rows.combine(shares(rows, context, self.name) * scale)
        _cover(vector, rows, self.sigma, context, self.name)
        return Aggregated(vector, facts={"clipped": (scale < 1).sum()})


@register("freqfed", version=1)
@dataclass(frozen=True)
class FreqFed(MixedRule):
    """The mean of the largest cluster of rows whose low frequencies point the same way.

        F(X) = mean of x_i over i ∈ S,   S = largest cluster of v_1 … v_n by 1 - cos(v_i, v_j)

        v_i = the coefficients (p, q) of every layer's cosine transform C_M W_i C_Nᵀ with p/M + q/N < low

    ``C_N[q, k] = √(2/N) cos(π (2k + 1) q / 2N)``, its first row divided by √2; ``W_i [M N]``: a tensor of row ``i`` as
    a matrix, its first axis against all others; vectors have M = 1. A row without layers is one vector. It bounds no
    lengths, and attackers that point where honest clients point stay in their cluster.

    Args: ``low`` in (0, 2], the share of frequencies looked at (0.5); 2 is all; ``least`` ≥ 2 rows make a cluster (5).

    >>> import torch, robustfl
    >>> X = torch.tensor([[1.0, 2.0]] * 5 + [[-9.0, 4.0]])
    >>> robustfl.defense("freqfed")(X, f=1)
    tensor([1., 2.])

    Reference: Algorithm 1 of the paper below. Notes: no code of the authors is public, and others' differs in what is
    transformed (all weights, the last layer; one axis, two) and in what is low; here it is all layers in two axes, and
    a triangle of coefficients. ``least`` is HDBSCAN's own default; with clusters of two, pairs of attackers win where
    honest data differ. Its other number, of neighbors that make a point dense, is one. One cluster is allowed, of
    equally large ones it is that of the lowest row; if there is none all rows are kept, which the fact ``no_cluster``
    says. The paper transforms models, here it is the messages.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@fereidooni2024freqfed"
    cost: ClassVar[str] = "n·d log d for the transforms, n²d for inner products, a clustering of n points, one sum"
    on_host: ClassVar[str] = "clusters rows"

    low: float = param(0.5, gt=0, le=2, doc="share of frequencies looked at, over both axes")
    least: int = param(5, ge=2, doc="fewest rows of a cluster")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        X = rows.materialise()
        features = low_frequencies(X, context.shapes or ((X.shape[1],),), self.low)
        kept = _largest(settled(*feature_distances(features, rows)), self.least)
        none = not bool(kept.any())
        kept = kept | none
        facts = {"kept": kept.nonzero().flatten().tolist(), "no_cluster": none}
        return Aggregated(rows.combine(rows.mean_of(kept.nonzero().flatten())), facts=facts)

    def min_clients(self, f: int) -> int:
        return max(2 * f + 1, self.least)


def low_frequencies(X: Tensor, shapes: Sequence[tuple[int, ...]], low: float) -> Tensor:
    """The coefficients ``[n k]`` with ``p/M + q/N < low`` of all tensors of the rows ``X [n d]``, in float64."""
    if sum(map(prod, shapes)) != X.shape[1]:
        raise UsageError(f"freqfed: layers {list(shapes)} have {sum(map(prod, shapes))} entries, rows {X.shape[1]}")
    found = []
    for layer, shape in zip(torch.split(X, [prod(shape) for shape in shapes], dim=1), shapes, strict=True):
        if layer.shape[1] == 0:
            continue
        M = shape[0] if len(shape) > 1 else 1
        made = cosine_transform(layer.double().view(len(X), M, -1))
        made = cosine_transform(made.transpose(1, 2)).transpose(1, 2)
        p, q = (torch.arange(size, device=X.device) / size for size in made.shape[1:])
        found.append(made[:, p[:, None] + q[None, :] < low - 1e-9])
    return torch.cat(found, dim=1)


def cosine_transform(values: Tensor) -> Tensor:
    """The orthonormal DCT-II of ``values [… N]`` along the last axis, by a Fourier transform of the same length.

    >>> cosine_transform(torch.tensor([1.0, 1.0, 1.0, 1.0])).abs().round(decimals=4)
    tensor([2., 0., 0., 0.])
    """
    N = values.shape[-1]
    # Even places forwards, then odd places backwards: its spectrum is that of the cosines, turned by half a step.
    turned = torch.fft.fft(torch.cat([values[..., ::2], values[..., 1::2].flip(-1)], dim=-1))
    angle = torch.arange(N, device=values.device, dtype=values.dtype) * (-math.pi / (2 * N))
    made: Tensor = (turned * torch.polar(torch.ones_like(angle), angle)).real * math.sqrt(2 / N)
    made[..., 0] /= math.sqrt(2)
    return made


def _largest(distance: Tensor, least: int) -> Tensor:
    """Which rows ``[n]`` belong to the largest cluster, of equally large ones that of the lowest row."""
    labels = clusters(distance, least)
    sizes = torch.where(labels < 0, 0, (labels[:, None] == labels[None, :]).sum(1))
    first = int(sizes.argmax())
    return (labels == labels[first]) & (labels >= 0)
