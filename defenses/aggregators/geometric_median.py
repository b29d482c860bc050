"""Geometric medians, exact and smoothed (RFA), and the Huber aggregate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..reference import lengths, middle, weights_of
from ..rows import MajorityRule, Mixed, nearest_row, shares

Array = NDArray[np.float64]

# From here on the result counts as converged, wherever the steps started.
_MANY_STEPS, _SHORT_STEP = 100, 1e-6
# From here on, in median distances, rows are no longer asked how short a step is.
_FAR = 1e4
# So many times the shortest step that counts, a row is near enough to be what holds it back.
_NEAR = 1e3


@register("geometric-median", version=2)
@dataclass(frozen=True)
class GeometricMedian(MajorityRule):
    """The point with the least sum of distances to the rows, by smoothed Weiszfeld steps.

        z ← Σ x_i / max(ν, ‖x_i - z‖) / Σ 1 / max(ν, ‖x_i - z‖)

    Half of the rows colluding at one point carry it there, and ``f`` is not used to remove anybody.

    Args: ``nu`` > 0 smoothing (1e-6); ``max_steps`` ≥ 1 (200); ``tol`` ≥ 0 stops when a step is shorter than ``tol``
    times the mean distance of the rows (1e-10), or 10⁴ times their median distance if that is less; ``init`` start:
    ``"median"`` (coordinate-wise), ``"zero"``, ``"mean"``, of rows that count alike; ``weighted`` (False) multiplies
    every row's distance by its sample weight, if there are weights.

    >>> import robustfl
    >>> robustfl.defense("geometric-median")(torch.tensor([[0.0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]]), f=2)
    tensor([0., 0.])

    Reference: the smoothed Weiszfeld algorithm of the paper below. Notes: ``nu=0.1, max_steps=3, init="zero"`` is the
    unconverged setting other projects use. All steps happen on inner products of the rows.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@pillutla2022robust"
    cost: ClassVar[str] = "n²d for the inner products, nd log² n for the start at the median, n² per step"
    on_host: ClassVar[str] = "stops once a step is short"

    nu: float = param(1e-6, gt=0, doc="smallest distance a weight is computed from")
    max_steps: int = param(200, ge=1, doc="largest number of Weiszfeld steps")
    tol: float = param(1e-10, ge=0, doc="relative length of the last step")
    init: Literal["median", "zero", "mean"] = param(
        "median", choices=("median", "zero", "mean"), doc="where the iteration starts"
    )
    weighted: bool = param(False, doc="weigh distances by the clients' samples")

    @property
    def isometric(self) -> bool:
        # The coordinate-wise median does not turn with the rows, but where the steps end does not depend on it.
        return self.init != "median" or (self.max_steps >= _MANY_STEPS and self.tol <= _SHORT_STEP)

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        share = weights_of(X, context if self.weighted else Context())
        z = {"median": middle(X), "zero": torch.zeros_like(X[0]), "mean": X.mean(0)}[self.init]
        for _ in range(self.max_steps):
            pull = share / lengths(X - z).clamp(min=self.nu)
            z = pull @ X / pull.sum()
        return z

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        m = rows.count
        share = torch.ones(m, dtype=torch.float64)
        if self.weighted and context.weights is not None:
            share = context.weights.to(device="cpu", dtype=torch.float64)
        products = rows.products(rows.median() if self.init == "median" else None)
        place = np.zeros(len(products))
        if self.init == "mean":
            place[:m] = 1 / m
        else:
            # Points are the rows, the origin and, if it is asked for, the median: the last one is the start.
            place[-1] = 1.0
        weights, steps, converged = self._weiszfeld(products.numpy(), place, share.numpy())
        return Aggregated(rows.combine(torch.from_numpy(weights)), facts={"steps": steps, "converged": converged})

    @np.errstate(over="ignore", invalid="ignore")
    def _weiszfeld(self, products: Array, place: Array, share: Array) -> tuple[Array, int, bool]:
        """Weights ``[m]`` of the rows; ``place`` are the weights of the current ``z`` over all points.

        In numpy: steps are many and small, and a call of torch takes several times as long as one of these.
        """
        m, left = len(share), False
        for step in range(1, self.max_steps + 1):
            distances = _distances(products, place, m)
            inverse = share / np.maximum(distances, self.nu)
            new = np.zeros_like(place)
            new[:m] = inverse / inverse.sum()
            change = new - place
            length = max(float(change @ products @ change), 0.0) ** 0.5
            place = new
            short = self.tol * _usual(distances)
            if length <= short:
                away = None if left else self._off_a_row(products, place, share, max(self.nu, _NEAR * short))
                if away is None:
                    return place[:m], step, True
                place, left = away, True
        return place[:m], self.max_steps, False

    def _off_a_row(self, products: Array, place: Array, share: Array, reach: float) -> Array | None:
        """A place away from the rows within ``reach``, or ``None`` where the others do not pull harder than these hold.

        Steps away from a row are short at first, be it the minimum or not. Source: Vardi and Zhang, PNAS 2000.
        """
        distances = _distances(products, place, len(share))
        here = distances <= reach
        if not here.any() or here.all():
            return None
        pulls = np.where(here, 0.0, share / np.maximum(distances, self.nu))
        away = -place
        away[: len(share)] += pulls / pulls.sum()
        pull, held = pulls.sum() * max(float(away @ products @ away), 0.0) ** 0.5, share[here].sum()
        return None if pull <= held else place + (1 - held / pull) * away


def _distances(products: Array, place: Array, m: int) -> Array:
    along = products @ place
    return np.sqrt(np.maximum(products.diagonal()[:m] - 2 * along[:m] + place @ along, 0))


def _usual(distances: Array) -> float:
    """The mean distance, unless rows so far away make it that a step over all the others would look short."""
    mean, middle = float(distances.mean()), float(np.sort(distances)[(len(distances) - 1) // 2])
    return min(mean, _FAR * middle) if middle > 0 else mean


@register("rfa", version=1)
@dataclass(frozen=True)
class RobustFederatedAveraging(MajorityRule):
    """The approximate geometric median of clients weighted by their samples: few steps from the weighted mean.

        z ← Σ β_i x_i / Σ β_i,   β_i = α_i / max(ν, ‖x_i - z‖),   α_i = w_i / Σ w_j   (1/n without weights)

    Few steps from the mean leave much of what a very long row has done to the mean; ``geometric-median`` converges.

    Args: ``steps`` ≥ 1 (3, the paper's budget of communication); ``nu`` > 0 smoothing (1e-6).

    >>> import robustfl, torch
    >>> robustfl.defense("rfa(steps=20)")(torch.tensor([[0.0], [0.0], [0.0], [90.0]]), f=1) < 1e-3
    tensor([True])

    Reference: Algorithm 2 (smoothed Weiszfeld) of the paper below, as RFA runs it in every round.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@pillutla2022robust"
    cost: ClassVar[str] = "n²d for the inner products, n² per step"
    isometric: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    steps: int = param(3, ge=1, doc="Weiszfeld steps")
    nu: float = param(1e-6, gt=0, doc="smallest distance a weight is computed from")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        alpha = weights_of(X, context)
        z = alpha @ X / alpha.sum()
        for _ in range(self.steps):
            beta = alpha / lengths(X - z).clamp(min=self.nu)
            z = beta @ X / beta.sum()
        return z

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        products = rows.products()[:-1, :-1]
        place = share = shares(rows, context, self.name)
        for _ in range(self.steps):
            along = products @ place
            distances = (products.diagonal() - 2 * along + place @ along).clamp(min=0).sqrt()
            inverse = share / distances.clamp(min=self.nu)
            place = inverse / inverse.sum()
        return Aggregated(rows.combine(place))


# A step so short, in radii, is the last.
_SHORT = 1e-12


@register("huber", version=2)
@dataclass(frozen=True)
class HuberLoss(MajorityRule):
    """The point with the least sum of Huber losses: a mean of the near rows that far rows pull with constant force.

        F(X) = argmin_s Σ φ(‖s - x_i‖),   φ(u) = u²/2 for u ≤ T,   T u - T²/2 beyond

    by ``s ← Σ c_i x_i / Σ c_i``, ``c_i = min(1, T / ‖s - x_i‖)``, from a row amid the others until it stays.
    A large ``T`` is the mean, a small one the geometric median; ``f`` far rows move it by at most about
    ``T f / (n - 2f)``.

    Args: ``T`` > 0, a length, or None (default) for the median distance between two rows; ``max_steps`` ≥ 1 (100).

    >>> import robustfl
    >>> robustfl.defense("huber(T=1)")(torch.tensor([[0.0], [0.0], [0.0], [90.0]]), f=1).round(decimals=4)
    tensor([0.3333])

    Reference: the aggregator of the paper below, for clients that count alike. Notes: the paper gives each
    client a radius ``T_i`` that falls with its number of samples, from constants to be tuned; the default radius here
    is ours. It is found once, so that the objective stays convex.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@zhao2024huber"
    cost: ClassVar[str] = "n²d for the inner products, n² per step, one sum"
    on_host: ClassVar[str] = "stops once a step is short"

    T: float | None = param(None, gt=0, doc="radius within which rows count fully; None for the median distance")
    max_steps: int = param(100, ge=1, doc="most steps")

    @property
    def isometric(self) -> bool:
        return self.T is None

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        radius, s = self.T or torch.pdist(X).quantile(0.5), X.mean(0)
        for _ in range(1000):
            c = (radius / lengths(X - s)).clamp(max=1)
            s = c @ X / c.sum()
        return s

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        products, m = rows.products()[:-1, :-1], rows.count
        radius = self.T if self.T is not None else _median_distance(rows.squared_distances())
        square, place = products.diagonal(), torch.zeros(m, dtype=torch.float64)
        place[nearest_row(rows.squared_distances())] = 1.0
        steps = 0
        for steps in range(1, self.max_steps + 1):  # noqa: B007 - reported
            along = products @ place
            distance = (square - 2 * along + place @ along).clamp_(min=0).sqrt_()
            share = (radius / distance.clamp(min=1e-300)).clamp_(max=1)
            new = share / share.sum() if float(share.sum()) > 0 else place
            change, place = new - place, new
            if float((change @ products @ change).clamp(min=0).sqrt()) <= _SHORT * radius:
                break
        return Aggregated(rows.combine(place), facts={"steps": steps, "radius": radius})


def _median_distance(squares: Tensor) -> float:
    n = len(squares)
    if n < 2:
        return 1.0
    pairs = torch.triu_indices(n, n, offset=1)
    return float(squares[pairs[0], pairs[1]].clamp(min=0).sqrt().quantile(0.5))
