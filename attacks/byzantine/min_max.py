"""Min-max and min-sum."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.kernels import centred_gram, squared_distances
from robustfl.parameters import only_where, param
from robustfl.registry import register

from .sight import alike, centre_and_spread, honest_rows, unit

_DIRECTIONS = ("unit_vec", "std", "sign")


@dataclass(frozen=True)
class Bounds:
    """``mean [d]`` and ``direction [d]`` of ``ḡ + γp``; numbers in float64 on the CPU.

    ``length`` is ``‖p‖²``, ``along [h]`` are ``(ḡ-x_i)·p``, ``square [h]`` are ``‖ḡ-x_i‖²``, ``pairs [h h]`` are
    ``‖x_i-x_j‖²``.
    """

    mean: Tensor
    direction: Tensor
    length: float
    along: Tensor
    square: Tensor
    pairs: Tensor


def bounds(honest: Tensor, deviation: str, ddof: int) -> Bounds:
    """The mean, the direction ``deviation`` and all that the closed forms need, without a copy of the rows."""
    h = honest.shape[0]
    mean, std = centre_and_spread(honest, ddof)
    direction = {"std": -std, "sign": -torch.sign(mean), "unit_vec": -unit(mean)}[deviation]
    exact = direction.double()
    along, square = torch.zeros(h, dtype=torch.float64), torch.zeros(h, dtype=torch.float64)
    for i, row in enumerate(honest):
        away = mean.double() - row
        along[i], square[i] = away @ exact, away @ away
    pairs = squared_distances(centred_gram(honest).products)[:h, :h]
    return Bounds(mean, direction, float(exact @ exact), along, square, pairs)


@dataclass(frozen=True)
class _Deviation(Attack):
    paper: ClassVar[str] = "@shejwalkar2021manipulating"
    cost: ClassVar[str] = "h²d for the inner products, closed form"
    knowledge: ClassVar[Knowledge] = "omniscient"

    deviation: str = param("std", choices=_DIRECTIONS, doc="direction p of ḡ + γp: -ḡ/‖ḡ‖, -s or -sign ḡ")
    ddof: int = param(1, ge=0, le=1, doc="s divides by h - ddof, for which γ makes up")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.deviation == "std", "deviation=std", "ddof")

    @abstractmethod
    def fits(self, row: Tensor, honest: Tensor) -> bool:
        """True if the row is no farther from the honest rows than the attack allows."""

    def reference_row(self, view: View) -> Tensor:
        """The paper's search: ``γ`` is doubled while the row fits, then halved in."""
        honest = honest_rows(view, self.name)
        b, low, high = bounds(honest, self.deviation, self.ddof), 0.0, 1.0
        while self.fits(b.mean + high * b.direction, honest) and high < 1e9:
            low, high = high, 2 * high
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self.fits(b.mean + middle * b.direction, honest) else (low, middle)
        return b.mean + low * b.direction

    @abstractmethod
    def factor(self, b: Bounds) -> float:
        """The largest ``γ`` that the bounds let."""

    def solve(self, view: View) -> tuple[float, Tensor]:
        """The factor ``γ`` and the vector ``[d]`` to send."""
        b = bounds(honest_rows(view, self.name), self.deviation, self.ddof)
        if b.length == 0.0:
            return 0.0, b.mean.clone()
        gamma = self.factor(b)
        return gamma, b.mean.add(b.direction, alpha=gamma)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        return alike(self.solve(view)[1], view.f)


@register("min-max", version=1)
@dataclass(frozen=True)
class MinMax(_Deviation):
    """The attackers send ``ḡ + γp``, as far as no honest row is farther away than two honest rows from each other.

    The largest ``γ`` with ``max_i ‖ḡ + γp - x_i‖ ≤ R = max_ij ‖x_i - x_j‖`` is, exactly,
    ``γ = min_i (-b_i + √(b_i² - ‖p‖² c_i)) / ‖p‖²``, ``b_i = (ḡ - x_i)·p``, ``c_i = ‖ḡ - x_i‖² - R²``.

    Does little where honest rows are close together, as with large batches or momentum.

    Args:
        deviation: direction ``p``: ``std`` is ``-s`` (default, the paper's strongest on most tasks), ``unit_vec``
            ``-ḡ/‖ḡ‖``, ``sign`` ``-sign ḡ``.
        ddof: 1 (default) or 0: ``s`` divides by ``h - ddof``. It changes the length of ``p`` alone, for which γ, the
            largest, makes up: what is sent is the same.

    Reference: Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning, NDSS 2021 (no arXiv version; its min-max attack). Deviations: γ in closed form, of which its
    halving search finds a lower bound.

    >>> import robustfl
    >>> robustfl.forge("min-max", torch.tensor([[0.0], [2.0], [4.0]]), f=1)
    tensor([[0.]])
    """

    def fits(self, row: Tensor, honest: Tensor) -> bool:
        return bool(torch.linalg.vector_norm(honest - row, dim=1).max() <= torch.pdist(honest).max())

    def factor(self, b: Bounds) -> float:
        short = (b.pairs.max() - b.square).clamp(min=0.0)  # -c_i
        root = (b.along.square() + b.length * short).sqrt()
        # Both are the larger root of the quadratic; each is free of cancellation on its side.
        right = short / (b.along + root).clamp(min=torch.finfo(torch.float64).tiny)
        return float(torch.where(b.along > 0, right, (root - b.along) / b.length).min())


@register("min-sum", version=1)
@dataclass(frozen=True)
class MinSum(_Deviation):
    """The attackers send ``ḡ + γp``, as far as its squared distances sum to no more than some honest row's.

    The largest ``γ`` with ``Σ_i ‖ḡ + γp - x_i‖² ≤ B = max_i Σ_j ‖x_i - x_j‖²`` is, exactly,
    ``γ = √((B - Σ_i ‖x_i - ḡ‖²) / (h ‖p‖²))``.

    Closer to the honest rows than ``min-max`` in most rounds, and harder to tell from them; weak under momentum.

    Args:
        deviation: direction ``p``: ``std`` is ``-s`` (default, the paper's strongest on most tasks), ``unit_vec``
            ``-ḡ/‖ḡ‖``, ``sign`` ``-sign ḡ``.
        ddof: 1 (default) or 0: ``s`` divides by ``h - ddof``. It changes the length of ``p`` alone, for which γ, the
            largest, makes up: what is sent is the same.
        bound: ``max`` (default): ``B`` as above, the paper's; ``min``: the least of the honest sums, as in the code the
            paper's authors released and those that follow it, which moves less far.

    Reference: Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning, NDSS 2021 (no arXiv version; its min-sum attack). Deviations: γ in closed form, of which its
    halving search finds a lower bound.

    >>> import robustfl
    >>> robustfl.forge("min-sum", torch.tensor([[0.0], [2.0], [4.0]]), f=1)
    tensor([[0.]])
    """

    bound: str = param("max", choices=("max", "min"), doc="which honest row's sum bounds the forged one's")

    def fits(self, row: Tensor, honest: Tensor) -> bool:
        sums = (honest[:, None] - honest).square().sum((1, 2))
        return bool((honest - row).square().sum() <= (sums.max() if self.bound == "max" else sums.min()))

    def factor(self, b: Bounds) -> float:
        sums = b.pairs.sum(1)
        spare = max(0.0, float((sums.max() if self.bound == "max" else sums.min()) - b.square.sum()))
        return math.sqrt(spare / (len(b.square) * b.length))
