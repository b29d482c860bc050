"""Gradient steps: PGD, FGSM and the momentum iterative attack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.errors import UsageError
from robustfl.gradients import channels_last
from robustfl.parameters import only_where, param
from robustfl.registry import register

from .balls import NORMS, Draws, directions, into_ball, noise_in
from .losses import Aimed
from .whitebox import cross_entropy, input_gradient, logits_of, per_image

__all__ = ["PGD", "ascend", "released_step"]


@register("pgd", version=1)
@dataclass(frozen=True)
class PGD(Aimed):
    """Signed gradient ascent on the cross-entropy, projected after every step:

    ``x_0 = clip_[0,1](x + U(-ε, ε))``, ``x ← clip_[0,1](clip_ε(x + α sign ∇CE))``; for L2 ``∇ / ‖∇‖₂``, a start uniform
    in the ball, and the projection onto it.

    Misled by vanishing or masked gradients: a model that looks robust here need not be.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255 as in Hong et al. 2023.
        steps: iterations n ≥ 1; 7 there.
        step: step size α ≥ 0; None takes ``step_rule``, which follows ε.
        step_rule: ``paper`` is ε/4, which is 2/255 at the paper's ε of 8/255; ``released`` is that of the code
            released with Hong et al., ``min(1.25ε, ε + 4/255) / n``.
        random_start: start uniformly in the ball instead of at the image.
        restarts: random starts per image; the one of highest loss is kept.
        keep: ``last`` iterate, or the ``best`` (highest loss) on the way.
        norm: ``linf``, or ``l2``, where ε and α are Euclidean lengths over all pixels.
        targeted: go down the cross-entropy of another class; images of that class stay as they are.
        target: that class, or None for each image's least likely other one.
        legacy_digits_clip: the threat model of the Digits code released with Hong et al.: images as 2x - 1, clipped to
            [0, 1]. Black jumps to mid-grey, and ε and α are halved, so x_adv may leave the ball.

    Reference: Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018, arXiv:1706.06083,
    Section 2.1.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> PGD(eps=0.1, step=0.05, random_start=False).perturb(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor([[0.4000, 0.6000]])
    """

    paper: ClassVar[str] = "@madry2018towards"
    cost: ClassVar[str] = "restarts × steps forwards and backwards"

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    steps: int = param(7, ge=1, doc="iterations")
    step: float | None = param(None, ge=0.0, doc="step size; None takes step_rule")
    step_rule: str = param("paper", choices=("paper", "released"), doc="ε/4, or the released one, when step is None")
    random_start: bool = param(True, doc="start uniformly in the ball")
    restarts: int = param(1, ge=1, doc="random starts; the highest loss wins")
    keep: str = param("last", choices=("last", "best"), doc="which iterate to return")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    targeted: bool = param(False, doc="towards a class instead of away from the label")
    target: int | None = param(None, ge=0, doc="class aimed at; None: the least likely other one")
    legacy_digits_clip: bool = param(False, doc="attack 2x - 1 clipped to [0, 1] (released Digits code)")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.step is None, "step=None", "step_rule")
        if self.restarts > 1 and not self.random_start:
            raise UsageError(f"PGD: restarts={self.restarts} without random_start would repeat one run")

    @property
    def step_size(self) -> float:
        """α."""
        if self.step is not None:
            return self.step
        return released_step(self.eps, self.steps) if self.step_rule == "released" else self.eps / 4

    @property
    def passes(self) -> int:
        return 3 * self.steps * self.restarts + (self.restarts if self.restarts > 1 else 0)

    def moved(self, model: nn.Module, x: Tensor, goal: Tensor, draws: Draws) -> Tensor:
        found = self._climb(model, x, goal, draws)
        if self.restarts > 1:
            loss = self._heights(model, found, goal)
            for _ in range(self.restarts - 1):
                other = self._climb(model, x, goal, draws)
                found, loss = keep_higher(found, loss, other, self._heights(model, other, goal))
        return found

    def _climb(self, model: nn.Module, x: Tensor, goal: Tensor, draws: Draws) -> Tensor:
        low, high, scale = self.box
        eps, step = self.eps * scale, self.step_size * scale
        start = x + noise_in(draws, x, eps, self.norm) if self.random_start else None
        return ascend(
            model, x, goal, eps=eps, step=step, steps=self.steps, start=start, keep=self.keep, norm=self.norm,
            targeted=self.targeted, pixels=(low, high),
        )  # fmt: skip

    def _heights(self, model: nn.Module, x: Tensor, goal: Tensor) -> Tensor:
        losses = losses_of(model, x, goal)
        return -losses if self.targeted else losses


def released_step(eps: float, steps: int) -> float:
    """``min(1.25ε, ε + 4/255) / n``."""
    return min(1.25 * eps, eps + 4 / 255) / steps


def ascend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    step: float,
    steps: int,
    start: Tensor | None = None,
    keep: str = "last",
    norm: str = "linf",
    targeted: bool = False,
    pixels: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """The PGD iteration from ``start`` (default ``x``) on a model that is already ``frozen``.

    ``targeted``: ``y`` are the classes to go to; ``pixels`` is the range the iterates are clipped to. ``keep="best"``
    returns the iterate of the highest loss (targeted: the lowest), ``last`` the last.
    """
    current = x.detach() if start is None else start.detach().clamp(*pixels)
    current = channels_last(current)
    low, high = (x - eps).clamp_(*pixels), (x + eps).clamp_(*pixels)
    alpha = -step if targeted else step
    best, best_loss = current, None
    for _ in range(steps):
        gradient, loss = input_gradient(model, current, y)
        if keep == "best":
            loss = -loss if targeted else loss
            best, best_loss = (current, loss) if best_loss is None else keep_higher(best, best_loss, current, loss)
        if norm == "linf":
            moved = torch.add(current, gradient.sign_(), alpha=alpha)
            current = torch.minimum(torch.maximum(moved, low, out=moved), high, out=moved)
        else:
            moved = torch.add(current, directions(gradient, norm), alpha=alpha)
            current = into_ball(x, moved, eps, norm, *pixels)
    if keep == "last" or best_loss is None:
        return current
    last = losses_of(model, current, y)
    return keep_higher(best, best_loss, current, -last if targeted else last)[0]


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy per sample ``[b]`` without autograd."""
    return cross_entropy(logits_of(model, x), y)


def keep_higher(old: Tensor, old_loss: Tensor, new: Tensor, new_loss: Tensor) -> tuple[Tensor, Tensor]:
    """Per sample the input of the higher loss, the older one on a tie."""
    return torch.where(per_image(new_loss > old_loss, old), new, old), torch.maximum(old_loss, new_loss)


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
        low, high, scale = self.box
        gradient, _ = input_gradient(model, x, goal)
        step = directions(gradient, self.norm) * (-self.eps if self.targeted else self.eps) * scale
        # In exact arithmetic a Euclidean step of length ε needs no projection.
        found = (x + step).clamp(low, high)
        return found if self.norm == "linf" else into_ball(x, found, self.eps, self.norm)


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
