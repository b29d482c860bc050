"""Evasion attacks made of others: AutoAttack, and the worst of several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import create, describe, register
from robustfl.specs import split_outside

from .apgd import APGDCE, APGDT
from .balls import NORMS
from .fab_t import FABT
from .points import InTurn
from .square import Square


@register("autoattack", version=1)
@dataclass(frozen=True)
class AutoAttack(InTurn):
    """Four attacks without parameters to tune, each on the images that are still classified right:

    ``apgd-ce``, ``apgd-t``, ``fab-t``, ``square``, in this order.

    The usual measure of robust accuracy; an upper bound on it, as that of every attack. Not made for models that answer
    at random or adapt to their input. Up to 8,000 times the cost of a forward.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255 as in the paper.
        norm: ``linf``, or ``l2``, where ε is a Euclidean length over all pixels.
        steps: iterations ≥ 1 of the first three (of each class aimed at); 100 as in the paper.
        targets: classes ≥ 1 that two of them aim at, at most all others; 9.
        queries: those of ``square``, ≥ 1; 5,000.

    Reference: Croce, Hein, Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks, ICML 2020, arXiv:2003.01690, Section 5. The code released with Hong et al. runs something weaker under this
    name: it asks an untargeted APGD for targets.

    >>> [part.name for part in AutoAttack().parts]
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """

    paper: ClassVar[str] = "@croce2020reliable"
    cost: ClassVar[str] = "the sum of apgd-ce, apgd-t, fab-t and square, each on the images that still resist"

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    steps: int = param(100, ge=1, doc="iterations of the first three")
    targets: int = param(9, ge=1, doc="classes aimed at")
    queries: int = param(5000, ge=1, doc="queries of the last")

    @property
    def parts(self) -> tuple[Evasion, ...]:
        return (
            APGDCE(eps=self.eps, norm=self.norm, steps=self.steps),
            APGDT(eps=self.eps, norm=self.norm, steps=self.steps, targets=self.targets),
            FABT(eps=self.eps, norm=self.norm, steps=self.steps, targets=self.targets),
            Square(eps=self.eps, norm=self.norm, queries=self.queries),
        )


@register("worst", version=1)
@dataclass(frozen=True)
class Worst(InTurn):
    """Several attacks one after the other, each on the images that are still classified right:

    ``x_adv`` is the first misclassified image that one of them finds, else their image of the highest cross-entropy.

    As weak as its parts: attacks of one kind fail together. Its robust accuracy is at most that of each part with the
    same draws. Listed alone, a part that draws has others, and may come out a little lower.

    Args:
        of: evasion attacks, joined by ``+``, each with its own parameters; of different balls, too.

    Reference: Carlini et al., On Evaluating Adversarial Robustness, 2019, arXiv:1902.06705 (Section 4: report the worst
    case over attacks, per image).

    >>> Worst(of="pgd( eps=8/255 )+square(queries=100)").of
    'pgd+square(queries=100)'
    """

    paper: ClassVar[str] = "@carlini2019evaluating"
    cost: ClassVar[str] = "the sum of its parts, each on the images that still resist"

    of: str = param("apgd-ce+square", doc="evasion attacks joined by +")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", "+".join(describe(part) for part in _parts(self.of)))

    @property
    def parts(self) -> tuple[Evasion, ...]:
        return _parts(self.of)


def _parts(of: str) -> tuple[Evasion, ...]:
    specs = split_outside(of, "+")
    if not all(spec.strip() for spec in specs):
        raise UsageError(f"Worst: of={of!r} must be evasion attacks joined by '+', such as 'pgd+square(queries=100)'")
    parts = []
    for spec in specs:
        try:
            part = create("evasion", spec)
        except UsageError as error:
            raise UsageError(f"Worst: of={of!r}: {error}") from error
        assert isinstance(part, Evasion)
        parts.append(part)
    return tuple(parts)
