"""The balls around an image in which attacks search: L∞ and L2, cut with the box of pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from .image_draws import Draws
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
