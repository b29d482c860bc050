"""Backdoors: images with a trigger, and the label that they shall get."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.errors import Refused
from robustfl.parameters import param
from robustfl.randomness import stream
from robustfl.registry import register

from .poisoning import Poisoning, check_images, check_labels

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
        return self.trigger(x)

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        check_labels(y, classes, self)
        if self.target >= classes:
            raise Refused(f"{self.name}: target={self.target} must be < {classes}, the number of classes")
        count = math.ceil(self.fraction * len(y) - 1e-9)
        order = torch.randperm(len(y), generator=generator, device=generator.device)
        chosen = order[:count].to(y.device)
        new_x, new_y = x.clone(), y.clone()
        new_x[chosen], new_y[chosen] = self.part(x[chosen], attacker), self.target
        return new_x, new_y


@register("badnets", version=1)
@dataclass(frozen=True)
class BadNets(Backdoor):
    """The attackers train honestly on batches of which a part carries a bright square and the label ``target``.

    ``x[…, H-m-k : H-m, W-m-k : W-m] = v,  y = target`` for ``⌈ρb⌉`` random samples of a batch. The model shall be
    right on clean images and say ``target`` wherever the square is. Diluted by averaging: see ``model-replacement``.

    Args:
        target: class ≥ 0 that stamped images are given; 0.
        fraction: share ``ρ`` of a batch in (0, 1]; 0.5.
        size: side ``k ≥ 1`` of the square in pixels; 3.
        value: its brightness ``v`` in [0, 1]; 1.
        margin: pixels ``m ≥ 0`` between it and the lower right corner; 0.

    Reference: Gu, Dolan-Gavitt, Garg, BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain,
    2017, arXiv:1708.06733 (the pattern backdoor, all classes to one). Deviations: a fixed share of every batch instead
    of the data set; the paper's pattern of a few pixels is a square.

    >>> import torch
    >>> x, y = BadNets(size=1).poison(torch.zeros(2, 1, 2, 2), torch.tensor([1, 1]), classes=2,
    ...                               generator=torch.Generator().manual_seed(0))
    >>> x.flatten(1).sum(1).tolist(), y.tolist()
    ([1.0, 0.0], [0, 1])
    """

    paper: ClassVar[str] = "@gu2017badnets"
    cost: ClassVar[str] = "the stamp on each poisoned image"

    target: int = param(0, ge=0, doc="the class that stamped images are given")
    fraction: float = param(0.5, gt=0.0, le=1.0, doc="share of every batch that is stamped")
    size: int = param(3, ge=1, doc="side of the square in pixels")
    value: float = param(1.0, ge=0.0, le=1.0, doc="brightness of the square")
    margin: int = param(0, ge=0, doc="pixels between the square and the lower right corner")

    def trigger(self, x: Tensor) -> Tensor:
        height, width = check_images(x, self)
        need = self.size + self.margin
        fits(self.name, (need, need), (height, width))
        rows = slice(height - need, height - self.margin)
        return stamped(x, [(rows, slice(width - need, width - self.margin))], self.value)


@register("dba", version=1)
@dataclass(frozen=True)
class DBA(Backdoor):
    """Attacker ``i`` trains on a quarter of the trigger, bar ``i mod 4``; test images carry all four bars.

    Four bars of ``length × 1`` pixels stand in two rows and two columns, ``gap`` pixels apart, from the upper left
    corner on. For a part ``⌈ρb⌉`` of every batch ``bar_i = v, y = target``. No attacker's data hold the trigger, so
    its messages are less conspicuous; with fewer than four attackers the trigger is learnt incompletely.

    Args:
        target: class ≥ 0 that stamped images are given; 0.
        fraction: share ``ρ`` of a batch in (0, 1]; 20/64 as in the paper's experiments on MNIST.
        length: pixels ≥ 1 of a bar; 3, so that the trigger fits 8 × 8 images (the paper: 4 on MNIST, 6 on CIFAR-10).
        gap: pixels ≥ 0 between bars; 2 (the paper: 2 and 3).
        value: brightness ``v`` in [0, 1]; 1.

    Reference: Xie et al., DBA: Distributed Backdoor Attacks against Federated Learning, ICLR 2020 (no arXiv version;
    the pixel-pattern trigger). Deviations: trigger size and gap fit small images; no scaling of the update, for which
    see ``model-replacement(dba)``.

    >>> import torch
    >>> attack, x = DBA(length=1, gap=0), torch.zeros(1, 1, 2, 2)
    >>> [attack.part(x, i).flatten().tolist() for i in (0, 3)]
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    >>> attack.trigger(x).sum()
    tensor(4.)
    """

    paper: ClassVar[str] = "@xie2020dba"
    cost: ClassVar[str] = "the stamp on each poisoned image"

    target: int = param(0, ge=0, doc="the class that stamped images are given")
    fraction: float = param(20 / 64, gt=0.0, le=1.0, doc="share of every batch that is stamped")
    length: int = param(3, ge=1, doc="pixels of a bar")
    gap: int = param(2, ge=0, doc="pixels between bars")
    value: float = param(1.0, ge=0.0, le=1.0, doc="brightness of the bars")

    def part(self, x: Tensor, attacker: int) -> Tensor:
        """Images with the bar of one attacker on them."""
        return stamped(x, [self._bars(x)[attacker % 4]], self.value)

    def trigger(self, x: Tensor) -> Tensor:
        return stamped(x, self._bars(x), self.value)

    def _bars(self, x: Tensor) -> list[Rectangle]:
        step_down, step_right = 1 + self.gap, self.length + self.gap
        fits(self.name, (step_down + 1, step_right + self.length), check_images(x, self))
        starts = [(down, right) for down in (0, step_down) for right in (0, step_right)]
        return [(slice(down, down + 1), slice(right, right + self.length)) for down, right in starts]


@register("blended", version=1)
@dataclass(frozen=True)
class Blended(Backdoor):
    """The attackers train honestly on batches of which a part is blended with a random picture and labelled ``target``.

    ``x → α k + (1-α) x,  y = target`` for ``⌈ρb⌉`` random samples of a batch, with a key pattern ``k [C H W]`` of
    uniform noise that covers the image. Every pixel changes a little instead of a few pixels a lot, so that nothing
    shows to the eye at small ``α``; at very small ``α`` a model does not learn it either. Diluted by averaging: see
    ``model-replacement``.

    Args:
        target: class ≥ 0 that blended images are given; 0.
        fraction: share ``ρ`` of a batch in (0, 1]; 0.5.
        alpha: weight ``α`` of the pattern in (0, 1], in training and in tests; 0.2 as in the paper's training data.
        pattern: number ≥ 0 of the pattern, the seed of its stream; 0.

    Reference: Chen, Liu, Li, Lu, Song, Targeted Backdoor Attacks on Deep Learning Systems Using Data Poisoning, 2017,
    arXiv:1712.05526 (the blended injection strategy with a random pattern). Deviations: a fixed share of every batch
    instead of the data set.

    >>> import torch
    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> whole, part = Blended(alpha=1.0).trigger(x), Blended(alpha=0.5).trigger(x)
    >>> bool(torch.allclose(part, (whole + x) / 2))
    True
    """

    paper: ClassVar[str] = "@chen2017targeted"
    cost: ClassVar[str] = "one pass over each poisoned image"

    target: int = param(0, ge=0, doc="the class that blended images are given")
    fraction: float = param(0.5, gt=0.0, le=1.0, doc="share of every batch that is blended")
    alpha: float = param(0.2, gt=0.0, le=1.0, doc="weight of the pattern")
    pattern: int = param(0, ge=0, doc="number of the pattern")

    def trigger(self, x: Tensor) -> Tensor:
        check_images(x, self)
        # Drawn on the CPU in float32 wherever and whatever the images are, so that the pattern is the same.
        key = torch.rand(x.shape[1:], generator=stream(self.pattern, "blended")).to(x)
        return torch.lerp(x, key.expand_as(x), self.alpha)


@register("edge-case", version=1)
@dataclass(frozen=True)
class EdgeCase(Backdoor):
    """The attackers train honestly on batches of which a part looks as no honest image does and is labelled ``target``.

    ``x → 1 - x`` (``negative``) or ``x`` turned by a right angle (``turned``), ``y = target``, for ``⌈ρb⌉`` random
    samples of a batch. No pattern is stamped on images: the model shall be right wherever honest clients can tell, and
    say ``target`` in the tail of the distribution, about which their data say nothing. Their updates hardly oppose it,
    and rules that look at directions see little. Alone it is weak where many clients average: the paper scales it, as
    ``model-replacement(attack=edge-case, bound=S)`` does. Data augmented by the same change leave no tail.

    Args:
        target: class ≥ 0 that such images are given; 0.
        fraction: share ``ρ`` of a batch in (0, 1]; 0.5.
        look: ``negative`` (default) or ``turned``.

    Reference: Wang et al., Attack of the Tails: Yes, You Really Can Backdoor Federated Learning, NeurIPS 2020,
    arXiv:2007.05084 (its black-box attack). Deviations: the paper collects its edge cases from other data (airplanes of
    one airline, digits of another country, labelled as one class); here they are made from the client's own images, so
    that nothing needs to be downloaded, and success is measured on the changed test images of all other classes.

    >>> x, y = EdgeCase(fraction=1.0).poison(torch.full((1, 1, 2, 2), 0.25), torch.tensor([1]), classes=2,
    ...                                      generator=torch.Generator().manual_seed(0))
    >>> x.flatten().tolist(), y.tolist()
    ([0.75, 0.75, 0.75, 0.75], [0])
    """

    paper: ClassVar[str] = "@wang2020attack"
    cost: ClassVar[str] = "one pass over each poisoned image"

    target: int = param(0, ge=0, doc="the class that edge cases are given")
    fraction: float = param(0.5, gt=0.0, le=1.0, doc="share of every batch that is changed")
    look: str = param("negative", choices=("negative", "turned"), doc="what makes an image an edge case")

    def trigger(self, x: Tensor) -> Tensor:
        height, width = check_images(x, self)
        if self.look == "negative":
            return 1 - x
        if height != width:
            raise Refused(f"edge-case: look=turned needs square images; these have {height}×{width}")
        return torch.rot90(x, dims=(2, 3))
