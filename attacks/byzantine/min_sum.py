"""Min-sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.parameters import check, only_where, param
from robustfl.registry import register

from .deviation import DIRECTIONS, bounds
from .sight import alike, honest_rows


@register("min-sum", version=1)
@dataclass(frozen=True)
class MinSum(Attack):
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

    paper: ClassVar[str] = "@shejwalkar2021manipulating"
    cost: ClassVar[str] = "h²d for the inner products, closed form"
    knowledge: ClassVar[Knowledge] = "omniscient"

    deviation: str = param("std", choices=DIRECTIONS, doc="direction p of ḡ + γp: -ḡ/‖ḡ‖, -s or -sign ḡ")
    ddof: int = param(1, ge=0, le=1, doc="s divides by h - ddof, for which γ makes up")
    bound: str = param("max", choices=("max", "min"), doc="which honest row's sum bounds the forged one's", later=True)

    def __post_init__(self) -> None:
        check(self)
        only_where(self, self.deviation == "std", "deviation=std", "ddof")

    def solve(self, view: View) -> tuple[float, Tensor]:
        """The factor ``γ`` and the vector ``[d]`` to send."""
        b = bounds(honest_rows(view, self.name), self.deviation, self.ddof)
        if b.length == 0.0:
            return 0.0, b.mean.clone()
        sums = b.pairs.sum(1)
        spare = max(0.0, float((sums.max() if self.bound == "max" else sums.min()) - b.square.sum()))
        gamma = math.sqrt(spare / (len(b.square) * b.length))
        return gamma, b.mean.add(b.direction, alpha=gamma)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return alike(self.solve(view)[1], view.f)
