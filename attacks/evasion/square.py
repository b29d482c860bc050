"""Square attack: a random search without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from robustfl.gradients import channels_last
from robustfl.parameters import param
from robustfl.registry import register

from .balls import NORMS, Draws, into_ball, unit
from .losses import margin
from .points import Harvest, PixelAttack
from .whitebox import check_images, logits_of, per_image, take

_HALVED_AT = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
_GRID = 5


def p_at(query: int, *, p_init: float = 0.8, queries: int = 5000, rescale: bool = False) -> float:
    """The share of pixels that query number ``query`` (from 0) changes, halved after 10, 50, 200, 500, 1000, ...

    ``rescale`` stretches that schedule, made for 10,000 queries, to ``queries``.

    >>> [p_at(query) for query in (10, 11, 4999)]
    [0.8, 0.4, 0.00625]
    """
    seen = query * 10_000 // queries if rescale else query
    return math.ldexp(p_init, -sum(seen > border for border in _HALVED_AT))


def side_of(share: float, height: int, width: int, *, least: int = 1) -> int:
    """The side of a square with that share of the pixels, at least ``least``, at most what the image holds."""
    return max(1, min(max(round(math.sqrt(share * height * width)), least), height, width))


class Window(NamedTuple):
    """A square per image: the mask of its pixels ``[… 1 H W]``, and its rows ``[… H]`` and columns ``[… W]`` from 0."""

    mask: Tensor
    rows: Tensor
    columns: Tensor


def window(corner: Tensor, side: int | Tensor, height: int, width: int) -> Window:
    """The squares whose upper left corners are drawn by ``corner [… 2]``, uniform in [0, 1)."""
    top = (corner[..., :1] * (height - side + 1)).floor().minimum(torch.as_tensor(height - side))
    left = (corner[..., 1:] * (width - side + 1)).floor().minimum(torch.as_tensor(width - side))
    rows = torch.arange(height, device=corner.device) - top
    columns = torch.arange(width, device=corner.device) - left
    inside = (rows >= 0) & (rows < side), (columns >= 0) & (columns < side)
    return Window((inside[0][..., None] & inside[1][..., None, :])[..., None, :, :], rows.long(), columns.long())


def signs(u: Tensor) -> Tensor:
    """±1 from numbers uniform in [0, 1)."""
    return torch.where(u < 0.5, -1.0, 1.0).to(u.dtype)


def stripes(x: Tensor, u: Tensor, eps: float) -> Tensor:
    """The start in the L∞ ball: each column of each channel moved by ±ε, ``u [b C W]``."""
    return (x + eps * signs(u)[:, :, None, :]).clamp_(0.0, 1.0)


Change = Callable[[Tensor, int], Tensor]
"""What query number ``q`` of a block tries in the place of the best images so far."""


def recoloured(x: Tensor, u: Tensor, sides: Sequence[int], eps: float) -> Change:
    """A square moved by ±2ε per channel and projected, which is x ± ε there; ``u [b q 2+C]``."""
    each = torch.tensor(sides, device=x.device)[:, None]
    masks, low = window(u[..., :2], each, *x.shape[2:]).mask, u[..., 2 : 2 + x.shape[1], None, None] < 0.5
    darker, brighter = (x - eps).clamp_(0.0, 1.0), (x + eps).clamp_(0.0, 1.0)
    return lambda best, q: torch.where(masks[:, q], torch.where(low[:, q], darker, brighter), best)


def bump(height: int, width: int, like: Tensor) -> Tensor:
    """Concentric rectangles that fall off from the middle: ``Σ_{j=D}^{n} 1/(j+1)²`` at distance D from it."""
    middle = height // 2, width // 2
    rows = (torch.arange(height, device=like.device) - middle[0]).abs()
    columns = (torch.arange(width, device=like.device) - middle[1]).abs()
    terms = torch.arange(1, max(middle) + 2, device=like.device, dtype=like.dtype).square().reciprocal()
    return terms.flip(0).cumsum(0).flip(0)[torch.maximum(rows[:, None], columns[None, :])]


def eta(side: int, like: Tensor) -> Tensor:
    """Two bumps of opposite signs, one above the other, of unit length together ``[side side]``."""
    upper = side // 2
    both = torch.cat([bump(upper, side, like), -bump(side - upper, side, like)])
    return unit(both[None], "l2")[0]


def tiles(x: Tensor, u: Tensor, eps: float) -> Tensor:
    """The start in the L2 ball: a 5×5 grid of η, its sign random per tile and channel; ``u [b C+1 5 5]``."""
    b, c, height, width = x.shape
    side = max(1, min(height, width) // _GRID)
    down, across = min(_GRID, height // side), min(_GRID, width // side)
    top, left = (height - down * side) // 2, (width - across * side) // 2
    u = u[:, :, :down, :across]
    upright = (u[:, c:] < 0.5)[..., None, None]
    shape = eta(side, x)
    each = torch.where(upright, shape, shape.T) * signs(u[:, :c])[..., None, None]
    moves = torch.zeros_like(x)
    grid = each.permute(0, 1, 2, 4, 3, 5).reshape(b, c, down * side, across * side)
    moves[:, :, top : top + down * side, left : left + across * side] = grid
    return into_ball(x, x + eps * unit(moves, "l2"), eps, "l2")


def redistributed(x: Tensor, u: Tensor, sides: Sequence[int], eps: float) -> Change:
    """The change in a second square moved into η in a first, with what is unused of ε; ``u [b q 5+C]``."""
    return lambda best, q: _redistributed(x, best, u[:, q], sides[q], eps)


def _redistributed(x: Tensor, best: Tensor, u: Tensor, side: int, eps: float) -> Tensor:
    c = x.shape[1]
    first, second = window(u[:, :2], side, *x.shape[2:]), window(u[:, 2:4], side, *x.shape[2:])
    moves = best - x
    unused = (eps**2 - moves.square().flatten(1).sum(1)).clamp_min(0.0)
    both = moves * (first.mask | second.mask)
    available = (both.square().sum((2, 3)) + unused[:, None] / c).sqrt()
    shape = eta(side, x)
    rows, columns = (axis.clamp(0, side - 1) for axis in (first.rows, first.columns))
    upright, lying = shape[rows[:, :, None], columns[:, None, :]], shape.T[rows[:, :, None], columns[:, None, :]]
    pattern = torch.where(u[:, 4, None, None] < 0.5, upright, lying)[:, None] * signs(u[:, 5 : 5 + c])[:, :, None, None]
    inside = moves * first.mask
    mixed = (pattern + _unit_channels(inside)) * first.mask
    placed = _unit_channels(mixed) * available[:, :, None, None]
    return into_ball(x, x + torch.where(first.mask, placed, moves - moves * second.mask), eps, "l2")


def _unit_channels(moves: Tensor) -> Tensor:
    length = moves.square().sum((2, 3), keepdim=True).sqrt()
    return moves / torch.where(length > 0, length, 1.0)


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
        changes = recoloured if self.norm == "linf" else redistributed
        for query in range(1, self.queries):
            at = (query - 1) % _BLOCK
            if at == 0:
                found[place] = best
                on = torch.nonzero(lowest >= 0).flatten()
                if not len(on):
                    return found
                if len(on) < len(place):
                    x, best, y, lowest, place = take(x, on), take(best, on), y[on], lowest[on], place[on]
                u = draws.of(place).uniform((_BLOCK, 5 + x.shape[1]), x)
                sides = [self.side(query - 1 + later, *x.shape[2:]) for later in range(_BLOCK)]
                change = changes(x, u, sides, self.eps)
            tried = channels_last(change(best, at))
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
