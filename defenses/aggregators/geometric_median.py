"""The geometric median by smoothed Weiszfeld steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from robustfl.contracts import Aggregated, Context
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import MajorityRule, Mixed

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

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
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
    """The distances ``[m]`` of the rows from the place."""
    along = products @ place
    return np.sqrt(np.maximum(products.diagonal()[:m] - 2 * along[:m] + place @ along, 0))


def _usual(distances: Array) -> float:
    """The mean distance, unless rows so far away make it that a step over all the others would look short."""
    mean, middle = float(distances.mean()), float(np.sort(distances)[(len(distances) - 1) // 2])
    return min(mean, _FAR * middle) if middle > 0 else mean
