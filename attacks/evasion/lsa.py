"""The local search attack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from .balls import Draws
from .points import PixelAttack
from .whitebox import check_images, logits_of

_AT_ONCE = 1024  # images in one forward


@register("lsa", version=2)
@dataclass(frozen=True)
class LSA(PixelAttack):
    """Greedy search for a few pixels to change, far beyond any ε:

    with ``v = x - ½``, score each candidate pixel by the label's probability once it is ``p sign v`` in every channel;
    the ``t`` pixels of the lowest scores become ``1.5v``, wrapped by ±1 into [-½, ½]; go on in squares around them.

    A black box that needs no gradients. Bounded by no ball, so its success is no robust accuracy in one; weak against
    large images, whose few changed pixels drown. Stops when misclassified, and returns the nearest (L2) misclassified
    image it came by, or else where the search ended.

    Args:
        rounds: R ≥ 1; 7.
        magnitude: p > 0 of the probing; 1.
        factor: growth of the chosen pixels, > 1; 1.5.
        pixels: t ≥ 1 pixels changed per round; 5.
        distance: d ≥ 0: candidates lie in (2d+1)² squares around the changed pixels; 5.
        candidates: at most so many are probed, ≥ 1; 128. First they are ``min(128, ⌊0.1 H W⌋)`` random pixels.
        variant: ``paper``, or ``advertorch``: changes do not add up over rounds, and the rows and columns of the first
            candidates are exchanged, as in the library that Hong et al. used; for square images.

    Reference: Narodytska, Kasiviswanathan, Simple Black-Box Adversarial Perturbations for Deep Networks, 2016,
    arXiv:1612.06299, Algorithm 3. Deviation: at most 128 candidates, as in that library.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> weights = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    >>> _ = model.load_state_dict({"1.weight": weights, "1.bias": torch.tensor([0.0, 1.9])})
    >>> LSA(pixels=1).perturb(model, torch.full((1, 1, 2, 2), 0.5) - 0.015625, torch.tensor([0])).sum() < 1.9
    tensor(True)
    """

    paper: ClassVar[str] = "@narodytska2016simple"
    cost: ClassVar[str] = "rounds × (candidates + 1) forwards, no backward"
    black_box: ClassVar[bool] = True

    rounds: int = param(7, ge=1, doc="rounds")
    magnitude: float = param(1.0, gt=0.0, lt=math.inf, doc="what probed pixels are set to, before clipping")
    factor: float = param(1.5, gt=1.0, le=3.0, doc="growth of the chosen pixels")
    pixels: int = param(5, ge=1, doc="pixels changed per round")
    distance: int = param(5, ge=0, doc="reach of the squares of next candidates")
    candidates: int = param(128, ge=1, doc="pixels probed per round, at most")
    variant: str = param("paper", choices=("paper", "advertorch"), doc="as written, or as that library does it")

    @property
    def passes(self) -> int:
        return (self.candidates + 1) * self.rounds

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        check_images(x, self.name)
        _, _, height, width = x.shape
        if self.variant == "advertorch" and height != width:
            raise UsageError(
                f"lsa: variant='advertorch' exchanges rows and columns; {height}x{width} images are not square"
            )
        found, place = x.clone(), torch.arange(len(x), device=x.device)
        first = max(1, min(self.candidates, height * width // 10))
        probed = draws.uniform((height * width,), x).topk(first, dim=1).indices
        if self.variant == "advertorch":
            probed = probed % width * width + probed // width
        flat = x.flatten(2)
        origin, current, nearest = flat, flat, torch.full_like(flat, torch.nan)
        reach, valid = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device), torch.ones_like(probed).bool()
        for _ in range(self.rounds):
            base = origin if self.variant == "advertorch" else current
            scores, near, far = self._probe(model, origin, base, y, probed, valid, x.shape)
            closer = far < reach
            nearest, reach = torch.where(closer[:, None, None], near, nearest), torch.minimum(far, reach)
            chosen, sure = _lowest(scores, probed, self.pixels)
            current = self._grown(base, chosen, sure)
            fooled = logits_of(model, current.view(-1, *x.shape[1:])).argmax(1) != y
            moved = (current - origin).flatten(1).norm(dim=1)
            closer = fooled & (moved < reach)
            nearest, reach = torch.where(closer[:, None, None], current, nearest), torch.where(closer, moved, reach)
            result = torch.where((reach < torch.inf)[:, None, None], nearest, current)
            found[place] = result.view(-1, *x.shape[1:])
            keys = draws.of(place).uniform((height * width,), x)
            probed, valid = self._around(chosen, sure, keys, height, width)
            on = torch.nonzero(~fooled).flatten()
            if not len(on):
                break
            if len(on) < len(place):
                place, y, origin, current, nearest, reach, probed, valid = (
                    t[on] for t in (place, y, origin, current, nearest, reach, probed, valid)
                )
        return found

    def _probe(
        self,
        model: nn.Module,
        origin: Tensor,
        base: Tensor,
        y: Tensor,
        probed: Tensor,
        valid: Tensor,
        shape: torch.Size,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The label's probability for each candidate ``[b k]``; the nearest misclassified image and its distance."""
        k, group = probed.shape[1], max(1, _AT_ONCE // probed.shape[1])
        parts = []
        for start in range(0, len(base), group):
            at, centre, label = base[start : start + group], origin[start : start + group], y[start : start + group]
            spot = probed[start : start + group, :, None, None].expand(-1, k, at.shape[1], 1)
            stack = at[:, None].repeat(1, k, 1, 1)
            lit = self.magnitude * (stack.gather(3, spot) - 0.5).sign()
            stack = stack.scatter(3, spot, lit.clamp(-0.5, 0.5) + 0.5)
            logits = logits_of(model, stack.view(-1, *shape[1:]))
            wrong = (logits.argmax(1) != label.repeat_interleave(k)).view(-1, k) & valid[start : start + group]
            odds = F.softmax(logits, dim=1).view(-1, k, logits.shape[1])
            score = odds.gather(2, label[:, None, None].expand(-1, k, 1)).squeeze(2)
            far = (stack - centre[:, None]).flatten(2).norm(dim=2).masked_fill(~wrong, torch.inf)
            least = far.min(dim=1)
            parts.append((score, stack[torch.arange(len(at), device=at.device), least.indices], least.values))
        score, near, far = (torch.cat(column) for column in zip(*parts, strict=True))
        return score.masked_fill(~valid, torch.inf), near, far

    def _grown(self, base: Tensor, chosen: Tensor, sure: Tensor) -> Tensor:
        """``base [b C HW]`` with the chosen pixels grown and wrapped into range."""
        spot = chosen[:, None, :].expand(-1, base.shape[1], -1)
        old = base.gather(2, spot)
        grown = self.factor * (old - 0.5)
        wrapped = (grown - (grown > 0.5).to(old.dtype) + (grown < -0.5).to(old.dtype) + 0.5).clamp(0.0, 1.0)
        return base.scatter(2, spot, torch.where(sure[:, None, :], wrapped, old))

    def _around(self, chosen: Tensor, sure: Tensor, keys: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Random pixels of the squares around the chosen ones, each once, and which of the places are taken."""
        marks = torch.zeros_like(keys).scatter_reduce(1, chosen, sure.to(keys.dtype), "amax")
        size = 2 * self.distance + 1
        near = F.max_pool2d(marks.view(-1, 1, height, width), size, stride=1, padding=self.distance).flatten(1) > 0
        best = torch.where(near, keys, -1.0).topk(min(self.candidates, height * width), dim=1)
        return best.indices, best.values >= 0


def _lowest(scores: Tensor, probed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The candidates of the lowest scores ``[b t]``, the first of equal ones, and which are candidates at all."""
    values, order = scores.sort(dim=1, stable=True)
    return probed.gather(1, order[:, :count]), values[:, :count] < torch.inf
