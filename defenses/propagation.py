"""Robustness handed from user to user through batch-norm statistics: FedRBN, and how the engine runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Context, Layers, Propagation
from robustfl.errors import UsageError
from robustfl.parameters import only_where, param
from robustfl.registry import create, describe, entries, register

from .pipeline import Pipeline, parse_pipeline, split_spec


@register("fedrbn", version=1)
@dataclass(frozen=True)
class FedRBN(Propagation):
    """A user without adversarial training gets the adversarial statistics of AT users, the more the more alike:

    ``sim_j = 1/L Σ_l ½[cos(μ_k^l, μ_j^l) + cos(v_k^l, v_j^l)]`` on clean-branch running values, ``α = softmax(sim/T)``,
    adversarial statistics of ``k`` := ``Σ_j α_j (·)_j``. One AT user who lies about its statistics is believed; name a
    rule to stand in for the weighted mean: ``"fedrbn+trimmed-mean(weighted=true)"``.

    Args:
        similarity: ``cos`` as above or ``uniform``, all AT users alike.
        temperature: T > 0; 0.01 in the paper, which all but copies the most similar source.
        when: ``round``, at the start of every round and before testing, or ``test``, before testing only.

    Reference: Hong et al., Federated Robustness Propagation: Sharing Adversarial Robustness in Heterogeneous Federated
    Learning, AAAI 2023, arXiv:2106.10196, equations 2-3, without the division by the number of sources printed there,
    which would shrink the statistics (the released code has none).

    >>> from robustfl.contracts import StatisticsSlices
    >>> layers = [StatisticsSlices("bn", slice(0, 2), slice(2, 4))]
    >>> sources = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
    >>> FedRBN(temperature=1.0).weights(sources, torch.tensor([1.0, 0.0, 1.0, 1.0]), layers)
    tensor([0.6225, 0.3775])
    """

    paper: ClassVar[str] = "@hong2023federated"
    cost: ClassVar[str] = "like the norm's merge, once per target with its own weights"

    similarity: str = param("cos", choices=("cos", "uniform"), doc="how much a source counts")
    temperature: float = param(0.01, gt=0.0, doc="T of the softmax over similarities")
    when: str = param("round", choices=("round", "test"), doc="every round, or before testing only")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.similarity == "cos", "similarity=cos", "temperature")

    @property
    def compares(self) -> bool:
        return self.similarity != "uniform"

    @property
    def every_round(self) -> bool:
        return self.when == "round"

    def weights(self, sources: Tensor, target: Tensor, layers: Layers) -> Tensor:
        """Weights ``[A]`` of the sources; ``layers`` are those of the clean branch. Raises ``UsageError`` for none."""
        n = len(sources)
        if n == 0:
            raise UsageError("fedrbn: there is no AT user to propagate from")
        if self.similarity == "uniform" or not layers:
            return sources.new_full((n,), 1 / n)
        likeness = self.similarities(sources, target, layers)
        return torch.softmax(likeness / self.temperature, dim=0).to(sources.dtype)

    def similarities(self, sources: Tensor, target: Tensor, layers: Layers) -> Tensor:
        """``sim_j [A]`` in float64; a vector of zeros is like nothing."""
        total = sources.new_zeros(len(sources), dtype=torch.float64)
        for layer in layers:
            for part in (layer.mean, layer.variance):
                total += 0.5 * torch.cosine_similarity(
                    sources[:, part].double(), target[part].double()[None], dim=1, eps=1e-8
                )
        return total / len(layers)


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
        clean: Layers,
        adversarial: Layers,
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
