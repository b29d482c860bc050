"""A propagation as the engine runs it: the sources' weights, then a rule that takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.contracts import Context, Propagation, StatisticsSlices
from robustfl.errors import UsageError
from robustfl.registry import create, describe, entries

from ..pipeline import Pipeline, parse_pipeline, split_spec


@dataclass(frozen=True)
class Propagate:
    """``propagation`` weighs the sources for each target, ``rule`` aggregates their adversarial statistics.

    >>> parse_propagation("fedrbn+trimmed-mean").describe()
    'fedrbn+trimmed-mean'
    """

    propagation: Propagation
    rule: Pipeline

    def __call__(
        self,
        sources: Tensor,
        targets: Tensor,
        *,
        clean: Sequence[StatisticsSlices],
        adversarial: Sequence[StatisticsSlices],
        f: int = 0,
        context: Context | None = None,
    ) -> Tensor:
        """New adversarial statistics ``[T a]`` of the targets, layer by layer, mean first; variances are floored at 0.

        ``sources [A s]`` and ``targets [T s]`` are whole statistics rows, ``clean`` and ``adversarial`` tell where the
        branches' layers lie. A source with a non-finite entry counts as missing, and ``f`` is lowered by as many.
        Raises ``UsageError`` without a source and ``Refused`` for too few of them for the rule.
        """
        finite = torch.isfinite(sources).all(1)
        f = max(0, f - int((~finite).sum()))
        sources = sources[finite]
        if not len(sources):
            raise UsageError(f"{self.describe()}: no AT user has finite statistics to propagate")
        columns = torch.cat(
            [torch.arange(part.start, part.stop) for la in adversarial for part in (la.mean, la.variance)]
        )
        rows = sources[:, columns.to(sources.device)]
        start, variances = 0, torch.zeros(len(columns), dtype=torch.bool, device=sources.device)
        for layer in adversarial:
            width = layer.mean.stop - layer.mean.start
            variances[start + width : start + 2 * width] = True
            start += 2 * width
        base = Context() if context is None else context
        made = []
        for target in targets:
            weights = self.propagation.weights(sources, target, clean)
            shared = Context(generator=base.generator, round=base.round, weights=weights)
            row = self.rule.run(rows, f=f, context=shared).vector
            made.append(torch.where(variances, row.clamp(min=0.0), row))
        return torch.stack(made) if made else rows[:0]

    def refusal(self, sources: int, f: int) -> str | None:
        """Why ``sources`` AT users, ``f`` of them Byzantine, are refused, or ``None``."""
        if sources == 0:
            return f"{self.describe()}: there is no AT user to propagate from; see the setting 'at'"
        reason = self.rule.statistics_refusal(sources, f)
        return None if reason is None else f"{self.describe()} among {sources} AT users: {reason}"

    def describe(self) -> str:
        """The spec that builds this propagation again."""
        rule = self.rule.describe()
        return describe(self.propagation) + ("" if rule == "mean" else f"+{rule}")


def parse_propagation(spec: str) -> Propagate:
    """The propagation ``"fedrbn"`` or ``"fedrbn(...)+step+...+aggregator"``; the rule is the weighted mean by default.

    >>> parse_propagation("fedrbn(temperature=0.1)+mean").describe()
    'fedrbn(temperature=0.1)'
    """
    first, *rest = split_spec(spec)
    method = create("defense", first)
    if not isinstance(method, Propagation):
        names = [e.name for e in entries("defense") if issubclass(e.cls, Propagation)]
        raise UsageError(f"{first!r} propagates nothing; begin with {', '.join(names)}, and let '+rule' follow it")
    return Propagate(method, parse_pipeline("+".join(rest) if rest else "mean"))
