"""The worst case over several evasion attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.parameters import check, param
from robustfl.registry import create, describe, register, split_outside

from .points import InTurn


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
        check(self)
        object.__setattr__(self, "of", "+".join(describe(part) for part in _parts(self.of)))

    @property
    def parts(self) -> tuple[Evasion, ...]:
        """The attacks in their order."""
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
