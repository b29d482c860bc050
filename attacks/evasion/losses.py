"""Losses and target classes of evasion attacks."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from robustfl.errors import UsageError

from .balls import Draws
from .points import PixelAttack
from .whitebox import logits_of, per_image

_TINY = 1e-12


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio ``-(z_y - max_{i≠y} z_i) / (z_(1) - z_(3))`` of each sample ``[b]``.

    Unlike the cross-entropy it does not change when the logits are shifted or scaled, so no model hides behind large
    ones. Positive where the sample is misclassified. Raises ``UsageError`` for fewer than 3 classes.

    Reference: Croce, Hein, Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks, ICML 2020, arXiv:2003.01690, equation 6.

    >>> dlr(torch.tensor([[4.0, 1.0, 2.0]]), torch.tensor([0])).round(decimals=3)
    tensor([-0.6670])
    """
    _require(logits, 3)
    ranked = logits.topk(3, dim=1).values
    return -margin(logits, y) / (ranked[:, 0] - ranked[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """``-(z_y - z_t) / (z_(1) - ½(z_(3) + z_(4)))`` of each sample ``[b]``; equation 7 there.

    Raises ``UsageError`` for fewer than 4 classes.
    """
    _require(logits, 4)
    ranked = logits.topk(4, dim=1).values
    return -(_at(logits, y) - _at(logits, target)) / (ranked[:, 0] - (ranked[:, 2] + ranked[:, 3]) / 2 + _TINY)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """``z_y - max_{i≠y} z_i`` of each sample ``[b]``: negative where it is misclassified."""
    return _at(logits, y) - others(logits, y).amax(1)


def others(logits: Tensor, y: Tensor) -> Tensor:
    """The logits with -∞ in place of the class ``y``."""
    return logits.scatter(1, y[:, None], -torch.inf)


def _at(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None]).squeeze(1)


def _require(logits: Tensor, classes: int) -> None:
    if logits.shape[1] < classes:
        raise UsageError(f"this difference of logits ratio needs at least {classes} classes, not {logits.shape[1]}")


class Box(NamedTuple):
    """Where pixels may go, and how long a unit of ε is in pixels."""

    low: float
    high: float
    scale: float


class Aimed(PixelAttack):
    """An attack away from the label or, if ``targeted``, towards a class, whose own images it leaves alone."""

    spares_fooled: ClassVar[bool] = False

    norm: str
    targeted: bool
    target: int | None
    legacy_digits_clip: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and not self.targeted:
            raise UsageError(f"{type(self).__name__}: target={self.target} is ignored unless targeted=True")
        if self.legacy_digits_clip and self.norm != "linf":
            raise UsageError(
                f"{type(self).__name__}: legacy_digits_clip repeats attacks in the L∞ ball; norm={self.norm!r} has no "
                "counterpart"
            )

    @property
    def box(self) -> Box:
        """The pixel range, or what the pipeline released with Hong et al. for Digits leaves of it.

        There images are normalized to ``u = 2x - 1`` first and ``u`` is clipped to [0, 1]: everything darker than
        mid-grey jumps to mid-grey, and ε, measured in ``u``, is half as long in pixels.
        """
        return Box(0.5, 1.0, 0.5) if self.legacy_digits_clip else Box(0.0, 1.0, 1.0)

    @abstractmethod
    def moved(self, model: nn.Module, x: Tensor, goal: Tensor, draws: Draws) -> Tensor:
        """Images led away from the classes ``goal [b]`` or, if ``targeted``, towards them."""

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        if not self.targeted:
            return self.moved(model, x, y, draws)
        goal = aim(model, x, y, self.target, self.name)
        return torch.where(per_image(goal == y, x), x, self.moved(model, x, goal, draws))


def aim(model: nn.Module, x: Tensor, y: Tensor, target: int | None, attack: str) -> Tensor:
    """The class aimed at for each image ``[b]``: ``target``, or the least likely one other than ``y``."""
    logits = logits_of(model, x)
    if target is not None:
        if target >= logits.shape[1]:
            raise UsageError(
                f"{attack}: target={target} of {logits.shape[1]} classes; the last one is {logits.shape[1] - 1}"
            )
        return torch.full_like(y, target)
    return others(-logits, y).argmax(1)


def nearest_classes(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The ``count`` likeliest classes other than ``y``, likeliest first, ``[b min(count, c - 1)]``."""
    return others(logits, y).topk(min(count, logits.shape[1] - 1), dim=1).indices
