"""Rules that cluster values of columns (Auror) or rows in a plane (RFLBAT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.kernels.blocks import blocks, width
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import cosine_distances
from ..draws import generator_of
from ..rows import MajorityRule, Mixed, MixedRule

# Coordinates and similarities that differ by less are equal. Splits whose sums of squares do are equally good: the one
# with fewer low values is taken.
_ROUNDING = 1e-9


@register("auror", version=1)
@dataclass(frozen=True)
class Auror(MajorityRule):
    """The mean of the clients that are seldom in the smaller of two clusters of an indicative coordinate's values.

        F(X) = 1/|S| Σ_{i ∈ S} x_i,   S = {i: |{j ∈ J: i in the smaller cluster of column j}| ≤ τ |J|}

    Every column's values are split by 2-means; ``J`` are the columns whose two centres are more than ``α`` apart. Where
    both clusters are equally large nobody is suspected. Attackers that stay within ``α`` of the honest values, or in a
    minority of columns, are averaged; where clients differ by their data, those with rare classes are suspected.

    Args: ``alpha`` ≥ 0, distance of centres beyond which a column is indicative (0.02): a length of its own, to be
    chosen with the network; ``tau`` in (0, 1], share of the indicative columns beyond which a client is left out (0.5).

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 0.0, 0.1], [1.1, 0.0, 0.0], [0.9, 0.0, 0.1], [-4.0, 3.0, 0.0]])
    >>> robustfl.defense("auror(alpha=1)")(X, f=1).round(decimals=2)
    tensor([1.0000, 0.0000, 0.0700])

    Reference: Auror's identification of indicative features and of malicious users in the paper below. Notes: the paper
    fixes ``J`` by the first rounds of training; here every round finds its own. 2-means on a line is solved exactly. If
    everybody is suspected, as can be for ``τ < 1/2``, all are averaged, which the fact ``all_suspected`` says.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@shen2016auror"
    cost: ClassVar[str] = "a sort of n values and n splits of them for every entry, one sum"
    on_host: ClassVar[str] = "leaves clients out by votes"

    alpha: float = param(0.02, ge=0, doc="distance of two centres that makes a column indicative")
    tau: float = param(0.5, gt=0, le=1, doc="share of the indicative columns that a client may be suspected in")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        votes, indicative = torch.zeros(len(X)), 0
        for column in X.T:
            splits = [(column <= value, column > value) for value in column.sort().values[:-1]]
            spread = [
                sum((column[side] - column[side].mean()).square().sum() for side in s if any(side)) for s in splits
            ]
            low, high = splits[min(range(len(splits)), key=lambda k: float(spread[k]))] if splits else (column > 0,) * 2
            if low.any() and high.any() and float(column[high].mean() - column[low].mean()) > self.alpha:
                indicative += 1
                votes += low * (low.sum() < high.sum()) + high * (high.sum() < low.sum())
        kept = votes <= self.tau * indicative
        return X[kept | ~kept.any()].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        X = rows.materialise()
        votes, indicative = X.new_zeros(len(X), dtype=torch.int64), 0
        for block in blocks(X.shape[1], width(4 * len(X), X.shape[1], X, itemsize=8)):
            suspected, found = _suspected(X[:, block], self.alpha)
            votes, indicative = votes + suspected, indicative + found
        kept = votes.cpu() <= self.tau * indicative * (1 + _ROUNDING)
        nobody = not bool(kept.any())
        chosen = (kept | nobody).nonzero().flatten()
        facts = {"kept": chosen.tolist(), "indicative": indicative, "all_suspected": nobody}
        return Aggregated(rows.combine(rows.mean_of(chosen)), facts=facts)


def _suspected(X: Tensor, alpha: float) -> tuple[Tensor, int]:
    """In how many indicative columns of ``X [n w]`` each row is suspected ``[n]``, and how many there are."""
    n = len(X)
    if n < 2:
        return X.new_zeros(n, dtype=torch.int64), 0
    values, order = X.double().sort(dim=0, stable=True)
    low = torch.arange(1, n, device=X.device)
    sums = values.cumsum(0)
    apart = (sums[-1] - sums[:-1]) / (n - low)[:, None] - sums[:-1] / low[:, None]
    between = apart.square() * (low * (n - low))[:, None]
    best = (between >= between.amax(0) * (1 - _ROUNDING)).to(torch.int8).argmax(0)
    indicative = apart.gather(0, best[None])[0] > alpha
    below = torch.arange(n, device=X.device)[:, None] <= best
    size = best + 1
    smaller = torch.where(2 * size < n, below, ~below & (2 * size > n)) & indicative
    votes = torch.zeros_like(smaller).scatter_(0, order, smaller).sum(1)
    return votes, int(indicative.sum())


_REFERENCES = 5
_MOST_CLUSTERS = 10


@register("rflbat", version=1)
@dataclass(frozen=True)
class RFLBAT(MixedRule):
    """The mean of the cluster, in the plane of greatest spread, whose rows point the same way the least.

        F(X) = 1/|S| Σ_{i ∈ S} x_i,   S = {i ∈ C: e_i(C) ≤ ε₂ median e(C)},   e_i(C) = Σ_{j ∈ C} ‖p_i - p_j‖

        C = argmin median_{i ∈ C'} mean_{j ∈ C'} cos(x_i, x_j) over the clusters C' of {i: e_i ≤ ε₁ median e}

    with ``p_i [2]`` the first two principal components of the rows, clusters by k-means and their number by the gap
    statistic; clusters of one have the similarity 1. Made against backdoors, whose attackers all pull one way, and for
    any number of attackers: where these send rows that differ more than those of honest clients, it keeps them.

    Args: ``eps1`` > 0 and ``eps2`` > 0, sums of distances, in medians, beyond which rows are left out before and after
    the clustering (10 and 4, the authors' values).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> honest = torch.tensor([[1.0, 0.0], [0.8, 0.4], [1.0, -0.4], [0.9, 0.2], [0.9, -0.1]])
    >>> X = torch.cat([honest, torch.tensor([[9.0, 9.0], [9.1, 9.0], [9.0, 9.1]])])
    >>> robustfl.defense("rflbat")(X, f=3, generator=stream(0, "defense"))
    tensor([0.9200, 0.0200])

    Reference: the algorithm of the paper below. Notes: the gap statistic draws 5 references in the unit square and
    tries 10 numbers of clusters, as implementations do, with the sums of squares of Tibshirani's; all entries of a row
    count, where these leave out some layers of large networks. A row on a bound is kept.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@wang2022rflbat"
    cost: ClassVar[str] = "n²d for the inner products, k-means of n points some dozen times, one sum"
    on_host: ClassVar[str] = "clusters rows"

    eps1: float = param(10.0, gt=0, doc="greatest sum of distances before the clustering, in medians")
    eps2: float = param(4.0, gt=0, doc="greatest sum of distances within the cluster, in medians")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        u, s, _ = torch.linalg.svd(X - X.mean(0), full_matrices=False)
        points = torch.nn.functional.pad(u[:, :2] * s[:2], (0, max(0, 2 - len(s))))
        cosine = torch.cosine_similarity(X[:, None], X[None], dim=2)
        return X[self._chosen(points, cosine, generator_of(context, "rflbat"))].mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        cosine = 1 - cosine_distances(rows)[0]
        kept = self._chosen(_plane(rows), cosine.fill_diagonal_(1), generator_of(context, "rflbat"))
        return Aggregated(rows.combine(rows.mean_of(kept)), facts={"kept": kept.tolist()})

    def _chosen(self, points: Tensor, cosine: Tensor, generator: torch.Generator) -> Tensor:
        """The rows that are averaged, from their ``points [n 2]`` and the cosines of whole rows ``[n n]``."""
        near = _within(points, torch.arange(len(points)), self.eps1)
        labels = _clusters(points[near], generator)
        clusters = [near[labels == label] for label in sorted(set(labels.tolist()))]
        alike = [float(cosine[c][:, c].mean(1).quantile(0.5)) if len(c) > 1 else 1.0 for c in clusters]
        best = next(c for c, value in zip(clusters, alike, strict=True) if value <= min(alike) + _ROUNDING)
        return _within(points, best, self.eps2)

    def min_clients(self, f: int) -> int:
        return f + 1


def _plane(rows: Mixed) -> Tensor:
    """The first two principal components ``[n 2]`` of the rows, from their distances; 0 for what rounding made."""
    squares = rows.squared_distances()
    centred = squares - squares.mean(0) - squares.mean(1, keepdim=True) + squares.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    values = torch.where(values > float(rows.slack().max()) + _ROUNDING * values[-1], values, 0.0)
    made = torch.zeros((len(squares), 2), dtype=torch.float64)
    axes = (vectors * values.clamp(min=0).sqrt()).flip(1)[:, :2]
    made[:, : axes.shape[1]] = axes
    return made


def _within(points: Tensor, chosen: Tensor, eps: float) -> Tensor:
    """Those of the rows ``chosen`` whose sum of distances to the others is at most ``eps`` times the median."""
    sums = torch.cdist(points[chosen], points[chosen], compute_mode="donot_use_mm_for_euclid_dist").sum(1)
    return chosen[sums <= eps * sums.quantile(0.5) + _ROUNDING * sums.max()]


def _clusters(points: Tensor, generator: torch.Generator) -> Tensor:
    """The k-means cluster ``[n]`` of every point ``[n 2]``, as many clusters as the gap statistic finds."""
    drawn = torch.rand((_REFERENCES, len(points), 2), generator=generator, device=generator.device, dtype=torch.float64)
    spread = points.amax(0) - points.amin(0)
    scaled = torch.where(spread > 0, (points - points.amin(0)) / spread.clamp(min=1e-300), 0.0)
    scaled = torch.where(scaled.mean(0) > 0.5, 1 - scaled, scaled)  # an axis has no sign
    most = min(_MOST_CLUSTERS, len(torch.unique((scaled / _ROUNDING).round(), dim=0)))
    labels, gap, _ = _k_means(scaled, drawn, 1)
    for k in range(2, most + 1):
        more, wider, error = _k_means(scaled, drawn, k)
        if gap >= wider - error:
            break
        labels, gap = more, wider
    return labels


def _k_means(points: Tensor, drawn: Tensor, k: int) -> tuple[Tensor, float, float]:
    """The clusters ``[n]`` of ``points`` in ``k``, the gap to the references ``drawn [r n 2]``, and the gap's error."""
    # Imported late: it takes a second that other rules need not wait for.
    from sklearn.cluster import KMeans

    order = np.lexsort(points.numpy().T)  # the result does not depend on the order of clients
    fitted = [KMeans(k, n_init=4, random_state=0).fit(part) for part in (points.numpy()[order], *drawn.cpu().numpy())]
    own, *others = (np.log(max(each.inertia_, 1e-30)) for each in fitted)
    labels = torch.empty(len(points), dtype=torch.int64)
    labels[torch.from_numpy(order)] = torch.from_numpy(fitted[0].labels_.astype(np.int64))
    return labels, float(np.mean(others) - own), float(np.std(others) * np.sqrt(1 + 1 / len(others)))
