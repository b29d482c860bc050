"""The Square Attack, a random search without gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.parameters import param
from robustfl.passes import channels_last
from robustfl.registry import register

from .balls import NORMS
from .image_draws import Draws
from .losses import margin
from .points import Harvest, PixelAttack
from .squares import p_at, recoloured, redistributed, side_of, stripes, tiles
from .whitebox import check_images, logits_of, per_image, take

_BLOCK = 16  # queries between looks at who is fooled, each of which waits for the device


@register("square", version=1)
@dataclass(frozen=True)
class Square(PixelAttack):
    """Tries random squares of one colour (L∞) or of one shape (L2) and keeps those that lower the margin:

    ``x̂ ← argmin_{x̂, x̂ + δ} z_y - max_{i≠y} z_i``, δ a random square; its share p of the pixels shrinks query by query.

    A black box: asks for logits only, so masked gradients do not mislead it; where it beats gradients, they are masked.
    Slow against robust models.

    Args:
        eps: radius ε ≥ 0 of the ball in pixel units of [0, 1]; 8/255.
        norm: ``linf``, or ``l2``, where ε is a Euclidean length over all pixels.
        queries: forwards per image ≥ 1; 5,000 as in AutoAttack.
        p: first share of pixels in (0, 1]; 0.8 as in AutoAttack, halved after 10, 50, 200, 500, 1000, ... queries.
        rescale: stretch that schedule, made for 10,000 queries, to ``queries``.
        restarts: random starts ≥ 1 for images that resist; 1.

    Reference: Andriushchenko et al., Square Attack: A Query-efficient Black-box Adversarial Attack via Random Search,
    ECCV 2020, arXiv:1912.00049, Algorithms 1-3. Deviation: squares of the L2 attack are 3 pixels wide or more, and
    odd. As in the paper a square may lie anywhere in the image; the code its authors released, and AutoAttack's, draws
    its corner from one position fewer per axis, so that the last row and column change only in the random start, and
    in L2 brings each half of a square to the same length before they are joined.

    >>> model = torch.nn.Sequential(torch.nn.AvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(1, 2))
    >>> _ = model.load_state_dict({"2.weight": torch.tensor([[1.0], [-1.0]]), "2.bias": torch.zeros(2) - 0.5})
    >>> model[2].bias.data[1] = 0.4
    >>> Square(eps=0.125, queries=50).perturb(model, torch.full((1, 1, 2, 2), 0.5), torch.tensor([0])).flatten()
    tensor([0.3750, 0.3750, 0.3750, 0.3750])
    """

    paper: ClassVar[str] = "@andriushchenko2020square"
    cost: ClassVar[str] = "restarts × queries forwards, no backward"
    black_box: ClassVar[bool] = True

    eps: float = param(8 / 255, ge=0.0, lt=math.inf, doc="radius of the ball in pixel units")
    norm: str = param("linf", choices=NORMS, doc="norm of the ball")
    queries: int = param(5000, ge=1, doc="forwards per image")
    p: float = param(0.8, gt=0.0, le=1.0, doc="first share of pixels")
    rescale: bool = param(False, doc="stretch the schedule of 10,000 queries to this number")
    restarts: int = param(1, ge=1, doc="random starts")

    @property
    def passes(self) -> int:
        return (self.queries + 1) * self.restarts

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the square that query number ``query`` (from 0) tries."""
        share = p_at(query, p_init=self.p, queries=self.queries, rescale=self.rescale)
        if self.norm == "linf":
            return side_of(share, height, width)
        side = side_of(share, height, width, least=3)
        if side % 2:
            return side
        return side - 1 if side == min(height, width) else side + 1

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        check_images(x, self.name)
        harvest = Harvest(model, x, y, draws)
        for _, left, labels, own in harvest.tries(self.restarts):
            harvest.offer(self._search(model, left, labels, own))
        return harvest.images

    def _search(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        found, place = x.clone(), torch.arange(len(x), device=x.device)
        best = self._start(x, draws)
        lowest = margin(logits_of(model, best), y)
        for query in range(1, self.queries):
            if query % _BLOCK == 1:
                found[place] = best
                on = torch.nonzero(lowest >= 0).flatten()
                if not len(on):
                    return found
                if len(on) < len(place):
                    x, best, y, lowest, place = take(x, on), take(best, on), y[on], lowest[on], place[on]
                u = draws.of(place).uniform((_BLOCK, 5 + x.shape[1]), x)
            side = self.side(query - 1, *x.shape[2:])
            change = recoloured if self.norm == "linf" else redistributed
            tried = channels_last(change(x, best, u[:, (query - 1) % _BLOCK], side, self.eps))
            found_margin = margin(logits_of(model, tried), y)
            best = torch.where(per_image(found_margin < lowest, x), tried, best)
            lowest = torch.minimum(lowest, found_margin)
        found[place] = best
        return found

    def _start(self, x: Tensor, draws: Draws) -> Tensor:
        _, c, _, width = x.shape
        if self.norm == "linf":
            return channels_last(stripes(x, draws.uniform((c, width), x), self.eps))
        return channels_last(tiles(x, draws.uniform((c + 1, 5, 5), x), self.eps))
