"""The momentum iterative method, MI-FGSM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.parameters import param
from robustfl.registry import register

from .balls import NORMS, directions, into_ball
from .image_draws import Draws
from .pgd import released_step
from .targets import Aimed
from .whitebox import input_gradient, per_image


@register("mia", version=1)
@dataclass(frozen=True)
class MIA(Aimed):
    """Iterated FGSM whose gradients are averaged with momentum, each normalised per image; no random start:

    ``g ← μg + ∇CE / ‖∇CE‖₁``, ``x ← clip_[0,1](clip_ε(x + α sign g))``; for L2 ``g / ‖g‖₂``.

    Made to transfer between models; white-box it is little stronger than PGD, and misled by masked gradients like it.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255 as in Hong et al. 2023.
        steps: iterations n ≥ 1; 20 (10 in the paper).
        step: step size α ≥ 0; None takes that of the code released with Hong et al., ``min(1.25ε, ε + 4/255) / n``
            (the paper's is ε / n).
        decay: momentum μ ≥ 0; 1 as in the paper.
        norm: ``linf``, or ``l2``, where ε and α are Euclidean lengths over all pixels.
        targeted: go down the cross-entropy of another class; images of that class stay as they are.
        target: that class, or None for each image's least likely other one.
        legacy_digits_clip: the threat model of the Digits code released with Hong et al.: images as 2x - 1, clipped to
            [0, 1]. Black jumps to mid-grey, and ε and α are halved, so x_adv may leave the ball.

    Reference: Dong et al., Boosting Adversarial Attacks with Momentum, CVPR 2018, arXiv:1710.06081, Algorithm 1 and
    equations 8-9. Deviations: a zero gradient adds nothing; iterates are clipped to pixels.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> MIA(eps=0.1, steps=4).perturb(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor([[0.4000, 0.6000]])
    """

    paper: ClassVar[str] = "@dong2018boosting"
    cost: ClassVar[str] = "steps forwards and backwards"

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    steps: int = param(20, ge=1, doc="iterations")
    step: float | None = param(None, ge=0.0, doc="step size; None: min(1.25ε, ε + 4/255) / n")
    decay: float = param(1.0, ge=0.0, lt=math.inf, doc="momentum μ")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    targeted: bool = param(False, doc="towards a class instead of away from the label")
    target: int | None = param(None, ge=0, doc="class aimed at; None: the least likely other one")
    legacy_digits_clip: bool = param(False, doc="attack 2x - 1 clipped to [0, 1] (released Digits code)")

    @property
    def step_size(self) -> float:
        """α."""
        return released_step(self.eps, self.steps) if self.step is None else self.step

    @property
    def passes(self) -> int:
        return 3 * self.steps

    def moved(self, model: nn.Module, x: Tensor, goal: Tensor, draws: Draws) -> Tensor:
        del draws
        low, high, scale = self.box
        eps, step = self.eps * scale, self.step_size * scale
        current, momentum = x, torch.zeros_like(x)
        for _ in range(self.steps):
            gradient, _ = input_gradient(model, current, goal)
            length = gradient.flatten(1).abs().sum(1)
            gradient /= per_image(torch.where(length > 0, length, 1.0), x)
            momentum = gradient.add_(momentum, alpha=self.decay)
            moved = torch.add(current, directions(momentum, self.norm), alpha=-step if self.targeted else step)
            current = into_ball(x, moved, eps, self.norm, low, high)
        return current
