"""Several attacks one after the other, each on the images that resist so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from robustfl.contracts import Evasion

from .draws import Draws
from .points import Harvest, PixelAttack


def in_turn(
    parts: Sequence[Evasion], model: nn.Module, x: Tensor, y: Tensor, draws: Draws
) -> Iterator[tuple[Evasion, Harvest]]:
    """After each part: the part, and what has been found by it and those before it.

    Each part draws from the same state of the generator, as it would alone, so no part alone fools an image that all
    together do not.
    """
    harvest, others = Harvest(model, x, y, draws), draws.fork()
    for i, part in enumerate(parts):
        own = draws if i == 0 else others.fork()
        if len(harvest.rows):
            left, labels, _ = harvest.left()
            harvest.offer(_made(part, model, left, labels, own.of(harvest.rows)))
        yield part, harvest


def _made(part: Evasion, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
    if isinstance(part, PixelAttack):
        return part.craft(model, x, y, draws)
    return part.perturb(model, x, y, generator=draws.generator)
