"""A defense on columns that several processes share: every one has all rows, and a part of the columns.

Rules on single columns and weighted sums need nothing else. Rules on distances add up the distances of the parts. A
rule that looks at the rows themselves finds out by ``NeedsWhole``; then one process runs it for all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robustfl import kernels
from robustfl.contracts import Aggregated, Context, Step
from robustfl.kernels.blocks import ColumnRule, over_columns
from robustfl.team import Team

from .pipeline import Pipeline, told
from .rows import Mixed, Stack
from .stack import finite_rows


class NeedsWhole(Exception):
    """A rule looks at rows as a whole, which no process has."""


class SlicedStack(Stack):
    """The columns ``part [n d_r]`` of rows ``[n d]``."""

    def __init__(self, part: Tensor, d: int, team: Team) -> None:
        self.part, self.team, self._gram = part, team, None
        self.shape = torch.Size((len(part), d))

    @property
    def X(self) -> Tensor:  # noqa: N802 - the paper's name
        """Rows as a whole are nowhere."""
        raise NeedsWhole

    @property
    def dtype(self) -> torch.dtype:
        """Asked for by rules that keep a vector of their own from round to round, as a whole."""
        raise NeedsWhole

    @property
    def last_bits(self) -> float:
        return kernels.last_bits(self.part.dtype)

    @property
    def place(self) -> torch.device:
        return kernels.at_hand(self.part)

    def along(self, point: Tensor) -> Tensor:
        return self.team.total(Stack(self.part).along(point).cpu())

    def _products(self) -> kernels.CentredGram:
        """As of the whole rows."""
        return _gram(self.part, self.team)


class SlicedMixed(Mixed):
    """Rows of which this process has some columns; what the methods return are these columns of the results."""

    stack: SlicedStack

    def after(self, step: Step, *, f: int, context: Context) -> Mixed:
        return SlicedMixed(self.stack, super().after(step, f=f, context=context).coefficients)

    def chosen(self, rows: Tensor) -> Mixed:
        return SlicedMixed(self.stack, super().chosen(rows).coefficients)

    def products(self, *points: Tensor) -> Tensor:
        lift = self._lift()
        if not points:
            return lift @ self.stack.gram.products @ lift.T
        # The points as further rows, which come before the origin there and after it here.
        more = torch.cat([self.stack.part, torch.stack([self.here(p) for p in points])])
        n, k = self.stack.shape[0], len(points)
        order = [*range(n), n + k, *range(n, n + k)]
        products = _gram(more, self.stack.team).products[order][:, order]
        m = len(lift)
        wider = torch.zeros((m + k, n + 1 + k), dtype=torch.float64)
        wider[:m, : n + 1], wider[m:, n + 1 :] = lift, torch.eye(k, dtype=torch.float64)
        return wider @ products @ wider.T

    def along(self, point: Tensor) -> Tensor:
        return super().along(self.here(point))

    def distances_to(self, point: Tensor | None) -> Tensor:
        if self.coefficients is None:
            about = None if point is None else self.here(point)
            return self._lengths(self.stack.part if about is None else self.stack.part - about)
        products = self.products() if point is None else self.products(point)
        along = products[-1, : self.count]
        return (products.diagonal()[: self.count] - 2 * along + products[-1, -1]).clamp(min=0).sqrt()

    def distances_from(self, row: int) -> Tensor:
        if self.coefficients is not None:
            return self.squared_distances()[row].sqrt()
        return self._lengths(self.stack.part - self.stack.part[row])

    def combine(self, weights: Tensor) -> Tensor:
        return Mixed(Stack(self.stack.part), self.coefficients).combine(weights)

    def median(self) -> Tensor:
        return kernels.median(self.stack.part, mixing=self.coefficients)

    def trimmed_mean(self, f: int) -> Tensor:
        return kernels.trimmed_mean(self.stack.part, f, mixing=self.coefficients)

    def columns(self, rule: ColumnRule) -> Tensor:
        return over_columns(self.stack.part, rule, mixing=self.coefficients)

    def at(self, columns: Tensor) -> Mixed:
        own = self.stack.team.part(self.stack.shape[1])
        mine = columns[(columns >= own.start) & (columns < own.stop)] - own.start
        chosen = self.stack.part.index_select(1, mine.to(self.stack.part.device))
        return SlicedMixed(SlicedStack(chosen, len(columns), self.stack.team), self.coefficients)

    def here(self, vector: Tensor) -> Tensor:
        if vector.shape[0] == self.stack.part.shape[1]:
            return vector
        return vector[self.stack.team.part(self.stack.shape[1])]

    def _lengths(self, rows: Tensor) -> Tensor:
        square = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
        return self.stack.team.total(square.cpu()).sqrt_()


def _gram(part: Tensor, team: Team) -> kernels.CentredGram:
    """Inner products from the sums of the parts' distances, which do not depend on any part's centre."""
    n = len(part)
    rounding = 0.0
    if part.shape[1]:
        made = kernels.centred_gram(part)
        distances, rounding = kernels.squared_distances(made.products), made.rounding
    else:
        distances = torch.zeros((n + 1, n + 1), dtype=torch.float64)
    distances = team.total(distances)
    rows = distances[:n, :n]
    centre = rows.sort(dim=1).values[:, n // 2].argmin(dim=0, keepdim=True)
    to = distances[centre[0]]
    # A sum, so that all processes hold the same bound.
    rounding = float(team.total(torch.tensor(rounding, dtype=torch.float64)))
    return kernels.CentredGram((to[:, None] + to[None, :] - distances) / 2, centre, rounding)


def run_sliced(pipeline: Pipeline, part: Tensor, d: int, *, f: int, context: Context, team: Team) -> Aggregated:
    """``pipeline.run`` on rows ``[n d]`` of which this process has the columns ``part [n d_r]``; so has the result.

    Raises ``NeedsWhole``, on all processes alike, if a rule cannot be run that way.
    """
    part, context = pipeline.displaced(part, context)
    good = team.total(finite_rows(part.detach()).double()) == team.size
    seen = torch.zeros((len(part), 1), dtype=part.dtype).masked_fill(~good[:, None], torch.nan)
    keep, f_left, context = pipeline._admit(seen, f, context)
    rows: Mixed = SlicedMixed(SlicedStack(part if bool(keep.all()) else part[keep.to(part.device)], d, team))
    for step in pipeline.steps:
        rows = rows.after(step, f=f_left, context=context)
    result = pipeline._reduce(rows, f_left, context)
    return replace(result, facts={"dropped": int((~keep).sum()), "f": f_left, **told(result.facts)})
