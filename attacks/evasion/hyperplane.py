"""The nearest point of a hyperplane within the box of pixels, which FAB asks for at every step."""

from __future__ import annotations

import torch
from torch import Tensor


def project(points: Tensor, normal: Tensor, value: Tensor, norm: str) -> Tensor:
    """The smallest move ``δ [b d]`` with ``⟨w, δ⟩ = -value`` and ``points + δ`` in [0, 1].

    ``normal`` holds ``w [b d]``, ``value [b]`` what the hyperplane's equation gives at the points. Where the box does
    not reach the hyperplane, δ goes to the corner that comes nearest to it.

    Every entry moves against ``value`` at a speed, 1 (L∞) or ``|w_i|`` (L2), until it meets the border of the box. What
    is gained grows as a concave, piecewise linear function of time, whose knots are the times at which entries stop;
    the right time lies between two of the sorted knots.

    >>> project(torch.tensor([[0.5, 0.9]]), torch.tensor([[1.0, 1.0]]), torch.tensor([-0.5]), "linf")
    tensor([[0.4000, 0.1000]])
    """
    up = torch.where(value[:, None] < 0, normal, -normal)
    weight, wanted = up.abs(), value.abs()
    room = torch.where(up > 0, 1 - points, points).clamp_min(0.0)
    speed = (weight > 0).to(weight.dtype) if norm == "linf" else weight
    # An entry that does not move stops at once, having gained nothing.
    stop = torch.where(weight > 0, room / torch.where(weight > 0, speed, 1.0), 0.0)
    knots, order = stop.sort(dim=1)
    # Sums of thousands of terms of which differences are taken: in float64.
    stopped = (weight * room).gather(1, order).cumsum(1, dtype=torch.float64)
    rates = (weight * speed).gather(1, order).double()
    rate = rates.flip(1).cumsum(1).flip(1)  # of those that have not stopped before this knot
    gained = stopped + knots * (rate - rates)
    # The first knot that gains enough ends the piece on which the wanted gain is met.
    k = torch.searchsorted(gained, wanted[:, None].double()).clamp_max(knots.shape[1] - 1)
    before = (k - 1).clamp_min(0)
    start = torch.where(k > 0, knots.gather(1, before), 0.0)
    had = torch.where(k > 0, gained.gather(1, before), 0.0)
    on_piece = rate.gather(1, k)
    time = start + ((wanted[:, None] - had).clamp_min(0.0) / torch.where(on_piece > 0, on_piece, 1.0)).to(points.dtype)
    time = torch.minimum(time, knots.gather(1, k))
    return up.sign() * torch.minimum(time * speed, room)
