"""Minimum of a Huber loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import MajorityRule, Mixed, nearest_row

# A step so short, in radii, is the last.
_SHORT = 1e-12


@register("huber", version=2)
@dataclass(frozen=True)
class HuberLoss(MajorityRule):
    """The point with the least sum of Huber losses: a mean of the near rows that far rows pull with constant force.

        F(X) = argmin_s Σ φ(‖s - x_i‖),   φ(u) = u²/2 for u ≤ T,   T u - T²/2 beyond

    by ``s ← Σ c_i x_i / Σ c_i``, ``c_i = min(1, T / ‖s - x_i‖)``, from a row amid the others until it stays.
    A large ``T`` is the mean, a small one the geometric median; ``f`` far rows move it by at most about
    ``T f / (n - 2f)``.

    Args: ``T`` > 0, a length, or None (default) for the median distance between two rows; ``max_steps`` ≥ 1 (100).

    >>> import robustfl
    >>> robustfl.defense("huber(T=1)")(torch.tensor([[0.0], [0.0], [0.0], [90.0]]), f=1).round(decimals=4)
    tensor([0.3333])

    Reference: the aggregator of the paper below, for clients that count alike. Notes: the paper gives each
    client a radius ``T_i`` that falls with its number of samples, from constants to be tuned; the default radius here
    is ours. It is found once, so that the objective stays convex.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@zhao2024huber"
    cost: ClassVar[str] = "n²d for the inner products, n² per step, one sum"
    on_host: ClassVar[str] = "stops once a step is short"

    T: float | None = param(None, gt=0, doc="radius within which rows count fully; None for the median distance")
    max_steps: int = param(100, ge=1, doc="most steps")

    @property
    def isometric(self) -> bool:
        return self.T is None

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f, context
        products, m = rows.products()[:-1, :-1], rows.count
        radius = self.T if self.T is not None else _median_distance(rows.squared_distances())
        square, place = products.diagonal(), torch.zeros(m, dtype=torch.float64)
        place[nearest_row(rows.squared_distances())] = 1.0
        steps = 0
        for steps in range(1, self.max_steps + 1):  # noqa: B007 - reported
            along = products @ place
            distance = (square - 2 * along + place @ along).clamp_(min=0).sqrt_()
            share = (radius / distance.clamp(min=1e-300)).clamp_(max=1)
            new = share / share.sum() if float(share.sum()) > 0 else place
            change, place = new - place, new
            if float((change @ products @ change).clamp(min=0).sqrt()) <= _SHORT * radius:
                break
        return Aggregated(rows.combine(place), facts={"steps": steps, "radius": radius})


def _median_distance(squares: Tensor) -> float:
    n = len(squares)
    if n < 2:
        return 1.0
    pairs = torch.triu_indices(n, n, offset=1)
    return float(squares[pairs[0], pairs[1]].clamp(min=0).sqrt().quantile(0.5))
