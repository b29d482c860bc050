"""Auto-PGD, on cross-entropy and on the targeted DLR loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.gradients import channels_last
from robustfl.parameters import param
from robustfl.registry import register

from .balls import NORMS, Draws, directions, into_ball, noise_on
from .losses import nearest_classes, targeted_dlr
from .points import Harvest, PixelAttack
from .whitebox import cross_entropy, gradient_of, logits_of, per_image, take

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Losses ``[b]`` of logits ``[b c]``, labels ``[b]`` and classes aimed at ``[b]``."""

_MOMENTUM = 0.75
_PROGRESS = 0.75
_LEAVE_EVERY = 5  # iterations; dropping fooled images at once would wait for the device every time


def relative_checkpoints() -> list[float]:
    """Where the step size is reconsidered, as shares of the iterations.

    ``p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)`` from 0 and 0.22.

    >>> relative_checkpoints()
    [0.0, 0.22, 0.41, 0.57, 0.7, 0.8, 0.87, 0.93, 0.99]
    """
    return [percent / 100 for percent in _percents()]


def checkpoints(steps: int) -> list[int]:
    """Those iterations ``⌈p_j n⌉`` themselves, the first being 0.

    >>> checkpoints(100)
    [0, 22, 41, 57, 70, 80, 87, 93, 99]
    """
    return sorted({-(-percent * steps // 100) for percent in _percents()})


def _percents() -> list[int]:
    found = [0, 22]
    while (following := found[-1] + max(found[-1] - found[-2] - 3, 6)) < 100:
        found.append(following)
    return found


@dataclass
class _Climb:
    """Images on their way, one row each; ``place`` says where they stood at the start."""

    place: Tensor
    origin: Tensor
    y: Tensor
    target: Tensor
    current: Tensor
    before: Tensor
    gradient: Tensor
    loss: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    best_at_checkpoint: Tensor
    step: Tensor
    rises: Tensor
    halved: Tensor
    fooled: Tensor

    def rows(self, chosen: Tensor) -> _Climb:
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _Climb(**{name: take(t, chosen) if t.dim() == 4 else t[chosen] for name, t in parts.items()})

    def accept(self, moved: Tensor, gradient: Tensor, loss: Tensor, hit: Tensor) -> None:
        """The next iterate: whether it is the best so far, as the first misclassified one is for good."""
        self.rises += loss > self.loss
        self.before, self.current, self.gradient, self.loss = self.current, moved, gradient, loss
        better = ~self.fooled & (hit | (loss > self.best_loss))
        mask = per_image(better, moved)
        self.best = torch.where(mask, moved, self.best)
        self.best_gradient = torch.where(mask, gradient, self.best_gradient)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.fooled = self.fooled | hit

    def reconsider(self, since: int) -> None:
        """At a checkpoint: halve the step where it went badly, and go on from the best iterate there.

        Badly: the loss rose in fewer than 75 % of the ``since`` iterations, or the best did not change although the
        step was not halved at the last checkpoint.
        """
        stuck = ~self.halved & (self.best_loss <= self.best_at_checkpoint)
        self.halved = (self.rises < _PROGRESS * since) | stuck
        self.step = torch.where(self.halved, self.step / 2, self.step)
        mask = per_image(self.halved, self.current)
        self.current = torch.where(mask, self.best, self.current)
        self.gradient = torch.where(mask, self.best_gradient, self.gradient)
        self.loss = torch.where(self.halved, self.best_loss, self.loss)
        self.best_at_checkpoint, self.rises = self.best_loss.clone(), torch.zeros_like(self.rises)


def climb(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    target: Tensor,
    *,
    loss: Loss,
    eps: float,
    norm: str,
    steps: int,
    draws: Draws,
) -> Tensor:
    """One run from a random point on the border of the ball: a misclassified iterate, else that of the highest loss."""
    found = x.clone()
    now = _begin(model, x, y, target, loss, eps, norm, draws)
    halts = checkpoints(steps)
    for k in range(1, steps + 1):
        if k % _LEAVE_EVERY == 1 and bool(now.fooled.any()):
            found[now.place] = now.best
            now = now.rows(torch.nonzero(~now.fooled).flatten())
            if not len(now.place):
                return found
        moved = _step(now, eps, norm, momentum=_MOMENTUM if k > 1 else 1.0)
        gradient, losses, logits = gradient_of(model, moved, partial(_losses, loss, now.y, now.target))
        now.accept(moved, gradient, losses, logits.argmax(1) != now.y)
        if k in halts:
            now.reconsider(k - halts[halts.index(k) - 1])
    found[now.place] = now.best
    return found


def _losses(loss: Loss, y: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    return loss(logits, y, target)


def _begin(
    model: nn.Module, x: Tensor, y: Tensor, target: Tensor, loss: Loss, eps: float, norm: str, draws: Draws
) -> _Climb:
    start = channels_last(into_ball(x, x + noise_on(draws, x, eps, norm), eps, norm))
    gradient, losses, logits = gradient_of(model, start, partial(_losses, loss, y, target))
    return _Climb(
        place=torch.arange(len(x), device=x.device), origin=x, y=y, target=target, current=start, before=start,
        gradient=gradient, loss=losses, best=start, best_gradient=gradient, best_loss=losses, best_at_checkpoint=losses,
        step=torch.full_like(losses, 2 * eps), rises=torch.zeros_like(y), halved=torch.zeros_like(y, dtype=torch.bool),
        fooled=logits.argmax(1) != y,
    )  # fmt: skip


def _step(now: _Climb, eps: float, norm: str, *, momentum: float) -> Tensor:
    """``x + a (P(x + η s) - x) + (1 - a)(x - x_before)``, projected, ``s`` the steepest direction."""
    x = now.current
    forward = into_ball(now.origin, x + per_image(now.step, x) * directions(now.gradient, norm), eps, norm)
    moved = x + momentum * (forward - x) + (1 - momentum) * (x - now.before)
    return into_ball(now.origin, moved, eps, norm)


@register("apgd-ce", version=1)
@dataclass(frozen=True)
class APGDCE(PixelAttack):
    """PGD with momentum that halves its step and goes back to its best iterate where progress stalls:

    ``z = P(x_k + η s)``, ``x_{k+1} = P(x_k + ¾ (z - x_k) + ¼ (x_k - x_{k-1}))``, ``s = sign ∇CE`` (L2: ``∇ / ‖∇‖₂``).

    η starts at 2ε and is reconsidered at the checkpoints 22 %, 41 %, 57 %, ... of the iterations, image by image. Stops
    at an image's first misclassified iterate. The cross-entropy vanishes for very confident models: see ``apgd-t``.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255 as in the paper.
        norm: ``linf``, or ``l2``, where ε is a Euclidean length over all pixels.
        steps: iterations ≥ 1; 100.
        restarts: random starts ≥ 1 for images that resist; 1.

    Reference: Croce, Hein, Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks, ICML 2020, arXiv:2003.01690, Algorithm 1.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> APGDCE(eps=0.125, steps=5).perturb(model, torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    tensor([[0.6250, 0.3750]])
    """

    paper: ClassVar[str] = "@croce2020reliable"
    cost: ClassVar[str] = "restarts × (steps + 1) forwards and backwards"

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    steps: int = param(100, ge=1, doc="iterations")
    restarts: int = param(1, ge=1, doc="random starts")

    @property
    def passes(self) -> int:
        return (3 * (self.steps + 1) + 1) * self.restarts

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        harvest = Harvest(model, x, y, draws)
        for _, left, labels, own in harvest.tries(self.restarts):
            run = climb(
                model, left, labels, labels, loss=lambda z, y, _: cross_entropy(z, y), eps=self.eps, norm=self.norm,
                steps=self.steps, draws=own,
            )  # fmt: skip
            harvest.offer(run)
        return harvest.images


@register("apgd-t", version=1)
@dataclass(frozen=True)
class APGDT(PixelAttack):
    """``apgd-ce`` with another loss, towards one class after the other, likeliest first:

    ``-(z_y - z_t) / (z_(1) - ½(z_(3) + z_(4)))`` of the logits, ``z_(1)`` the largest.

    The loss does not change when logits are scaled, so confident models are no harder. With fewer than four classes
    there is no such ratio and the cross-entropy of the class aimed at is lowered. Nine times the work of ``apgd-ce``.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255 as in the paper.
        norm: ``linf``, or ``l2``, where ε is a Euclidean length over all pixels.
        steps: iterations ≥ 1 per class; 100.
        targets: classes ≥ 1 aimed at, at most all others; 9.
        restarts: random starts ≥ 1 per class for images that resist; 1.

    Reference: Croce, Hein, Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks, ICML 2020, arXiv:2003.01690, equation 7 and Algorithm 1.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> APGDT(eps=0.125, steps=5).perturb(model, torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    tensor([[0.6250, 0.3750]])
    """

    paper: ClassVar[str] = "@croce2020reliable"
    cost: ClassVar[str] = "restarts × classes × (steps + 1) forwards and backwards"

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    steps: int = param(100, ge=1, doc="iterations per class")
    targets: int = param(9, ge=1, doc="classes aimed at")
    restarts: int = param(1, ge=1, doc="random starts per class")

    @property
    def passes(self) -> int:
        return (3 * (self.steps + 1) + 1) * self.targets * self.restarts + 1

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        aims = nearest_classes(logits_of(model, x), y, self.targets)
        harvest = Harvest(model, x, y, draws)
        for _, left, labels, goal, own in harvest.aimed(aims, self.restarts):
            run = climb(
                model, left, labels, goal, loss=_loss, eps=self.eps, norm=self.norm, steps=self.steps, draws=own
            )
            harvest.offer(run)
        return harvest.images


def _loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return targeted_dlr(logits, y, target) if logits.shape[1] >= 4 else -cross_entropy(logits, target)
