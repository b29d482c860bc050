"""Rows of numbers in two principal components, as a record can carry them."""

from __future__ import annotations

import torch
from torch import Tensor


def components(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """The first two principal components ``[r 2]`` of ``rows [r s]`` and their shares ``[2]`` of the variance.

    The sign of a component is free; here its largest coordinate by magnitude is positive. ``None`` if a row is not
    finite or all are the same.

    >>> points, shares = components(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]))
    >>> points[:, 0].abs().tolist(), shares.tolist()
    ([2.0, 0.0, 2.0], [1.0, 0.0])
    """
    centred = rows.detach().to("cpu", torch.float64)
    centred = centred - centred.mean(dim=0)
    total = float((centred**2).sum())
    if not torch.isfinite(centred).all() or total <= 1e-24 * centred.numel():
        return None
    squares, directions = torch.linalg.eigh(centred @ centred.T)
    squares = squares.flip(0)[:2].clamp(min=0.0)
    points = directions.flip(1)[:, :2] * squares.sqrt()
    largest = points.abs().argmax(dim=0)
    signs = torch.where(points[largest, torch.arange(2)] < 0, -1.0, 1.0)
    return points * signs + 0.0, squares / total


def short(value: float) -> float:
    """Six digits: more would only make records longer."""
    return float(f"{value:.6g}")
