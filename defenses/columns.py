"""Rules on one column at a time, for blocks of columns (``kernels.blocks.ColumnRule``).

Medians and trimmed means have kernels of their own; what stands here needs to know which row a value came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.kernels.blocks import at_once
from robustfl.kernels.order import RankMean

from .ties import largest, smallest

# Sums of weights that differ by rounding alone count as equal.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class NearestMean:
    """Per column, the mean of the ``keep`` values nearest to the mean of the ranks ``low ≤ rank < high``.

    Of equally near values those of the lower rows are taken. Two distances from the centre ``c`` are equal if they
    differ by no more than ``16 eps r``, ``r`` the ``keep``-th distance, once the rounding of ``c`` is corrected: what
    rounding can do to values that near, whatever others there are. Most columns have no tie within the rounding of
    ``c`` either and never see the slow way.
    """

    n: int
    low: int
    high: int
    keep: int

    @property
    def centre(self) -> RankMean:
        """The value the others are compared with."""
        return RankMean(self.n, self.low, self.high)

    @property
    def radius(self) -> RankMean:
        """The distance of the farthest value taken, as a rank among distances."""
        return RankMean(self.n, self.keep - 1, self.keep)

    @property
    def scratch_rows(self) -> int:
        return self.n + 2 + max(1, self.centre.scratch_rows, self.radius.scratch_rows)

    def whole(self, X: Tensor) -> bool:
        """Not on the CPU: a block of distances must stay in cache."""
        return at_once(X)

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        if at_once(rows):
            self._whole(rows, out)
            return
        distance, (centre, radius), rest = scratch[: self.n], scratch[self.n : self.n + 2], scratch[self.n + 2 :]
        self.centre.reduce(rows, centre, rest)
        torch.sub(rows, centre, out=distance).abs_()
        self.radius.reduce(distance, radius, rest)
        blur = self._blur(centre.abs() + radius)
        torch.le(distance, torch.add(radius, blur, out=rest[0]), out=distance)
        torch.sum(distance, dim=0, out=radius)
        # Row by row: the order of a sum over a dimension would depend on the width of the block.
        first, *others = distance.mul_(rows).unbind(0)
        out.copy_(first)
        for row in others:
            out.add_(row)
        out.div_(self.keep)
        # Where several values lie on the radius, too many were taken.
        crowded = (radius != self.keep).nonzero().flatten()
        if len(crowded):
            values = rows[:, crowded]
            away = self._corrected(values, values.sort(dim=0).values, centre[crowded])
            slack = (self._blur(away.sort(dim=0).values[self.keep - 1]) / 2).expand(away.T.shape[::-1])
            chosen = smallest(away.T, self.keep, slack.T).T
            out[crowded] = values.gather(0, chosen).mean(0)

    def _whole(self, rows: Tensor, out: Tensor) -> None:
        """The same, without asking where there are ties."""
        ordered = rows.sort(dim=0).values
        distance = self._corrected(rows, ordered, ordered[self.low : self.high].mean(0))
        radius = distance.sort(dim=0).values[self.keep - 1]
        blur = self._blur(radius)
        nearer = distance < radius - blur
        tied = (distance <= radius + blur) & ~nearer
        chosen = nearer | (tied & (tied.cumsum(0) <= self.keep - nearer.sum(0)))
        torch.div((rows * chosen).sum(0), self.keep, out=out)

    def _corrected(self, rows: Tensor, ordered: Tensor, centre: Tensor) -> Tensor:
        """Distances from the exact centre: differences of near values are exact, the mean of large ones is not."""
        return (rows - centre).sub_((ordered[self.low : self.high] - centre).mean(0)).abs_()

    @staticmethod
    def _blur(size: Tensor) -> Tensor:
        return size * (16 * torch.finfo(size.dtype).eps)


@dataclass(frozen=True)
class WeightedTrim:
    """Per column, the weighted mean without the ``f`` lowest and ``f`` highest values, counted by rows.

    Of values that are equal but for rounding the lower row is the lower one. Where all values left have weight zero,
    they count alike.
    """

    weights: Tensor
    f: int
    scratch_rows: int = 0

    def whole(self, X: Tensor) -> bool:
        """Never: sorting makes copies."""
        return False

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        values = rows.T
        slack = values.abs() * (1.1 * torch.finfo(rows.dtype).eps)
        low = smallest(values, self.f, slack)
        # What is trimmed below must not be trimmed above as well; there the highest of equal rows goes first.
        rest = values.scatter(1, low, -torch.inf).flip(1)
        high = len(rows) - 1 - largest(rest, self.f, slack.scatter(1, low, 0.0).flip(1))
        left = torch.ones_like(values).scatter_(1, low, 0.0).scatter_(1, high, 0.0)
        weights = left * self.weights.to(rows)
        weights = torch.where(weights.sum(1, keepdim=True) == 0, left, weights)
        torch.sum(values * (weights / weights.sum(1, keepdim=True)), dim=1, out=out)


@dataclass(frozen=True)
class WeightedMedian:
    """Per column, the middle between the lower and the upper weighted median.

    The lower one is the least value such that it and those below it hold half of the weight, the upper one the
    greatest such that it and those above it do; they differ only where a split is exactly even.
    """

    weights: Tensor
    scratch_rows: int = 0

    def whole(self, X: Tensor) -> bool:
        """Never: sorting makes copies."""
        return False

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        values, order = rows.sort(dim=0, stable=True)
        share = (self.weights / self.weights.sum()).to(device=rows.device)[order]
        below = share.cumsum(0)
        lower = (below < 0.5 - _ROUNDING).sum(0, keepdim=True)
        upper = (below <= 0.5 + _ROUNDING).sum(0, keepdim=True)
        torch.add(values.gather(0, lower)[0] / 2, values.gather(0, upper)[0] / 2, out=out)


@dataclass(frozen=True)
class SignMajority:
    """Per column, the sign of the sum of signs."""

    scratch_rows: int = 1

    def whole(self, X: Tensor) -> bool:
        """Not on the CPU: signs of a block are made one row at a time."""
        return at_once(X)

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        if at_once(rows):
            torch.sign(rows.sign().sum(0), out=out)
            return
        (sign,) = scratch
        out.zero_()
        for row in rows:
            out.add_(torch.sign(row, out=sign))
        out.sign_()
