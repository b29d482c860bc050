"""Label poisoning: attackers train on labels of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.errors import Refused, UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows

_ROUNDING = 1e-5


def check_labels(y: Tensor, classes: int, attack: Attack) -> None:
    """Raise ``UsageError`` unless ``y [b]`` are integer labels in ``[0, classes)``."""
    own = f"attack {attack.name!r}"
    if y.ndim != 1 or y.dtype.is_floating_point or y.dtype == torch.bool:
        what = f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
        raise UsageError(f"{own} poisons integer labels [b], not {what}; of one-hot rows take y.argmax(1)")
    if len(y) and _looks_at(y, attack):
        low, high = (int(bound) for bound in y.aminmax())
        if low < 0 or high >= classes:
            raise UsageError(
                f"{own}: label {low if low < 0 else high}; with classes={classes} labels are 0 to {classes - 1}"
            )


def check_images(x: Tensor, attack: Attack) -> tuple[int, int]:
    """Height and width of images ``[b C H W]``; raise ``UsageError`` unless they are floats in [0, 1]."""
    own = f"attack {attack.name!r}"
    if x.ndim != 4:
        raise UsageError(f"{own} stamps images [b C H W], not inputs of shape {tuple(x.shape)}")
    if not x.dtype.is_floating_point:
        raise UsageError(f"{own} stamps images of floats in [0, 1], not of {str(x.dtype).removeprefix('torch.')}")
    if x.numel() and _looks_at(x, attack):
        low, high = (float(bound) for bound in x.aminmax())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise UsageError(
                f"{own} stamps images in [0, 1]; these reach from {low:.3g} to {high:.3g}: normalize inside the model, "
                "after the attack"
            )
    return x.shape[2], x.shape[3]


def _looks_at(values: Tensor, attack: Attack) -> bool:
    """True on the CPU, and on a GPU for the first batch of an attack: looking at values makes the GPU wait."""
    if values.device.type == "cpu":
        return True
    if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return False
    seen = vars(attack).setdefault("_seen_on_gpu", set())
    first = values.dtype not in seen
    seen.add(values.dtype)
    return first


class Poisoning(Attack):
    """Attackers that train honestly on changed batches (``poison``): messages are what comes of it."""

    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    forges: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = True

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        return own_rows(view, self.name).clone()


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
        super().__post_init__()
        if self.source is not None and self.target is None:
            raise UsageError(f"LabelFlip: source={self.source} needs a target")
        if self.source is not None and self.source == self.target:
            raise UsageError(f"LabelFlip: source={self.source} and target={self.target} must differ")

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        check_labels(y, classes, self)
        if self.target is None:
            return x, classes - 1 - y
        for name, chosen in (("source", self.source), ("target", self.target)):
            if chosen is not None and chosen >= classes:
                raise Refused(f"label-flip: {name}={chosen} must be < {classes}, the number of classes")
        changed = torch.ones_like(y, dtype=torch.bool) if self.source is None else y == self.source
        return x, torch.where(changed, self.target, y)


@register("dirty-labels", version=1)
@dataclass(frozen=True)
class DirtyLabels(Poisoning):
    """The attackers train honestly on random labels: each becomes, with probability ``ρ``, uniform over all classes.

    ``y ~ U{0, …, C-1}``, drawn anew in every batch, so there is nothing to memorise: the update pulls towards equal
    outputs for all classes. Milder than ``label-flip``, whose labels are wrong in a consistent way.

    Args:
        fraction: probability ``ρ`` in (0, 1]; 1 by default.

    Reference: Zhang et al., Understanding Deep Learning Requires Rethinking Generalization, ICLR 2017, arXiv:1611.03530
    (its random and partially corrupted labels). Deviations: drawn anew in every batch, not once.

    >>> x, y = torch.zeros(4, 1), torch.tensor([7, 7, 7, 7])
    >>> bool((DirtyLabels().poison(x, y, classes=8, generator=torch.Generator().manual_seed(0))[1] == y).all())
    False
    """

    paper: ClassVar[str] = "@zhang2017understanding"
    cost: ClassVar[str] = "none worth mention"

    fraction: float = param(1.0, gt=0.0, le=1.0, doc="probability that a label is replaced")

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        check_labels(y, classes, self)
        on = generator.device
        replaced = torch.rand(y.shape, generator=generator, device=on) < self.fraction
        drawn = torch.randint(0, classes, y.shape, generator=generator, device=on)
        return x, torch.where(replaced.to(y.device), drawn.to(y), y)
