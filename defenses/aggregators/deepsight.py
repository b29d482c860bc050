"""DeepSight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import clusters, cosine_distances, settled
from ..draws import generator_of
from ..rows import MajorityRule, Mixed, Stack, shortened

_ROUNDING = 1e-5


@register("deepsight", version=1)
@dataclass(frozen=True)
class DeepSight(MajorityRule):
    """Clients are clustered by what their output layers tell of their data; clusters with many suspects are left out.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i,   M = median length,   S = clusters with fewer than τ suspects

    Of the output layer's update: energies ``e_ic = |Δb_c| + Σ_h |ΔW_ch|``, their shares ``u_ic = e_ic² / Σ_c e_ic²``.
    A client is suspect if no more shares than half the median number exceed ``max(0.01, 1/c) max_c u_ic``: its data are
    of few classes. Clusters (HDBSCAN) are made of the shares, of the cosines between ``Δb``, and three times of
    ``mean_s p_i(s)_c / p(s)_c`` for random images ``s``, the client's predictions over the server's; who is often in
    one cluster is in one at the end. Made against backdoors of single classes. Without the network, as for rows of
    one's own, it goes by the cosines of whole rows and suspects nobody; shapes of layers alone add the shares.

    Args: ``tau`` in (0, 1], the share of suspects that condemns a cluster (1/3); ``inputs`` ≥ 1 random images (1,000).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1]])
    >>> robustfl.defense("deepsight")(X, f=1, generator=stream(0, "defense")).round(decimals=2)
    tensor([1., 0.])

    Reference: Algorithms of the paper below. Notes: the paper takes 20,000 random images, which for the
    networks here costs more than training. The output layer is the last matrix with the vector after it.
    Settings of HDBSCAN differ between implementations; here a cluster has two or more clients, one cluster is
    allowed (where there is a single one, scikit-learn counts the densest clients in alone), and clients in none
    are clusters of one. Distances that differ by 1e-5 of the largest feature tie, so that among hundreds of
    clients near clusters may join. If all are condemned, all are averaged, which the fact ``all_condemned``
    says.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@rieger2022deepsight"
    on_host: ClassVar[str] = "clusters rows"
    sees_outputs: ClassVar[bool] = True
    cost: ClassVar[str] = "3n·inputs forwards, n²d for the inner products, clusterings of n points, one sum"
    unfit_for_statistics: ClassVar[str] = "rows are shortened towards the origin, so variances would shrink"

    tau: float = param(1 / 3, gt=0, le=1, doc="share of suspects that condemns a cluster")
    inputs: int = param(1_000, ge=1, doc="random images that models are compared on")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        X, length = rows.materialise(), rows.norms()
        layer = output_layer(context.shapes)
        suspects = torch.zeros(len(X), dtype=torch.bool)
        if layer is None:
            apart = [_parted(settled(*cosine_distances(rows)))]
        else:
            start, classes, width = layer
            shares = energy_shares(X[:, start : start + classes * (width + 1)].double().cpu(), classes)
            suspects = suspicious(shares)
            bias = Mixed(Stack(X[:, start + classes * width : start + classes * (width + 1)].contiguous()))
            apart = [_parted(settled(*cosine_distances(bias))), _parted(_distances(shares))]
        if context.noise_outputs is not None:
            generator = generator_of(context, "deepsight")
            seen = [context.noise_outputs(X, self.inputs, generator).double().cpu() for _ in range(3)]
            apart.append(torch.stack([_parted(_distances(_quotients(outputs))) for outputs in seen]).mean(0))
        labels = _clusters(torch.stack(apart).mean(0))
        kept = ~torch.stack([suspects[labels == label].double().mean() >= self.tau for label in labels])
        condemned = not bool(kept.any())
        kept = kept | condemned
        weights = shortened(kept, length, length.quantile(0.5))
        facts = {
            "kept": kept.nonzero().flatten().tolist(), "suspects": suspects.nonzero().flatten().tolist(),
            "all_condemned": condemned,
        }  # fmt: skip
        return Aggregated(rows.combine(weights), facts=facts)


def output_layer(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int, int] | None:
    """Where the last matrix ``[c k]`` with a vector ``[c]`` after it begins in a row, and ``c`` and ``k``.

    >>> output_layer(((8, 64), (8,), (10, 8), (10,)))
    (520, 10, 8)
    """
    for place in range(len(shapes) - 2, -1, -1):
        matrix, vector = shapes[place], shapes[place + 1]
        if len(matrix) == 2 and vector == matrix[:1]:
            return sum(map(prod, shapes[:place])), matrix[0], matrix[1]
    return None


def energy_shares(layer: Tensor, classes: int) -> Tensor:
    """``u [n c]`` of updates of an output layer ``[n c(k + 1)]``, weights before biases; equal ones for no update."""
    weights, bias = layer[:, :-classes], layer[:, -classes:]
    energy = weights.abs().view(len(layer), classes, -1).sum(2) + bias.abs()
    square = energy.square()
    total = square.sum(1, keepdim=True)
    return torch.where(total > 0, square / total.clamp(min=1e-300), 1 / classes)


def suspicious(shares: Tensor) -> Tensor:
    """Which clients ``[n]`` have few classes whose share of energy exceeds the threshold."""
    bound = max(0.01, 1 / shares.shape[1]) * shares.max(1, keepdim=True).values
    # A share on the bound, as of rows with equal shares, does not exceed it.
    exceeding = (shares > bound * (1 + _ROUNDING)).sum(1).double()
    return exceeding <= exceeding.quantile(0.5) / 2


def _quotients(outputs: Tensor) -> Tensor:
    """``[n c]``: predictions of the clients' models over those of the server's, which come last; means over inputs."""
    # A model that an attacker has blown up predicts nothing.
    outputs = outputs.nan_to_num(nan=0.0)
    return (outputs[:-1] / outputs[-1].clamp(min=1e-12)).mean(1)


def _distances(features: Tensor) -> Tensor:
    """Distances between the rows of features ``[n k]`` without the digits that rounding makes."""
    distance = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    off = torch.full_like(distance, _ROUNDING * float(features.abs().max().clamp(min=1e-12)))
    return settled(distance, off)


def _parted(distance: Tensor) -> Tensor:
    """``[n n]``: 0 for clients in one cluster, 1 for others."""
    labels = _clusters(distance)
    return (labels[:, None] != labels[None, :]).double()


def _clusters(distance: Tensor) -> Tensor:
    """The cluster of each client ``[n]``; those in none have one of their own."""
    n = len(distance)
    if n < 3:
        return torch.zeros(n, dtype=torch.int64)
    labels = clusters(distance, 2)
    return torch.where(labels < 0, n + torch.arange(n), labels)
