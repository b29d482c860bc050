"""The common part of backdoors: bright rectangles on images, and the part of a batch that gets them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.errors import Refused

from .poisoning import Poisoning, check_labels

Rectangle = tuple[slice, slice]


def stamped(x: Tensor, rectangles: Sequence[Rectangle], value: float) -> Tensor:
    """A copy of the images ``[b C H W]`` with ``value`` in the rectangles of all channels."""
    x = x.clone()
    for rows, columns in rectangles:
        x[:, :, rows, columns] = value
    return x


def fits(attack: str, need: tuple[int, int], size: tuple[int, int]) -> None:
    """Raises ``Refused`` if a trigger of ``need`` (height, width) is larger than the image."""
    if need[0] > size[0] or need[1] > size[1]:
        raise Refused(f"{attack}: the trigger takes {need[0]}×{need[1]} pixels; the images have {size[0]}×{size[1]}")


class Backdoor(Poisoning):
    """A poisoning that gives ``⌈fraction · b⌉`` random samples of a batch a trigger, and the label ``target``."""

    triggers: ClassVar[bool] = True

    target: int
    fraction: float

    def part(self, x: Tensor, attacker: int) -> Tensor:
        """Images with what one attacker puts on them; the whole trigger."""
        del attacker
        return self.trigger(x)

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        del round
        check_labels(y, classes, self)
        if self.target >= classes:
            raise Refused(f"{self.name}: target={self.target} must be < {classes}, the number of classes")
        count = math.ceil(self.fraction * len(y) - 1e-9)
        order = torch.randperm(len(y), generator=generator, device=generator.device)
        chosen = order[:count].to(y.device)
        new_x, new_y = x.clone(), y.clone()
        new_x[chosen], new_y[chosen] = self.part(x[chosen], attacker), self.target
        return new_x, new_y
