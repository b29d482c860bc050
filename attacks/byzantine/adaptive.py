"""Attacks made for one kind of rule: adaptive ones on SignGuard and clipped clustering, and HIDRA."""

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

from .sight import alike, centre, centre_and_spread, honest_rows


@register("signguard-adaptive", version=1)
@dataclass(frozen=True)
class SignGuardAdaptive(Attack):
    """The attackers send the entries of the honest mean at other places, at an ordinary norm.

    SignGuard compares norms and the shares of positive, zero and negative entries; a permutation of ``ḡ`` changes
    none of them. ``opposite`` puts the smallest value where the largest was and so on, which of all permutations gives
    the least inner product with ``ḡ``; ``random`` shuffles. The row has ``scale`` times the median honest norm. Rules
    that look at distances or coordinates see an outlier.

    Args:
        order: ``opposite`` (default) or ``random``.
        scale: factor ≥ 0 of the median honest norm; 1 by default, SignGuard lets up to 3 pass.

    Reference: the rule of Xu et al., Byzantine-robust Federated Learning through Collaborative Malicious Gradient
    Filtering, ICDCS 2022, arXiv:2109.05872; an adaptive attack on it is part of Li et al., Blades: A Unified Benchmark
    Suite for Byzantine Attacks and Defenses in Federated Learning, IoTDI 2024, arXiv:2206.05359. Deviations:
    ``opposite`` is ours; values are those of ``ḡ`` rather than random ones.

    >>> import robustfl
    >>> robustfl.forge("signguard-adaptive", torch.tensor([[4.0, -2.0, 1.0], [4.0, -2.0, 1.0]]), f=1)
    tensor([[-2.,  4.,  1.]])
    """

    paper: ClassVar[str] = "@xu2022byzantine"
    cost: ClassVar[str] = "hd for lengths, mean and signs"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "scale"

    order: str = param("opposite", choices=("opposite", "random"), doc="where the entries of the mean go")
    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="length of the row, in median honest norms")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        honest = honest_rows(view, self.name)
        mean = centre(honest)
        if self.order == "random":
            order = torch.randperm(len(mean), generator=generator, device=generator.device).to(mean.device)
            moved = mean[order]
        else:
            values, place = mean.sort(stable=True)
            moved = torch.empty_like(values).index_copy_(0, place, values.flip(0))
        norm = torch.linalg.vector_norm(honest, dim=1).quantile(0.5)
        own = torch.linalg.vector_norm(mean).clamp(min=torch.finfo(mean.dtype).tiny)
        return alike(moved * (self.scale * norm / own), view.f)


@register("clipped-clustering-adaptive", version=1)
@dataclass(frozen=True)
class ClippedClusteringAdaptive(Attack):
    """The attackers turn as far away from the honest direction as the honest cluster reaches, at an ordinary norm.

    A server that clips norms at their median and clusters by cosine distance (average linkage) sees directions only.
    With the mean ``ū`` of the honest unit vectors, any ``v = cos θ ū/‖ū‖ + sin θ w``, ``w ⊥ ū``, has the mean cosine
    ``cos θ ‖ū‖`` to the honest rows; ``cos θ = min_ij cos(x_i, x_j) / ‖ū‖`` (at least -1) puts it as far from their
    cluster as the two most different honest rows are from each other. ``w`` points along ``-s`` as in ``alie`` (if that
    is not along ``ū``, else away from the honest row that differs most); the length is the median honest norm. In one
    dimension there is no ``w`` and only ``cos θ`` times that length; where ``ū`` is zero, the mean itself is sent.
    Needs honest rows that disagree: identical ones leave ``θ = 0``.

    Args:
        scale: factor ≥ 0 of the median norm; 1 (default) is the most that is not clipped.

    Reference: the rule of Li, Ngai, Voigt, An Experimental Study of Byzantine-Robust Aggregation Schemes in Federated
    Learning, IEEE Transactions on Big Data 2024, arXiv:2302.07173; an adaptive attack on it is part of Li et al.,
    Blades: A Unified Benchmark Suite for Byzantine Attacks and Defenses in Federated Learning, IoTDI 2024,
    arXiv:2206.05359. Deviations: the closed form above instead of that suite's attack.

    >>> import robustfl
    >>> v = robustfl.forge("clipped-clustering-adaptive", torch.tensor([[2.0, 0.0], [0.0, 2.0]]), f=1)
    >>> (v.norm().round(), v.sum().abs() < 1e-6)  # honest rows at a right angle: so is this row to their mean
    (tensor(2.), tensor(True))
    """

    paper: ClassVar[str] = "@li2024blades"
    cost: ClassVar[str] = "h²d for the inner products"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "scale"

    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="length of the row, in median honest norms")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        honest = honest_rows(view, self.name)
        mean, std = centre_and_spread(honest, 1)
        norms = torch.linalg.vector_norm(honest, dim=1)
        units = honest / norms.clamp(min=torch.finfo(honest.dtype).tiny)[:, None]
        ahead = units.mean(0)
        length = float(torch.linalg.vector_norm(ahead))
        if length == 0.0:
            return alike(mean.clone(), view.f)
        ahead /= length
        cosine = min(max(float((units @ units.T).min()) / length, -1.0), 1.0)
        aside = _beside(ahead, -std, -units[(units @ ahead).argmin()])
        row = ahead * cosine + aside * math.sqrt(1.0 - cosine**2)
        return alike(row * (self.scale * norms.quantile(0.5)), view.f)


def _beside(ahead: Tensor, *candidates: Tensor) -> Tensor:
    """The part of the first candidate orthogonal to the unit vector ``ahead``, normalised; one along it has none."""
    for candidate in candidates:
        part = candidate - (candidate @ ahead) * ahead
        part -= (part @ ahead) * ahead
        norm = float(torch.linalg.vector_norm(part))
        if norm > math.sqrt(torch.finfo(part.dtype).eps) * float(torch.linalg.vector_norm(candidate)):
            return part / norm
    return torch.zeros_like(ahead)


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
