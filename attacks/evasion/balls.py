"""The balls around an image in which attacks search: L∞ and L2, cut with the box of pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robustfl.errors import UsageError

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


class Box(NamedTuple):
    """Where pixels may go, and how long a unit of ε is in pixels."""

    low: float
    high: float
    scale: float


def box(owner: str, legacy_digits_clip: bool, norm: str) -> Box:
    """The pixel range, or what the pipeline released with Hong et al. for Digits leaves of it.

    There images are normalized to ``u = 2x - 1`` first and ``u`` is clipped to [0, 1]: everything darker than mid-grey
    jumps to mid-grey, and ε, measured in ``u``, is half as long in pixels.
    """
    if not legacy_digits_clip:
        return Box(0.0, 1.0, 1.0)
    if norm != "linf":
        raise UsageError(
            f"{owner}: legacy_digits_clip repeats attacks in the L∞ ball; norm={norm!r} has no counterpart"
        )
    return Box(0.5, 1.0, 0.5)
