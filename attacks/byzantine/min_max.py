"""Min-max."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import check, only_where, param
from robustfl.registry import register

from .deviation import DIRECTIONS, bounds
from .sight import alike, honest_rows


@register("min-max", version=1)
@dataclass(frozen=True)
class MinMax(Attack):
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

    paper: ClassVar[str] = "@shejwalkar2021manipulating"
    cost: ClassVar[str] = "h²d for the inner products, closed form"
    knowledge: ClassVar[Knowledge] = "omniscient"

    deviation: str = param("std", choices=DIRECTIONS, doc="direction p of ḡ + γp: -ḡ/‖ḡ‖, -s or -sign ḡ")
    ddof: int = param(1, ge=0, le=1, doc="s divides by h - ddof, for which γ makes up")

    def __post_init__(self) -> None:
        check(self)
        only_where(self, self.deviation == "std", "deviation=std", "ddof")

    def solve(self, view: View) -> tuple[float, Tensor]:
        """The factor ``γ`` and the vector ``[d]`` to send."""
        b = bounds(honest_rows(view, self.name), self.deviation, self.ddof)
        if b.length == 0.0:
            return 0.0, b.mean.clone()
        short = (b.pairs.max() - b.square).clamp(min=0.0)  # -c_i
        root = (b.along.square() + b.length * short).sqrt()
        # Both are the larger root of the quadratic; each is free of cancellation on its side.
        right = short / (b.along + root).clamp(min=torch.finfo(torch.float64).tiny)
        gamma = float(torch.where(b.along > 0, right, (root - b.along) / b.length).min())
        return gamma, b.mean.add(b.direction, alpha=gamma)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return alike(self.solve(view)[1], view.f)
