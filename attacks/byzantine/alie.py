"""A little is enough."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from torch import Tensor

from robustfl.contracts import ColumnAttack, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .sight import alike, centre_and_spread, honest_rows

_log = logging.getLogger(__name__)


def supporters(n: int, f: int) -> int:
    """The number of honest clients that the attackers must win for a majority, ``⌊n/2⌋ + 1 - f``, at least one.

    >>> supporters(10, 3)
    3
    """
    if not 0 <= f < n:
        raise UsageError(f"alie: f={f} attackers of n={n} clients; needs 0 ≤ f < n")
    return max(n // 2 + 1 - f, 1)


def z_max(n: int, f: int) -> float:
    """The largest shift that enough honest clients exceed, ``Φ⁻¹((n-f-q)/(n-f))``, ``q`` supporters; may be negative.

    >>> round(z_max(50, 24), 4)
    1.4261
    """
    share = (n - f - supporters(n, f)) / (n - f)
    return NormalDist().inv_cdf(share) if share > 0.0 else -math.inf


@register("alie", version=1)
@dataclass(frozen=True)
class ALIE(ColumnAttack):
    """The attackers shift every coordinate by what hides in the honest spread: ``ḡ - z s``.

    Grows with the honest variance, so momentum weakens it; for few attackers ``z_max`` is 0 and it does nothing
    (``n = 10, f ≤ 2``).

    Args:
        z: factor ≥ 0, or None (default) for ``max(z_max(n, f), 0)``.
        sign: -1 (default, as the paper) or +1.
        ddof: 1 (default) or 0: ``s`` divides by ``h - ddof``.

    Reference: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS
    2019, arXiv:1902.06156 (the attack that prevents convergence). Deviations: a negative ``z_max`` counts as 0, and
    attackers that are a majority already still look for one supporter. Released code differs in ``z`` and sign: Blades
    computes ``z_max`` as here, ByzFL fixes ``z = 1.5`` and adds, which is ``alie(z=1.5, sign=1)``; some count
    ``⌊n/2⌋ - f`` supporters, one fewer.

    >>> import robustfl, torch
    >>> robustfl.forge("alie", torch.tensor([[0.0], [2.0], [4.0]]), f=1, z=1.5)
    tensor([[-1.]])
    """

    paper: ClassVar[str] = "@baruch2019little"
    cost: ClassVar[str] = "3hd: mean and deviation"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "z"

    z: float | None = param(None, ge=0.0, lt=math.inf, doc="factor z; None for z_max(n, f), at least 0")
    sign: int = param(-1, ge=-1, le=1, doc="direction of the shift, -1 or 1")
    ddof: int = param(1, ge=0, le=1, doc="the standard deviation divides by h - ddof")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sign == 0:
            raise UsageError("ALIE: sign=0 must be -1 or 1")

    def factor(self, n: int, f: int) -> float:
        """The ``z`` in use among ``n`` clients with ``f`` attackers."""
        if self.z is not None:
            return self.z
        z = z_max(n, f)
        if z <= 0.0:
            _log.info("alie: z_max(n=%d, f=%d)=%.4g; z=0 is used and the attackers send the honest mean", n, f, z)
        return max(z, 0.0)

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return {"z_max": z_max(n, f), "z": self.factor(n, f)}

    def columns(self, view: View) -> Tensor:
        mean, std = centre_and_spread(honest_rows(view, self.name), self.ddof)
        return alike(mean.add(std, alpha=self.sign * self.factor(view.n, view.f)), view.f)
