"""Inner products of rows, accurate for rows that are close together and far from the origin.

``|a|² - 2ab + |b|²`` loses all digits when ``|a - b|`` is small beside ``|a|``, and one huge Byzantine row spoils a
common centre. So rows are centred on one of them, and on a better one when the result shows that the first was bad.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.kernels.blocks import blocks, width

_PASSES = 4
_CHUNK = 1_024
# Long float32 rows are multiplied in float32, in chunks summed in float64: errors average out to about 1e-8.
_LONG = 1 << 16
# Recentre if the squared distance to the centre exceeds the typical one by so much: the centre's share in the rounding
# error of a distance is then about 1e-10 of it with float64 products, 1e-7 with float32 chunks.
_LOPSIDED = {torch.float64: 1e6, torch.float32: 10.0}


@dataclass(frozen=True)
class CentredGram:
    """``products [n+1 n+1]``: inner products (float64, CPU) of ``x_i - x_c``; the last point is ``0 - x_c``."""

    products: Tensor
    centre: int


def squared_distances(products: Tensor) -> Tensor:
    """The squared distances ``[k k]`` of ``k`` points from their inner products; never negative, 0 on the diagonal."""
    square = products.diagonal()
    distances = (square[:, None] + square[None, :] - 2 * products).clamp_(min=0)
    return distances.fill_diagonal_(0)


def centred_gram(X: Tensor) -> CentredGram:
    """The Gram matrix of the finite rows ``X [n d]`` and the origin about a row that lies among its neighbours."""
    X = X.detach()
    n, d = X.shape
    precision = torch.float32 if X.dtype == torch.float32 and d >= _LONG else torch.float64
    centre, tried = 0, set()
    while True:
        products = _products(X, centre, precision)
        if not bool(torch.isfinite(products).all()):
            # A float32 entry of 1e20 is finite, its square is not.
            precision = torch.float64
            products = _products(X, centre, precision)
        tried.add(centre)
        distances = squared_distances(products)[:n, :n]
        typical = distances.sort(dim=1).values[:, n // 2]
        best = int(typical.argmin())
        lopsided = float(distances[centre, best]) > _LOPSIDED[precision] * float(typical[best])
        if not lopsided or best in tried or len(tried) == _PASSES:
            return CentredGram(products, centre)
        centre = best


def _products(X: Tensor, centre: int, precision: torch.dtype) -> Tensor:
    """One pass: in the place of the centred row ``c``, which is zero, stands the centred origin."""
    n, d = X.shape
    total = torch.zeros((n, n), dtype=torch.float64, device=X.device)
    chunk = _CHUNK if d > 8 * _CHUNK else max(d, 1)
    step = -(-width(n, d, X, itemsize=precision.itemsize) // chunk) * chunk
    buffer = torch.empty((n, step), dtype=precision, device=X.device)
    # Short inner products in a batch run twice as fast as one long one.
    chunks = buffer.view(n, step // chunk, chunk).transpose(0, 1)
    for block in blocks(d, step):
        rows = buffer[:, : block.stop - block.start]
        origin = X[centre, block].to(precision).neg()
        if X.dtype == precision:
            torch.add(X[:, block], origin, out=rows)
        else:
            rows.copy_(X[:, block])
            rows.add_(origin)
        rows[centre] = origin
        buffer[:, rows.shape[1] :].zero_()
        total += torch.bmm(chunks, chunks.transpose(1, 2)).sum(0, dtype=torch.float64)
    total = total.cpu()
    products = total.new_zeros((n + 1, n + 1))
    place = torch.arange(n)
    place[centre] = n
    products[place[:, None], place[None, :]] = (total + total.T) / 2
    return products


def products_with(X: Tensor, centre: int, point: Tensor) -> Tensor:
    """Inner products ``[n+2]`` of ``point - x_c`` with every ``x_i - x_c``, ``0 - x_c`` and itself (float64, CPU)."""
    n, d = X.shape
    total = torch.zeros(n + 2, dtype=torch.float64, device=X.device)
    step = width(n + 2, d, X, itemsize=8)
    for block in blocks(d, step):
        w = block.stop - block.start
        rows = torch.empty((n + 2, w), dtype=torch.float64, device=X.device)
        rows[:n].copy_(X[:, block])
        rows[n].zero_()
        rows[n + 1].copy_(point[block])
        rows.sub_(rows[centre].clone())
        total.addmv_(rows, rows[n + 1])
    return total.cpu()
