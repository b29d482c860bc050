"""The fast gradient sign method (SPEC §5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Evasion
from robustfl.parameters import param
from robustfl.registry import register

from .whitebox import check_pixels, frozen, input_gradient


@register("fgsm", version=1)
@dataclass(frozen=True)
class FGSM(Evasion):
    """One step of size ε from the image itself: ``x_adv = clip_[0,1](x + ε sign ∇_x CE)``.

    Weak against models trained to resist it alone, whose loss is curved inside the ball; a zero gradient moves
    nothing (sign 0 = 0).

    Args:
        eps: radius ε ≥ 0 of the L∞ ball in pixel units of [0, 1]; 8/255 as in Hong et al. 2023.

    Reference: Goodfellow et al., Explaining and Harnessing Adversarial Examples, ICLR 2015, arXiv 1412.6572, Section 4.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> FGSM(eps=0.1).perturb(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor([[0.4000, 0.6000]])
    """

    paper: ClassVar[str] = (
        "Goodfellow et al., Explaining and Harnessing Adversarial Examples, ICLR 2015, arXiv 1412.6572"
    )
    spec: ClassVar[str] = "§5.2"

    eps: float = param(8 / 255, ge=0.0, doc="radius of the L∞ ball in pixel units")

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        del generator
        check_pixels(x, self.name)
        with frozen(model):
            gradient, _ = input_gradient(model, x, y)
        return (x + self.eps * gradient.sign()).clamp(0.0, 1.0).detach()
