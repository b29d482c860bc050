"""BadNets: a pixel pattern as a backdoor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.parameters import param
from robustfl.registry import register

from .poisoning import check_images
from .stamps import Backdoor, fits, stamped


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
