"""Auto-PGD towards the likeliest other classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from robustfl.parameters import param
from robustfl.registry import register

from .apgd import climb
from .balls import NORMS
from .image_draws import Draws
from .losses import targeted_dlr
from .points import Harvest, PixelAttack
from .targets import nearest_classes
from .whitebox import cross_entropy, logits_of


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
        for column, left, labels, own in harvest.tries(aims.shape[1] * self.restarts):
            goal = aims[harvest.rows, column % aims.shape[1]]
            run = climb(
                model, left, labels, goal, loss=_loss, eps=self.eps, norm=self.norm, steps=self.steps, draws=own
            )
            harvest.offer(run)
        return harvest.images


def _loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return targeted_dlr(logits, y, target) if logits.shape[1] >= 4 else -cross_entropy(logits, target)
