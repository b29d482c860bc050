"""Attacks that may be targeted, and the classes they aim at."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from robustfl.errors import UsageError
from robustfl.parameters import check

from .image_draws import Draws
from .losses import others
from .points import PixelAttack
from .whitebox import logits_of, per_image


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
        check(self)
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
