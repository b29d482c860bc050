"""Inner products of rows, accurate for rows that are close together and far from the origin.

``|a|² - 2ab + |b|²`` loses all digits when ``|a - b|`` is small beside ``|a|``, and one huge Byzantine row spoils a
common centre. So rows are centred on one of them, and on a better one when the result shows that the first was bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from robustfl.kernels.blocks import at_once, blocks, width

_PASSES = 4
_SAMPLE = 8_192
_CHUNK = 1_024
_NEAR = 4_096  # columns at a time in float64 on the CPU: of dozens of rows they stay in the second-level cache
# Long float32 rows are multiplied in float32, in chunks summed in float64: errors average out to about 1e-8.
_LONG = 1 << 16
# What rounding does to an inner product, relative to the lengths of its factors, with room: the terms of a float32 row
# err independently and meet in chunks (found: at most 1.4 eps); a float64 product may run over 8,192 terms.
_OF_A_PRODUCT = {torch.float64: 64 * torch.finfo(torch.float64).eps, torch.float32: 2 * torch.finfo(torch.float32).eps}
# What a last bit in every entry does to a row, relative to its length: written once (float32), or turned and summed.
_OF_A_ROW = {torch.float64: 8 * torch.finfo(torch.float64).eps, torch.float32: 2 * torch.finfo(torch.float32).eps}
# Recentre if the squared distance to the centre exceeds the typical one by so much: the centre's share in the rounding
# error of a distance is then about 1e-10 of it with float64 products, 1e-7 with float32 chunks.
_LOPSIDED = {torch.float64: 1e6, torch.float32: 10.0}


@dataclass(frozen=True)
class CentredGram:
    """``products [n+1+k n+1+k]``: inner products (float64) of ``x_i - x_c``; point ``n`` is ``0 - x_c``.

    After it come the ``k`` further points, less ``x_c``. ``centre [1]`` is ``c``, where the rows are; the products, and
    the ``squares`` of the distances between all these points, are ``at_hand``. ``rounding`` is the error of a product
    relative to the lengths of both factors.
    """

    products: Tensor
    squares: Tensor
    centre: Tensor
    rounding: float = _OF_A_PRODUCT[torch.float64]

    def first(self, k: int) -> CentredGram:
        """The same of the first ``k`` points."""
        return replace(self, products=self.products[:k, :k], squares=self.squares[:k, :k])


def at_hand(X: Tensor) -> torch.device:
    """Where small matrices made of the rows ``X`` are worked on: on the CPU, where decisions by values cost nothing.

    Where ``torch.compile`` looks on nothing is decided, and they stay where the rows are.
    """
    return X.device if torch.compiler.is_compiling() else torch.device("cpu")


def last_bits(dtype: torch.dtype) -> float:
    """The relative distance at which a row of this dtype lies from one that differs in the last bits of its entries.

    >>> last_bits(torch.float32) < 3e-7
    True
    """
    return _OF_A_ROW.get(dtype, _OF_A_ROW[torch.float32])


def squared_distances(products: Tensor) -> Tensor:
    """The squared distances ``[k k]`` of ``k`` points from their inner products; never negative, 0 on the diagonal."""
    square = products.diagonal()
    return (square[:, None] + square).sub_(products, alpha=2).clamp_(min=0).fill_diagonal_(0)


def centred_gram(X: Tensor, *points: Tensor) -> CentredGram:
    """The Gram matrix of finite rows ``X [n d]``, the origin and ``points [d]`` about a row among its neighbours."""
    X, points = X.detach(), tuple(point.detach() for point in points)
    n, precision, rounding = X.shape[0], _precision(X), _OF_A_PRODUCT[_precision(X)]
    centre = _promising(X) if at_once(X) else torch.zeros(1, dtype=torch.int64)
    tried = set() if at_once(X) else {0}
    for _ in range(_PASSES):
        products = _products(X, points, centre, precision)
        squares = squared_distances(products)
        if torch.compiler.is_compiling():
            break
        if not np.isfinite(products.numpy()).all():
            # A float32 entry of 1e20 is finite, its square is not.
            precision, rounding = torch.float64, _OF_A_PRODUCT[torch.float64]
            products = _products(X, points, centre, precision)
            squares = squared_distances(products)
        typical = np.sort(squares.numpy()[:n, :n], axis=1)[:, n // 2]
        best = int(typical.argmin())
        lopsided = products.numpy()[best, best] > _LOPSIDED[precision] * typical[best]
        if not lopsided or best in tried:
            break
        tried.add(best)
        if len(tried) < _PASSES:
            centre = torch.tensor([best], device=X.device)
    return CentredGram(products, squares, centre, rounding)


def _promising(X: Tensor) -> Tensor:
    """The row ``[1]`` that is nearest to its neighbours in some of the columns; nobody waits to know which."""
    some = X[:, :: max(1, X.shape[1] // _SAMPLE)].double()
    some = some - some[:1]
    typical = squared_distances(some @ some.T).sort(dim=1).values[:, X.shape[0] // 2]
    return typical.argmin(dim=0, keepdim=True)


def _products(X: Tensor, points: Sequence[Tensor], centre: Tensor, precision: torch.dtype) -> Tensor:
    """In the place of the centred row ``c``, which is zero, stands the centred origin."""
    n = X.shape[0]
    m = n + len(points)
    if precision == torch.float64 and not at_once(X):
        return _halved(X, points, int(centre))
    total = torch.zeros((m, m), dtype=torch.float64, device=X.device)
    for chunks in _centred(X, centre, precision, *points):
        total += torch.bmm(chunks, chunks.transpose(1, 2)).sum(0, dtype=torch.float64)
    products = total.new_zeros((m + 1, m + 1))
    place = _places(n, m, centre)
    products[place[:, None], place[None, :]] = (total + total.T) / 2
    return products.to(at_hand(X))


def _halved(X: Tensor, points: Sequence[Tensor], c: int) -> Tensor:
    """As ``_products``, about row ``c``, by NumPy, which does half the work of torch.

    It sees that a matrix is multiplied by its own transpose.
    """
    n, d = X.shape
    rows, others = X.numpy(), [point.numpy() for point in points]
    m = n + len(others)
    total, buffer = np.zeros((m, m)), np.empty((m, min(d, _NEAR)))
    with np.errstate(all="ignore"):  # finite rows may have products that are not; who asks for them looks
        for block in blocks(d, _NEAR):
            part, origin = buffer[:, : block.stop - block.start], rows[c, block].astype(np.float64)
            np.subtract(rows[:, block], origin, out=part[:n])
            np.negative(origin, out=part[c])
            for place, point in enumerate(others, start=n):
                np.subtract(point[block], origin, out=part[place])
            total += part @ part.T
        places = np.arange(m) + (np.arange(m) >= n)
        places[c] = n
        products = np.zeros((m + 1, m + 1))
        products[places[:, None], places] = (total + total.T) / 2
    return torch.from_numpy(products)


def products_with(X: Tensor, centre: Tensor, point: Tensor) -> Tensor:
    """Inner products ``[n+2]`` of ``point - x_c`` with every ``x_i - x_c``, ``0 - x_c`` and itself (float64)."""
    X, point = X.detach(), point.detach()
    precision = _precision(X)
    found = _products_with(X, centre, point, precision)
    if precision == torch.float64 or torch.compiler.is_compiling():
        return found
    if not bool(torch.isfinite(found).all()):
        found = _products_with(X, centre, point, torch.float64)
    return found


def _products_with(X: Tensor, centre: Tensor, point: Tensor, precision: torch.dtype) -> Tensor:
    n = X.shape[0]
    total = torch.zeros(n + 1, dtype=torch.float64, device=X.device)
    for chunks in _centred(X, centre, precision, point):
        total += torch.bmm(chunks, chunks[:, -1:].transpose(1, 2))[:, :, 0].sum(0, dtype=torch.float64)
    products = total.new_zeros(n + 2)
    products[_places(n, n + 1, centre)] = total
    return products.to(at_hand(X))


def _precision(X: Tensor) -> torch.dtype:
    return torch.float32 if X.dtype == torch.float32 and X.shape[1] >= _LONG else torch.float64


def _places(n: int, m: int, centre: Tensor) -> Tensor:
    """Where products of ``n`` centred rows and ``m - n`` points belong; the one in the place of ``c`` is the origin."""
    place = torch.arange(m, device=centre.device)
    place[n:] += 1
    return place.index_fill(0, centre, n)


def _centred(X: Tensor, centre: Tensor, precision: torch.dtype, *points: Tensor) -> Iterator[Tensor]:
    """One pass over the rows ``x_i - x_c``, with ``0 - x_c`` for ``i = c``, and ``point - x_c``, as ``[k m chunk]``.

    The buffer is the same every time, zero where columns are missing.
    """
    n, d = X.shape
    m = n + len(points)
    chunk = _CHUNK if d > 8 * _CHUNK else max(d, 1)
    step = -(-width(m, d, X, itemsize=precision.itemsize) // chunk) * chunk
    buffer = torch.empty((m, step), dtype=precision, device=X.device)
    # Short inner products in a batch run twice as fast as one long one.
    chunks = buffer.view(m, step // chunk, chunk).transpose(0, 1)
    for block in blocks(d, step):
        rows = buffer[:n, : block.stop - block.start]
        origin = X[:, block].index_select(0, centre)[0].to(precision).neg()
        if X.dtype == precision:
            torch.add(X[:, block], origin, out=rows)
        else:
            rows.copy_(X[:, block])
            rows.add_(origin)
        rows.index_copy_(0, centre, origin[None])
        for place, point in enumerate(points, start=n):
            torch.add(point[block], origin, out=buffer[place, : rows.shape[1]])
        buffer[:, rows.shape[1] :].zero_()
        yield chunks
