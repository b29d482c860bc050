"""A rule as a norm's merge of statistics sees it: the server's defense, or the plain mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustfl.contracts import Context, StatisticsAggregation

from .pipeline import Pipeline


@dataclass(frozen=True)
class DefendedStatistics(StatisticsAggregation):
    """The server's defense as a norm's merge sees it: ``mixed`` fixes the pipeline's steps on a basis."""

    pipeline: Pipeline
    f: int
    context: Context
    refresh: bool = False
    begins: int = 0

    @property
    def round(self) -> int:
        return self.context.round

    @property
    def by_columns(self) -> bool:
        return self.pipeline.rule_by_columns

    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Fix the steps' coefficients on ``basis [n k]``; the result aggregates any ``[n j]`` rows with them."""
        return self.pipeline.mixed(basis, f=self.f, context=self._weighed(weights))

    def each(
        self, bases: Sequence[Tensor], *, weights: Sequence[Tensor] | None = None
    ) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """``mixed`` of several bases, whose columns the rule sees together if it treats every one alike."""
        if not self.by_columns:
            return super().each(bases, weights=weights)
        alike = weights is None or all(torch.equal(own, weights[0]) for own in weights[1:])
        if not alike and self.pipeline.aggregator.weighs:
            return super().each(bases, weights=weights)
        context = self._weighed(None if weights is None else weights[0])
        return self.pipeline.mixed_columns(bases, f=self.f, context=context)

    def _weighed(self, weights: Tensor | None) -> Context:
        return self.context if weights is None else replace(self.context, weights=weights)


@dataclass(frozen=True)
class PlainMean(StatisticsAggregation):
    """The weighted mean, without any defense; equal weights unless merge or ``sample_weights [n]`` say otherwise."""

    sample_weights: Tensor | None = None
    round: int = 0
    refresh: bool = False
    begins: int = 0

    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """The weighted mean of rows ``[n j]``; nothing of ``basis`` but its number of rows matters."""
        given = self.sample_weights if weights is None else weights
        if given is None:
            given = basis.new_full((basis.shape[0],), 1 / basis.shape[0])
        shares = (given / given.sum()).to(basis)
        return lambda rows: shares @ rows
