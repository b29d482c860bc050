"""The distributed backdoor attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robustfl.parameters import param
from robustfl.registry import register

from .poisoning import check_images
from .stamps import Backdoor, Rectangle, fits, stamped


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
