"""Balls around images, and draws of images in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .whitebox import per_image

NORMS = ("linf", "l2")


def lengths(moves: Tensor, norm: str) -> Tensor:
    """The norm of each image's move ``[b]``."""
    flat = moves.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else torch.linalg.vector_norm(flat, dim=1)


def directions(gradient: Tensor, norm: str) -> Tensor:
    """The steepest direction of unit length: the sign, or ``g / ‖g‖₂``; nothing where the gradient is zero."""
    return gradient.sign() if norm == "linf" else unit(gradient, norm)


def unit(moves: Tensor, norm: str) -> Tensor:
    """Moves scaled to length one; those of length zero stay."""
    length = lengths(moves, norm)
    return moves / per_image(torch.where(length > 0, length, 1.0), moves)


def into_ball(x: Tensor, moved: Tensor, eps: float, norm: str, low: float = 0.0, high: float = 1.0) -> Tensor:
    """``moved`` brought within ε of ``x``, then into ``[low, high]``; if x is there, the result is in the ball, too."""
    if norm == "linf":
        return torch.minimum(torch.maximum(moved, (x - eps).clamp_(low, high)), (x + eps).clamp_(low, high))
    move = moved - x
    length = lengths(move, norm)
    shrink = torch.where(length > eps, eps / length.clamp_min(torch.finfo(x.dtype).tiny), 1.0)
    return (x + move * per_image(shrink, x)).clamp_(low, high)


def noise_in(draws: Draws, x: Tensor, eps: float, norm: str) -> Tensor:
    """Moves uniform in the ball."""
    shape = tuple(x.shape[1:])
    if norm == "linf":
        return draws.uniform(shape, x, -eps, eps)
    radius = draws.uniform((), x) ** (1.0 / max(1, x[:1].numel()))
    return unit(draws.normal(shape, x), norm) * per_image(eps * radius, x)


def noise_on(draws: Draws, x: Tensor, eps: float, norm: str) -> Tensor:
    """Moves of length ε: ``ε u / ‖u‖``, u uniform in a cube (L∞) or normal (L2)."""
    shape = tuple(x.shape[1:])
    u = draws.uniform(shape, x, -1.0, 1.0) if norm == "linf" else draws.normal(shape, x)
    return eps * unit(u, norm)


@dataclass(frozen=True)
class Draws:
    """Numbers are drawn for all ``total`` images of a batch; those of ``rows`` (None: all) are handed out.

    So what an image gets does not depend on which others have been fooled before, and an attack alone draws what it
    draws as part of a sequence. Several ``tries`` of the same rows, one after another in a batch, get what each would
    get in its turn; ``states`` are the generator's after each.
    """

    generator: torch.Generator
    total: int
    rows: Tensor | None = None
    tries: int = 1
    states: list[Tensor] = field(default_factory=list)

    def of(self, rows: Tensor) -> Draws:
        """Those of ``rows`` of the present rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def times(self, tries: int) -> Draws:
        """Those of so many tries one after another."""
        return replace(self, tries=tries, states=[])

    def fork(self) -> Draws:
        """A second source that will yield what this one is about to."""
        generator = torch.Generator(device=self.generator.device)
        generator.set_state(self.generator.get_state())
        return replace(self, generator=generator)

    def uniform(self, shape: tuple[int, ...], like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        """``[rows *shape]`` uniform in ``[low, high)``, in the dtype and on the device of ``like``."""
        return self._each(like, lambda: self._empty(shape, like).uniform_(low, high, generator=self.generator))

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """``[rows *shape]`` from the standard normal distribution."""
        return self._each(like, lambda: self._empty(shape, like).normal_(generator=self.generator))

    def _each(self, like: Tensor, draw: Callable[[], Tensor]) -> Tensor:
        if self.tries == 1:
            return self._chosen(draw(), like)
        made = []
        for _ in range(self.tries):
            made.append(self._chosen(draw(), like))
            self.states.append(self.generator.get_state())
        return torch.cat(made)

    def _empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.empty((self.total, *shape), dtype=like.dtype, device=self.generator.device)

    def _chosen(self, drawn: Tensor, like: Tensor) -> Tensor:
        drawn = drawn.to(like.device)
        return drawn if self.rows is None else drawn.index_select(0, self.rows)
