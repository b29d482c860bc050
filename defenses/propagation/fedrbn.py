"""FedRBN's propagation of adversarial batch-norm statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Propagation, StatisticsSlices
from robustfl.errors import UsageError
from robustfl.parameters import check, only_where, param
from robustfl.registry import register


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
        check(self)
        only_where(self, self.similarity == "cos", "similarity=cos", "temperature")

    @property
    def compares(self) -> bool:
        return self.similarity != "uniform"

    @property
    def every_round(self) -> bool:
        return self.when == "round"

    def weights(self, sources: Tensor, target: Tensor, layers: Sequence[StatisticsSlices]) -> Tensor:
        """Weights ``[A]`` of the sources; ``layers`` are those of the clean branch. Raises ``UsageError`` for none."""
        n = len(sources)
        if n == 0:
            raise UsageError("fedrbn: there is no AT user to propagate from")
        if self.similarity == "uniform" or not layers:
            return sources.new_full((n,), 1 / n)
        likeness = self.similarities(sources, target, layers)
        return torch.softmax(likeness / self.temperature, dim=0).to(sources.dtype)

    def similarities(self, sources: Tensor, target: Tensor, layers: Sequence[StatisticsSlices]) -> Tensor:
        """``sim_j [A]`` in float64; a vector of zeros is like nothing."""
        total = sources.new_zeros(len(sources), dtype=torch.float64)
        for layer in layers:
            for part in (layer.mean, layer.variance):
                total += 0.5 * torch.cosine_similarity(
                    sources[:, part].double(), target[part].double()[None], dim=1, eps=1e-8
                )
        return total / len(layers)
