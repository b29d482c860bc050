"""The fast gradient sign method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from robustfl.parameters import param
from robustfl.registry import register

from .balls import NORMS, directions, into_ball
from .image_draws import Draws
from .targets import Aimed
from .whitebox import input_gradient


@register("fgsm", version=1)
@dataclass(frozen=True)
class FGSM(Aimed):
    """One step of size ε from the image itself: ``x_adv = clip_[0,1](x + ε sign ∇_x CE)``; for L2 ``∇ / ‖∇‖₂``.

    Weak against models trained to resist it alone, whose loss is curved inside the ball; a zero gradient moves
    nothing (sign 0 = 0).

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255 as in Hong et al. 2023.
        norm: ``linf``, or ``l2``, where ε is a Euclidean length over all pixels.
        targeted: go down the cross-entropy of another class; images of that class stay as they are.
        target: that class, or None for each image's least likely other one.
        legacy_digits_clip: the threat model of the Digits code released with Hong et al.: images as 2x - 1, clipped to
            [0, 1]. Black jumps to mid-grey and ε is halved, so x_adv may leave the ball.

    Reference: Goodfellow, Shlens, Szegedy, Explaining and Harnessing Adversarial Examples, ICLR 2015, arXiv:1412.6572,
    Section 4.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> FGSM(eps=0.1).perturb(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor([[0.4000, 0.6000]])
    """

    paper: ClassVar[str] = "@goodfellow2015explaining"
    cost: ClassVar[str] = "1 forward and backward"
    passes: ClassVar[int] = 3

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    targeted: bool = param(False, doc="towards a class instead of away from the label")
    target: int | None = param(None, ge=0, doc="class aimed at; None: the least likely other one")
    legacy_digits_clip: bool = param(False, doc="attack 2x - 1 clipped to [0, 1] (released Digits code)")

    def moved(self, model: nn.Module, x: Tensor, goal: Tensor, draws: Draws) -> Tensor:
        del draws
        low, high, scale = self.box
        gradient, _ = input_gradient(model, x, goal)
        step = directions(gradient, self.norm) * (-self.eps if self.targeted else self.eps) * scale
        # In exact arithmetic a Euclidean step of length ε needs no projection.
        found = (x + step).clamp(low, high)
        return found if self.norm == "linf" else into_ball(x, found, self.eps, self.norm)
