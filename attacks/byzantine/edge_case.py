"""Edge-case backdoor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.errors import Refused
from robustfl.parameters import param
from robustfl.registry import register

from .poisoning import check_images
from .stamps import Backdoor


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
