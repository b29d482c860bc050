"""The targeted Fast Adaptive Boundary attack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.gradients import channels_last
from robustfl.parameters import param
from robustfl.registry import register

from .balls import NORMS, Draws, into_ball, lengths, noise_on
from .losses import margin, nearest_classes
from .points import Harvest, PixelAttack
from .whitebox import gradient_of, logits_of, per_image, take

_FINAL_SEARCH = 3
_SHORT_OF = 0.999  # a whole secant ends on the boundary of a linear model, and rounding decides on which side of it


@register("fab-t", version=1)
@dataclass(frozen=True)
class FABT(PixelAttack):
    """Looks for the nearest misclassified image, one class after the other; one that lies within ε counts:

    ``x ← clip_[0,1]((1 - a)(x + ηδ) + a(x_0 + ηδ_0))``, ``a = min(‖δ‖ / (‖δ‖ + ‖δ_0‖), a_max)``,

    where δ and δ_0 lead from x and from the image x_0 to the linearised boundary with the class, within the box. A
    misclassified x is pulled back, ``x ← (1 - β)x_0 + βx``. Misled by masked gradients; the loss it minimises is a
    distance, so it does not care how logits are scaled. Images that resist come back on their way to the nearest
    misclassified point, as far as the ball goes.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255.
        norm: ``linf``, or ``l2``, where ε is a Euclidean length over all pixels.
        steps: iterations ≥ 1 per class; 100.
        targets: classes ≥ 1 aimed at, at most all others, likeliest first; 9.
        restarts: starts ≥ 1 per class; the first is the image, the others lie ε/2 away from it; 1.
        alpha_max: greatest a, in [0, 1]; 0.1.
        eta: overshoot η ≥ 1; 1.05.
        beta: share β in (0, 1) that is left of a move when pulled back; 0.9.

    Reference: Croce, Hein, Minimally Distorted Adversarial Examples with a Fast Adaptive Boundary Attack, ICML 2020,
    arXiv:1907.02044, Algorithm 1; targeted as in Croce, Hein, Reliable Evaluation of Adversarial Robustness with an
    Ensemble of Diverse Parameter-free Attacks, ICML 2020, arXiv:2003.01690. Deviation: an image is done soon after the
    first misclassified point within ε, since what lies nearer changes nothing.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> FABT(eps=0.3).perturb(model, torch.tensor([[0.75, 0.25]]), torch.tensor([0])).round(decimals=2)
    tensor([[0.5000, 0.5000]])
    """

    paper: ClassVar[str] = "@croce2020minimally"
    cost: ClassVar[str] = "restarts × classes × steps forwards and two backwards"

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    steps: int = param(100, ge=1, doc="iterations per class")
    targets: int = param(9, ge=1, doc="classes aimed at")
    restarts: int = param(1, ge=1, doc="starts per class")
    alpha_max: float = param(0.1, ge=0.0, le=1.0, doc="greatest share of the way seen from the image")
    eta: float = param(1.05, ge=1.0, lt=math.inf, doc="overshoot")
    beta: float = param(0.9, gt=0.0, lt=1.0, doc="what is left of a move when pulled back")

    @property
    def passes(self) -> int:
        return (4 * self.steps + _FINAL_SEARCH + 2) * self.targets * self.restarts + 1

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        aims = nearest_classes(logits_of(model, x), y, self.targets)
        harvest = Harvest(model, x, y, draws)
        for restart, left, labels, goal, own in harvest.aimed(aims, self.restarts):
            start = left
            if restart:
                start = (left + noise_on(own, left, self.eps / 2, self.norm)).clamp(0.0, 1.0)
            nearest = self._towards(model, left, labels, goal, start)
            within = lengths(nearest - left, self.norm) <= self.eps
            # What lies outside comes as near as the ball allows, which is the best there is if nothing is found.
            nearest = torch.where(nearest < torch.inf, nearest, left)
            harvest.offer(torch.where(per_image(within, left), nearest, into_ball(left, nearest, self.eps, self.norm)))
        return harvest.images

    def _towards(self, model: nn.Module, x: Tensor, y: Tensor, goal: Tensor, start: Tensor) -> Tensor:
        """The nearest misclassified point found, images without one far outside of any ball."""
        nearest, place = torch.full_like(x, torch.inf), torch.arange(len(x), device=x.device)
        origin, current = x, start
        best, reach = torch.full_like(x, torch.inf), torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        for k in range(self.steps):
            current = self._step(model, origin, current, y, goal)
            fooled = logits_of(model, current).argmax(1) != y
            far = lengths(current - origin, self.norm)
            closer = fooled & (far < reach)
            best, reach = torch.where(per_image(closer, x), current, best), torch.where(closer, far, reach)
            current = torch.where(per_image(fooled, x), origin + self.beta * (current - origin), current)
            if k % 5 == 4 and bool((reach <= self.eps).any()):
                nearest[place] = best
                on = torch.nonzero(reach > self.eps).flatten()
                place, y, goal, reach = place[on], y[on], goal[on], reach[on]
                origin, current, best = take(origin, on), take(current, on), take(best, on)
                if not len(on):
                    return nearest
        seen = torch.nonzero(reach < torch.inf).flatten()
        best[seen] = _final_search(model, take(origin, seen), take(best, seen), y[seen])
        nearest[place] = best
        return nearest

    def _step(self, model: nn.Module, origin: Tensor, current: Tensor, y: Tensor, goal: Tensor) -> Tensor:
        normal, value, _ = gradient_of(model, current, lambda z: _lead(z, y, goal))
        w, here, there = normal.flatten(1), current.flatten(1), origin.flatten(1)
        at_origin = value + (w * (there - here)).sum(1)
        moves = project(torch.cat([here, there]), w.repeat(2, 1), torch.cat([value, at_origin]), self.norm)
        near, far = moves.chunk(2)
        a, b = lengths(near, self.norm), lengths(far, self.norm)
        share = (a / torch.where(a + b > 0, a + b, 1.0)).clamp_max(self.alpha_max)[:, None]
        moved = (1 - share) * (here + self.eta * near) + share * (there + self.eta * far)
        return channels_last(moved.clamp_(0.0, 1.0).view(current.shape))


def _lead(logits: Tensor, y: Tensor, goal: Tensor) -> Tensor:
    """``z_t - z_y`` of each sample: positive beyond the boundary."""
    return (logits.gather(1, goal[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def _final_search(model: nn.Module, x: Tensor, found: Tensor, y: Tensor) -> Tensor:
    """Misclassified points brought nearer to the boundary on the way to the images, by three secant steps."""
    inner, outer = x, found
    if not len(x):
        return found
    at_inner, at_outer = margin(logits_of(model, inner), y), margin(logits_of(model, outer), y)
    for _ in range(_FINAL_SEARCH):
        share = at_outer / torch.where(at_outer < at_inner, at_outer - at_inner, -1.0)
        middle = channels_last(outer + per_image(_SHORT_OF * share.clamp(0.0, 1.0), x) * (inner - outer))
        at_middle = margin(logits_of(model, middle), y)
        beyond = at_middle < 0
        mask = per_image(beyond, x)
        outer, at_outer = torch.where(mask, middle, outer), torch.where(beyond, at_middle, at_outer)
        inner, at_inner = torch.where(mask, inner, middle), torch.where(beyond, at_inner, at_middle)
    return outer


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
