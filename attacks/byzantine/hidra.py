"""HIDRA: as far as the spectrum of the rows does not tell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.kernels import last_bits
from robustfl.kernels.blocks import blocks, width
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre, honest_rows


@register("hidra", version=1)
@dataclass(frozen=True)
class HIDRA(Attack):
    """The attackers step back along the honest mean, as far as no direction spreads more than honest rows do.

    ``x = ḡ - z s``, ``s = ḡ/‖ḡ‖``, with the largest ``z`` for which the covariance of all ``n`` rows has no eigenvalue
    above ``κ λ``, the largest one of the honest rows' covariance ``C``:

    ``z² = n² / (h f sᵀ (κλI - (h/n)C)⁻¹ s)``.

    Filters that know how much honest rows spread find nothing to filter. They can afford few coordinates at a time;
    with ``chunk`` the step is taken in every ``chunk`` coordinates for themselves, and the steps add up. Rules that
    drop rows whatever the spread is (``dnc``), or look at distances or coordinates, may well see it.

    Args:
        kappa: ``κ ≥ 1``, what variance passes, in the greatest of the honest rows; 1.
        chunk: coordinates ≥ 1 that are looked at together; None (default) for all.

    Reference: Choudhary, Kolluri, Saxena, Attacking Byzantine Robust Aggregation in High Dimensions, IEEE S&P 2024,
    arXiv:2312.14461 (its attack with full knowledge). Deviations: the paper bounds the variance along ``s`` alone by
    the threshold of the server's filter, which here is told in units of ``λ``; its servers filter chunks of 1,000.

    >>> import robustfl
    >>> robustfl.forge("hidra", torch.tensor([[2.0, 1.0], [2.0, -1.0]]), f=2)
    tensor([[0., 0.],
            [0., 0.]])
    """

    paper: ClassVar[str] = "@choudhary2024attacking"
    cost: ClassVar[str] = "h²d for inner products, h³ per chunk"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "kappa"

    kappa: float = param(1.0, ge=1.0, lt=math.inf, doc="variance that passes, in the greatest of the honest rows")
    chunk: int | None = param(None, ge=1, doc="coordinates that are looked at together; None for all")

    def reference_row(self, view: View) -> Tensor:
        honest, row = honest_rows(view, self.name), []
        for part in torch.split(honest, self.chunk or honest.shape[1], dim=1):
            mean, C = part.mean(0), torch.cov(part.T, correction=0).reshape(part.shape[1], -1)
            s = mean / torch.linalg.vector_norm(mean)
            spare = self.kappa * torch.linalg.eigvalsh(C)[-1] * torch.eye(len(s)).to(C) - len(honest) / view.n * C
            z = view.n / (len(honest) * view.f * (s @ torch.linalg.solve(spare, s))).sqrt()
            row.append(mean - z * s)
        return torch.cat(row)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        honest = honest_rows(view, self.name)
        row = centre(honest).clone()
        size = self.chunk or max(1, len(row))
        for start in range(0, len(row), size):
            part = slice(start, start + size)
            row[part] *= 1 - self._step(honest[:, part], row[part], view)
        return alike(row, view.f)

    def _step(self, honest: Tensor, mean: Tensor, view: View) -> float:
        """``z/‖ḡ‖`` for honest rows ``[h k]`` with the mean ``[k]``; 0 where no direction is to be told."""
        h, n = len(honest), len(honest) + view.f
        products, along, square = _about(honest, mean)
        greatest = float(torch.linalg.eigvalsh(products)[-1])
        # Rows that are equal but for rounding do not spread.
        if view.f == 0 or not square > 0 or greatest <= (4 * last_bits(honest.dtype)) ** 2 * h * square:
            return 0.0
        bound = self.kappa * greatest / h
        # The inverse of κλI - AᵀA/n by Woodbury's identity, from the inner products A Aᵀ and A s.
        inner = n * bound * torch.eye(h, dtype=torch.float64, device=products.device) - products
        seen = float(along @ torch.linalg.solve(inner, along)) / square
        return n * math.sqrt(bound / (h * view.f * (1 + seen) * square))


def _about(honest: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, float]:
    """``A Aᵀ [h h]``, ``A ḡ [h]`` and ``‖ḡ‖²`` of the centred rows ``A``, in float64 and block by block."""
    h, k = honest.shape
    products, along = (honest.new_zeros(shape, dtype=torch.float64) for shape in ((h, h), (h,)))
    square = 0.0
    for block in blocks(k, width(h, k, honest)):
        point = mean[block].double()
        away = honest[:, block].double() - point
        products += away @ away.T
        along += away @ point
        square += float(point @ point)
    return products.cpu(), along.cpu(), square
