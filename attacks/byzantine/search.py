"""The line search of attacks that know the defense (SPEC §3.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.contracts import Rehearsal, View
from robustfl.errors import UsageError
from robustfl.kernels import centred_gram

from .sight import honest_rows

# From this many times more entries than rows on, inner products are cheaper than the rows.
_LONG = 20
Search = Callable[[Callable[[float], float]], tuple[float, float]]


def linear_search(
    distance: Callable[[float], float],
    *,
    evals: int = 20,
    start: float = 0.0,
    delta: float = 10.0,
    ratio: float = 0.8,
    eta_max: float = 1e3,
) -> tuple[float, float]:
    """The best ``η`` found and its distance, by at most ``evals`` evaluations to the right of ``start``.

    The step doubles after every success until the first failure; from then on it shrinks by ``ratio`` at every
    evaluation, and the next proposal is always the incumbent plus the step. Proposals are cut at ``eta_max``, without
    which an unbounded rule (the mean) would run away. A non-finite distance is no success.

    >>> linear_search(lambda eta: -abs(eta - 25.0))
    (30.0, -5.0)
    """
    best = min(start, eta_max)
    reach = distance(best)
    expanding = True
    for _ in range(evals - 1):
        proposal = min(best + delta, eta_max)
        if proposal == best:
            break
        found = distance(proposal)
        if found > reach and found != float("inf"):
            best, reach = proposal, found
        else:
            expanding = False
        delta *= 2.0 if expanding else ratio
    return best, reach


def golden_section(
    distance: Callable[[float], float], *, low: float, high: float, evals: int = 20
) -> tuple[float, float]:
    """The best ``η`` in ``[low, high]`` and its distance, by at most ``evals`` evaluations: the ends first.

    Golden section: exact up to ``0.618^(evals-3)`` of the interval for a distance with one maximum.

    >>> round(golden_section(lambda eta: -abs(eta - 25.0), low=0, high=100, evals=30)[0], 3)
    25.0
    """
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    tried: list[tuple[float, float]] = []

    def probe(eta: float) -> float:
        tried.append((eta, distance(eta)))
        return tried[-1][1]

    for end in (low, high)[:evals] if low < high else (low,):
        probe(end)
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa = fb = None
    while len(tried) < evals and low < high:
        if fa is None:
            fa = probe(a)
            continue
        if fb is None:
            fb = probe(b)
            continue
        if fa >= fb:
            high, b, fb = b, a, fa
            a, fa = high - ratio * (high - low), None
        else:
            low, a, fa = a, b, fb
            b, fb = low + ratio * (high - low), None
    return max(tried, key=lambda at: at[1])


@dataclass(frozen=True)
class Found:
    """The outcome of a search: the factor, how far it moves the server's result, the vector to send ``[d]``."""

    eta: float
    distance: float
    vector: Tensor


def farthest(view: View, attack: str, origin: Tensor, direction: Tensor, search: Search) -> Found:
    """The ``η`` of ``search`` that maximises ``‖F(H ∪ f × (origin + η direction)) - origin‖₂``.

    Where the server's result is no mean of rows, as for statistics, the distance is that from ``view.origin``.
    One stack ``[n d]`` is made; the honest rows are written once and only the ``f`` forged rows change. If ``F`` is
    ``isometric`` and the rows are long, all evaluations happen in the few dimensions that the vectors span.
    """
    if view.aggregate is None:
        raise UsageError(f"attack {attack!r} optimises against the server; its view needs aggregate")
    rows = honest_rows(view, attack)
    aggregate, (h, d) = view.aggregate, rows.shape
    centre, away = origin, direction
    if isinstance(aggregate, Rehearsal) and aggregate.isometric and view.origin is None and d > _LONG * (h + 3):
        rows, centre, away = _turned(rows, origin, direction) or (rows, origin, direction)
    goal = centre if view.origin is None else view.origin
    stack = rows.new_empty((h + view.f, rows.shape[1]))
    stack[:h] = rows
    forged = stack[h:]

    def distance(eta: float) -> float:
        torch.add(centre, away, alpha=eta, out=forged[0])
        forged[1:] = forged[0]
        moved = aggregate(stack) - goal
        return float(torch.linalg.vector_norm(moved, dtype=torch.promote_types(moved.dtype, torch.float64)))

    eta, reach = search(distance)
    return Found(eta, reach, origin.add(direction, alpha=eta))


def _turned(honest: Tensor, origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same vectors in ``h + 3`` dimensions, with all their inner products (float64, CPU).

    ``None`` if a vector is not finite, or so long that ``origin + η direction`` may leave the range of its dtype.
    """
    h = honest.shape[0]
    # About a row among the honest ones, with points near them: nothing is lost where rows are close to each other.
    products = centred_gram(honest, origin, origin + direction).products
    if not float(products.diagonal().max()) < (1e-8 * torch.finfo(torch.float32).max) ** 2:
        return None
    values, vectors = torch.linalg.eigh(products)
    points = vectors * values.clamp(min=0).sqrt()
    points = points - points[h]
    return points[:h], points[h + 1], points[h + 2] - points[h + 1]
