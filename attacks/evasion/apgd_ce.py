"""Auto-PGD on the cross-entropy."""

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
from .points import Harvest, PixelAttack
from .whitebox import cross_entropy


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
