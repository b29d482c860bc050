"""FreqFed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import clusters, feature_distances, settled
from ..rows import Mixed, MixedRule


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
        del f
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
