"""Two clusters of directions, the larger of which is averaged: clustering, clipped clustering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import cosine_distances, settled
from ..reference import clipped, lengths
from ..rows import MajorityRule, Mixed, shortened


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
        del f
        seen = torch.cat([context.state.get("norms", X[:0, 0]).to(X), lengths(X)])
        return clipped(X[_reference_cluster(X, "average")], min(self.tau, float(seen.quantile(0.5)))).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
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
        del f, context
        return X[_reference_cluster(X, self.linkage)].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f, context
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
