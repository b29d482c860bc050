"""Searches for the strength of attacks that know the defense: one number, and how far it moves the server's result."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, Rehearsal, View
from robustfl.errors import UsageError
from robustfl.kernels import centred_gram
from robustfl.parameters import only_where, param

from .sight import alike, honest_rows

# From this many times more entries than rows on, inner products are cheaper than the rows.
_LONG = 20
KINDS = ("scan", "linear", "golden")
_BUDGET = {"scan": 40, "linear": 20, "golden": 20}
# Where rules change their minds: forged rows about as far away as honest ones (in spreads) or as long (in lengths).
_SPREADS = (1.0, 2.2, 0.5, 3.6, 1.45, 0.25, 8.0, 0.75, 1.75, 1.2, 2.8, 5.0)
_LENGTHS = (1.0, 2.0, 4.0, 16.0)
# A rise that promises less than this share is no reason to look; gaps below these shares of η are closed, the coarse
# ones before anything else is looked at and the fine ones in turn with the widest gaps elsewhere.
_PROMISE, _COARSE, _FINE = 2e-3, 1.5e-2, 5e-3
# Spikes are looked for among rows neither this much nearer than honest ones nor this much farther off or longer.
_NEAR, _FAR = 0.1, 16.0
# Distances this close are the same distance.
_SAME = 1e-6


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

    This is ByzFL's search. Peaks to the left of its first success, ``η = 10`` as a rule, it never sees.

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
        elif fb is None:
            fb = probe(b)
        elif fa >= fb:
            high, b, fb = b, a, fa
            a, fa = high - ratio * (high - low), None
        else:
            low, a, fa = a, b, fb
            b, fb = low + ratio * (high - low), None
    return max(tried, key=lambda at: at[1])


@dataclass(frozen=True)
class Scales:
    """The ``η`` that take a forged row as far from the mean as honest rows are, and as far as the mean is long."""

    spread: float = 1.0
    length: float = 1.0


def scales(honest: Tensor, origin: Tensor, step: Tensor) -> Scales:
    """The scales of ``origin + η step`` among the rows ``honest [h d]`` whose mean is ``origin [d]``."""
    size = float(torch.linalg.vector_norm(step, dtype=torch.float64))
    away = [float(torch.linalg.vector_norm(row - origin, dtype=torch.float64)) for row in honest]
    length = float(torch.linalg.vector_norm(origin, dtype=torch.float64))
    found = (math.sqrt(sum(a * a for a in away) / len(away)), length)
    spread, length = (x / size if size > 0 and 0 < x / size < math.inf else 1.0 for x in found)
    return Scales(spread, length)


def scan_search(
    distance: Callable[[float], float],
    *,
    evals: int = 40,
    start: float = 0.0,
    eta_max: float = 1e3,
    scales: Scales = Scales(),
) -> tuple[float, float]:
    """The best ``η`` in ``[start, eta_max]`` found and its distance, by at most ``evals`` evaluations.

    First the ends and points at multiples of the ``scales``, densest where rules begin to see an outlier. Then, again
    and again, the gap between neighbors into which the distance would rise highest if it went on as on either side:
    that closes in on peaks and on edges beyond which a rule drops the rows; between equal values nothing is promised.
    When no gap promises more, the widest gap beside high values, for spikes. Of equal distances (to 1e-6) the least
    ``η``: on a plateau the rest adds nothing.

    Held against a grid of some 500 factors, on 167 combinations of rules, clients, attackers and honest rows: 40
    evaluations reach 0.97 of the best in all but two (0.93, 0.96), ``linear_search`` with 20 in fewer than half.

    >>> scan_search(lambda eta: eta if eta < 4.2 else 0.0)[0] > 4.1
    True
    """
    tried: dict[float, float] = {}
    first = (0.0, _SPREADS[0] * scales.spread, eta_max)
    grid = (*first, *(c * scales.spread for c in _SPREADS[1:]), *(c * scales.length for c in _LENGTHS))
    for eta in dict.fromkeys(min(start + step, eta_max) for step in grid):
        if len(tried) < evals:
            tried[eta] = distance(eta)
    explored = 0
    while len(tried) < evals and start < eta_max:
        gaps = _gaps(tried, start, scales)
        best = max(gap.reached for gap in gaps)
        enough = best * (1 + _PROMISE)
        chosen = max(gaps, key=lambda gap: gap.promise if gap.width > _COARSE else -1.0)
        if chosen.width <= _COARSE or chosen.promise <= enough:
            fine = max(gaps, key=lambda gap: gap.promise if gap.width > _FINE else -1.0)
            promising = fine.width > _FINE and fine.promise > enough
            chosen = fine if promising and explored % 2 else max(gaps, key=lambda gap: gap.room)
            explored += 1
        if chosen.middle in tried:
            break
        tried[chosen.middle] = distance(chosen.middle)
    reached = {eta: found for eta, found in tried.items() if math.isfinite(found)}
    if not reached:
        return start, tried[start]
    best = max(reached.values())
    eta = min(at for at, found in reached.items() if found >= best - _SAME * abs(best))
    return eta, reached[eta]


@dataclass(frozen=True)
class _Gap:
    """Between two neighboring ``η``: the higher distance of the two, what may lie between, and where to look next."""

    reached: float
    promise: float
    room: float
    width: float
    middle: float


def _gaps(tried: Mapping[float, float], start: float, scales: Scales) -> list[_Gap]:
    closest, farthest = _NEAR * scales.spread, _FAR * max(scales.spread, scales.length)
    points = sorted((eta, found if math.isfinite(found) else 0.0) for eta, found in tried.items())
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]
    gaps = []
    for i, ((a, low), (b, high)) in enumerate(pairwise(points)):
        rise = max(slopes[i - 1], 0.0) if i else 0.0
        fall = max(-slopes[i + 1], 0.0) if i + 1 < len(slopes) else 0.0
        near, far, reached = a - start, b - start, max(low, high)
        flat = abs(high - low) <= _SAME * reached
        promise = reached if flat else max(low + rise * (b - a), high + fall * (b - a))
        within = (max(near, closest), min(far, farthest))
        room = math.log(within[1] / within[0]) * reached**2 if within[0] < within[1] else 0.0
        middle = math.sqrt(near * far) if near > 0 and far > 2 * near else (near + far) / 2
        gaps.append(_Gap(reached, promise, room, (far - near) / far, start + middle))
    return gaps


@dataclass(frozen=True)
class Search:
    """Which search, with its settings; ``evals=None`` is 40 evaluations for ``scan`` and 20 for the others."""

    kind: str = "scan"
    evals: int | None = None
    start: float = 0.0
    delta: float = 10.0
    ratio: float = 0.8
    eta_max: float = 1e3

    def check(self, owner: str) -> None:
        """Raise ``UsageError`` for settings of another search, and for a bound that this one cannot have."""
        only_where(self, self.kind == "linear", "search=linear", "delta", "ratio", owner=owner)
        if self.kind != "linear" and self.eta_max == math.inf:
            raise UsageError(f"{owner}: search={self.kind} needs a finite eta_max, not inf; search=linear takes inf")

    def run(self, distance: Callable[[float], float], scales: Scales) -> tuple[float, float]:
        """The best ``η`` found and its distance."""
        evals = _BUDGET[self.kind] if self.evals is None else self.evals
        if self.kind == "golden":
            return golden_section(distance, low=min(self.start, self.eta_max), high=self.eta_max, evals=evals)
        if self.kind == "scan":
            start = min(self.start, self.eta_max)
            return scan_search(distance, evals=evals, start=start, eta_max=self.eta_max, scales=scales)
        return linear_search(
            distance, evals=evals, start=self.start, delta=self.delta, ratio=self.ratio, eta_max=self.eta_max
        )


@dataclass(frozen=True)
class Climb:
    """A search near a factor that was the best before, in a round much like this one.

    ``start`` counts in honest spreads (``Scales.spread``). The factor grows by ``ratio`` while that takes the server
    farther, else it shrinks by it; when neither does, ``ratio`` becomes its square root.
    """

    start: float
    evals: int
    eta_max: float
    ratio: float = 1.25

    def run(self, distance: Callable[[float], float], scales: Scales) -> tuple[float, float]:
        """The best ``η`` found and its distance."""
        best, ratio = min(self.start * scales.spread, self.eta_max), self.ratio
        reach, tried = distance(best), 1
        while tried < self.evals and ratio > 1 + _COARSE:
            for eta in (min(best * ratio, self.eta_max), best / ratio)[: self.evals - tried]:
                found = distance(eta)
                tried += 1
                if found > reach and math.isfinite(found):
                    best, reach = eta, found
                    break
            else:
                ratio = math.sqrt(ratio)
        return best, reach


@dataclass(frozen=True)
class Found:
    """The outcome of a search: the factor, how far it moves the server's result, the vector to send ``[d]``.

    ``spreads`` is the factor in honest spreads (``Scales.spread``), where it was searched for among honest rows.
    """

    eta: float
    distance: float
    vector: Tensor
    spreads: float = math.nan


def farthest(
    view: View, attack: str, origin: Tensor, direction: Tensor, search: Search | Climb, *, along: Tensor | None = None
) -> Found:
    """The ``η`` of ``search`` that maximises ``‖F(H ∪ f × (origin + η direction)) - origin‖₂``.

    With ``along [d]`` the distance is how far the server's result moves that way, not below 0.

    Where the server's result is no mean of rows, as for statistics, the distance is that from ``view.origin``.
    One stack ``[n d]`` is made; the honest rows are written once and only the ``f`` forged rows change. If ``F`` is
    ``isometric`` and the rows are long, all evaluations happen in the few dimensions that the vectors span.
    """
    if view.aggregate is None:
        raise UsageError(f"attack {attack!r} optimises against the server; its view needs aggregate")
    rows = honest_rows(view, attack)
    aggregate, (h, d) = view.aggregate, rows.shape
    centre, away = origin, direction
    turns = along is None and isinstance(aggregate, Rehearsal) and aggregate.isometric and view.origin is None
    if turns and d > _LONG * (h + 3):
        rows, centre, away = _turned(rows, origin, direction) or (rows, origin, direction)
    goal = centre if view.origin is None else view.origin
    stack = rows.new_empty((h + view.f, rows.shape[1]))
    stack[:h] = rows
    forged = stack[h:]
    towards = None if along is None else along.double() / torch.linalg.vector_norm(along.double())

    def distance(eta: float) -> float:
        torch.add(centre, away, alpha=eta, out=forged[0])
        forged[1:] = forged[0]
        moved = aggregate(stack) - goal
        if towards is not None:
            return max(float(moved.double() @ towards), 0.0)
        return float(torch.linalg.vector_norm(moved, dtype=torch.promote_types(moved.dtype, torch.float64)))

    units = scales(rows, centre, away)
    eta, reach = search.run(distance, units)
    return Found(eta, reach, origin.add(direction, alpha=eta), eta / units.spread)


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
    # In the dtype of the rows, so that rules see the same ties as among the rows themselves.
    points = points.to(honest.dtype)
    return points[:h], points[h + 1], points[h + 2] - points[h + 1]


@dataclass(frozen=True)
class SearchedAttack(Attack):
    """An attack along a direction of its own, by the ``η`` with which it moves the server's result farthest.

    Args:
        search: ``scan`` (default; at least 0.97 of the greatest distance against the rules of the tests on a fine
            grid of strengths from 0.2 spreads on; a narrow peak below may be missed, as ``alignins`` has), ``linear``
            (ByzFL's, which looks to the right of its best η only and reached 0.05 to 1) or ``golden`` (golden section,
            for distances with one maximum).
        evals: evaluations of the server's rule, ≥ 1; None (default) for 40, for the other two 20.
        start: least η, ≥ 0.
        delta: first step of the linear search, > 0.
        ratio: shrinking of its step after the first failure, in (0, 1).
        eta_max: bound on η, > 0; reached against the mean; inf only for the linear search.
    """

    cost: ClassVar[str] = "evals aggregations per round; for rules on inner products h²d once and small ones"
    knowledge: ClassVar[Knowledge] = "defense"

    search: str = param("scan", choices=KINDS, doc="scan, ByzFL's linear search, or golden section")
    evals: int | None = param(None, ge=1, doc="evaluations of the server's rule; None: 40 for scan, 20 for the others")
    start: float = param(0.0, ge=0.0, lt=math.inf, doc="least η")
    delta: float = param(10.0, gt=0.0, lt=math.inf, doc="first step of the linear search")
    ratio: float = param(0.8, gt=0.0, lt=1.0, doc="shrinking of its step after the first failure")
    eta_max: float = param(1e3, gt=0.0, doc="bound on η; inf only for the linear search")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options.check(type(self).__name__)

    @property
    def options(self) -> Search:
        """The search for ``η``."""
        return Search(self.search, self.evals, self.start, self.delta, self.ratio, self.eta_max)

    @abstractmethod
    def found(self, view: View) -> Found:
        """The factor, the distance it reaches and the vector to send."""

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        return alike(self.found(view).vector, view.f)
