"""Label flipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.errors import Refused, UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .poisoning import Poisoning, check_labels


@register("label-flip", version=1)
@dataclass(frozen=True)
class LabelFlip(Poisoning):
    """The attackers train honestly on flipped labels, ``y → C-1-y``, and send what they get.

    With ``target`` the labels equal to ``source`` (all labels without one) become ``target`` instead. Weak where the
    data are heterogeneous, since honest clients differ as much; each attacker sends its own vector.

    Args:
        source: class ≥ 0 whose labels are changed, or None (default) for every class; needs ``target``.
        target: class ≥ 0 they become, or None (default) for ``C-1-y``.

    Reference: Allen-Zhu et al., Byzantine-Resilient Non-Convex Stochastic Gradient Descent, ICLR 2021, arXiv:2012.14368
    (the label-flipping attack of its experiments, there with 10 classes: ``y → 9-y``); source and target: Tolpegin et
    al., Data Poisoning Attacks Against Federated Learning Systems, ESORICS 2020, arXiv:2007.08432.

    >>> x, y = LabelFlip().poison(torch.zeros(3, 1), torch.tensor([0, 1, 9]), classes=10, generator=torch.Generator())
    >>> y
    tensor([9, 8, 0])
    """

    paper: ClassVar[str] = "@allenzhu2021byzantine"
    cost: ClassVar[str] = "none worth mention"

    source: int | None = param(None, ge=0, doc="the class whose labels are changed; None: every class")
    target: int | None = param(None, ge=0, doc="the class they become; None: C-1-y")

    def __post_init__(self) -> None:
        parameters.check(self)
        if self.source is not None and self.target is None:
            raise UsageError(f"LabelFlip: source={self.source} needs a target")
        if self.source is not None and self.source == self.target:
            raise UsageError(f"LabelFlip: source={self.source} and target={self.target} must differ")

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        del generator, attacker, round
        check_labels(y, classes, self)
        if self.target is None:
            return x, classes - 1 - y
        for name, chosen in (("source", self.source), ("target", self.target)):
            if chosen is not None and chosen >= classes:
                raise Refused(f"label-flip: {name}={chosen} must be < {classes}, the number of classes")
        changed = torch.ones_like(y, dtype=torch.bool) if self.source is None else y == self.source
        return x, torch.where(changed, self.target, y)
