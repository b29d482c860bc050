"""FixBN: ordinary batch normalization first, frozen server statistics afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from robustfl.norms.merging import AveragedNorm
from robustfl.parameters import param
from robustfl.registry import register


@register("fixbn", version=1)
@dataclass(frozen=True)
class FixBN(AveragedNorm):
    """Naive batch normalization until round ``⌊T·switch⌋``, then the averaged statistics are frozen.

    Before: ``m⁺ = F(m_i)``, ``v⁺ = F(v_i)``; after: training normalises with ``(m, v)`` and nothing is reported.
    The frozen variance misses the between-client term, which hurts most when clients share no labels.

    ``switch`` in [0, 1] is the fraction of the rounds after which statistics are fixed (½ in Guerraoui et al., 2024);
    ``momentum`` in (0, 1] and ``eps`` > 0 are torch's.

    >>> norm = FixBN(switch=0.5)
    >>> norm.frozen(1499, 3000), norm.frozen(1500, 3000)
    (False, True)

    Notes: only normalization layers are fixed, dropout stays on; scale and shift keep training.
    """

    paper: ClassVar[str] = "@zhong2023making"
    cost: ClassVar[str] = "2C numbers per layer and round each way until the statistics are fixed"

    switch: float = param(0.5, ge=0, le=1, doc="fraction of the rounds after which statistics are frozen")
    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def frozen(self, round: int, rounds: int) -> bool:
        """True if ``round`` (from 0) lies in the second phase; a product like 100 · 0.29 counts as 29."""
        return round >= math.floor(rounds * self.switch + 1e-9)
