"""A defense on columns that several processes share: every one has all rows, and a part of the columns.

Rules on single columns and weighted sums need nothing else. Rules on distances add up the distances of the parts. A
rule that looks at the rows themselves finds out by ``NeedsWhole``; then one process runs it for all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustfl import kernels
from robustfl.contracts import Aggregated, Context
from robustfl.distributed import Team

from .pipeline import Pipeline
from .rows import Mixed, Stack
from .stack import finite_rows


class NeedsWhole(Exception):
    """A rule looks at rows as a whole, which no process has."""


class SlicedStack(Stack):
    """The columns ``part [n d_r]`` of rows ``[n d]``."""

    def __init__(self, part: Tensor, d: int, team: Team) -> None:
        super().__init__(part)
        self.part, self.team = part, team
        self.shape = torch.Size((len(part), d))

    @property
    def X(self) -> Tensor:  # noqa: N802 - the paper's name
        """Rows as a whole are nowhere."""
        raise NeedsWhole

    @property
    def dtype(self) -> torch.dtype:
        """Asked for by rules that keep a vector of their own from round to round, as a whole."""
        raise NeedsWhole

    def along(self, point: Tensor) -> Tensor:
        return self.team.total(super().along(self.here(point)).cpu())

    def lengths(self, about: Tensor | int | None = None) -> Tensor:
        if about is None:
            rows = self.part
        else:
            rows = self.part - (self.part[about] if isinstance(about, int) else self.here(about))
        square = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
        return self.team.total(square.cpu()).sqrt_()

    def exact_lengths(self) -> tuple[Tensor, Tensor]:
        peaks = self.part.abs().amax(1) if self.part.shape[1] else self.part.new_zeros(len(self.part))
        return self.lengths(), self.team.total(peaks.double().cpu())  # a sum bounds the largest

    def at(self, columns: Tensor) -> Stack:
        own = self.team.part(self.shape[1])
        mine = columns[(columns >= own.start) & (columns < own.stop)] - own.start
        return SlicedStack(self.part.index_select(1, mine.to(self.device)), len(columns), self.team)

    def here(self, vector: Tensor) -> Tensor:
        return vector if vector.shape[0] == self.part.shape[1] else vector[self.team.part(self.shape[1])]

    def _products(self) -> kernels.CentredGram:
        """As of the whole rows."""
        return _gram(self.part, self.team)


class SlicedMixed(Mixed):
    """Rows of which this process has some columns; what the methods return are these columns of the results."""

    stack: SlicedStack

    def products(self, point: Tensor | None = None) -> Tensor:
        if point is None:
            return super().products()
        # The point as a further row, which comes before the origin there and after it here.
        n = self.stack.shape[0]
        order = [*range(n), n + 1, n]
        more = torch.cat([self.stack.part, self.here(point)[None]])
        products = _gram(more, self.stack.team).products[order][:, order]
        lift = self._lift()
        wider: Tensor = torch.block_diag(lift, lift.new_ones((1, 1)))  # type: ignore[no-untyped-call]
        return wider @ products @ wider.T


def _gram(part: Tensor, team: Team) -> kernels.CentredGram:
    """Inner products from the sums of the parts' distances, which do not depend on any part's centre."""
    n = len(part)
    rounding = 0.0
    if part.shape[1]:
        made = kernels.centred_gram(part)
        distances, rounding = made.squares, made.rounding
    else:
        distances = torch.zeros((n + 1, n + 1), dtype=torch.float64)
    distances = team.total(distances)
    rows = distances[:n, :n]
    centre = rows.sort(dim=1).values[:, n // 2].argmin(dim=0, keepdim=True)
    to = distances[centre[0]]
    # A sum, so that all processes hold the same bound.
    rounding = float(team.total(torch.tensor(rounding, dtype=torch.float64)))
    return kernels.CentredGram((to[:, None] + to[None, :] - distances) / 2, distances, centre, rounding)


def run_sliced(pipeline: Pipeline, part: Tensor, d: int, *, f: int, context: Context, team: Team) -> Aggregated:
    """``pipeline.run`` on rows ``[n d]`` of which this process has the columns ``part [n d_r]``; so has the result.

    Raises ``NeedsWhole``, on all processes alike, if a rule cannot be run that way.
    """
    good = team.total(finite_rows(part.detach()).double()) == team.size
    seen = torch.zeros((len(part), 1), dtype=part.dtype).masked_fill(~good[:, None], torch.nan)
    keep, f_left, context = pipeline._admit(seen, f, context)
    rows = SlicedMixed(SlicedStack(part if bool(keep.all()) else part[keep.to(part.device)], d, team))
    return pipeline._through(rows, f_left, context, dropped=int((~keep).sum()))
