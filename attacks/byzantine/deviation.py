"""Shared by min-max and min-sum: the honest mean, a direction to leave it, and the distances that bound how far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.kernels import centred_gram, squared_distances

from .sight import centre_and_spread

DIRECTIONS = ("unit_vec", "std", "sign")


@dataclass(frozen=True)
class Bounds:
    """``mean [d]`` and ``direction [d]`` of ``ḡ + γp``; numbers in float64 on the CPU.

    ``length`` is ``‖p‖²``, ``along [h]`` are ``(ḡ-x_i)·p``, ``square [h]`` are ``‖ḡ-x_i‖²``, ``pairs [h h]`` are
    ``‖x_i-x_j‖²``.
    """

    mean: Tensor
    direction: Tensor
    length: float
    along: Tensor
    square: Tensor
    pairs: Tensor


def bounds(honest: Tensor, deviation: str, ddof: int) -> Bounds:
    """The mean, the direction ``deviation`` and all that the closed forms need, without a copy of the rows."""
    h = honest.shape[0]
    mean, std = centre_and_spread(honest, ddof)
    direction = _direction(mean, std, deviation)
    exact = direction.double()
    along, square = torch.zeros(h, dtype=torch.float64), torch.zeros(h, dtype=torch.float64)
    for i, row in enumerate(honest):
        away = mean.double() - row
        along[i], square[i] = away @ exact, away @ away
    pairs = squared_distances(centred_gram(honest).products)[:h, :h]
    return Bounds(mean, direction, float(exact @ exact), along, square, pairs)


def _direction(mean: Tensor, std: Tensor, deviation: str) -> Tensor:
    if deviation == "std":
        return -std
    if deviation == "sign":
        return -torch.sign(mean)
    norm: Tensor = torch.linalg.vector_norm(mean)
    return -mean / norm.clamp(min=torch.finfo(mean.dtype).tiny)
