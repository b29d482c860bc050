"""The variant of FBN that Chen et al. (2025) benchmark, for comparison with FBN itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm, StatisticsAggregation, StatisticsSlices
from robustfl.layer_kinds import layer_kind
from robustfl.norms.layers import Normalization, ServerBatchNorm, noted
from robustfl.norms.sums import client_moments
from robustfl.parameters import param
from robustfl.registry import register


class AveragedStatistics(ServerBatchNorm):
    """As ``ServerBatchNorm``, but reports the plain average over batches of mean and variance, counting samples."""

    def look(self, x: Tensor, sizes: tuple[int, ...]) -> None:
        self.pool(*client_moments(x, sizes), list(sizes))

    @noted
    def pool(self, mean: Tensor, variance: Tensor, counts: list[int]) -> None:
        """The plain average over the forwards of the round."""
        if self.add(counts) or self._own is None:
            self._own, self._batches = (mean, variance), 1
            return
        self._batches += 1
        old_mean, old_variance = self._own
        share = 1 / self._batches
        self._own = (torch.lerp(old_mean, mean, share), torch.lerp(old_variance, variance, share))


layer_kind(AveragedStatistics)(Normalization)


@register("fbn-hbn-repo", version=1)
@dataclass(frozen=True)
class FBNHBNRepo(Norm):
    """Not FBN: the code released with HBN that goes by that name, whose rows must not be held against ``fbn``.

    Clients normalise with the server's ``(m, v)`` and report averages over local steps; the server takes
    ``m⁺ = (1−β)m + βΣ(n_k/N)m_k`` and only then ``v⁺ = (1−β)v + βΣ n_k/(N−1)·[v_k + (m_k − m⁺)²]``, where n_k are
    the samples that k has seen in the round: its own after one epoch. The deviations are therefore from a mean that has
    hardly moved.

    ``momentum`` β in (0, 1]; ``eps`` > 0 is added to variances.

    Reference: code released with Chen et al., Hybrid Batch Normalisation: Resolving the Dilemma of Batch Normalisation
    in Federated Learning, ICML 2025, arXiv:2505.21877.

    >>> FBNHBNRepo().momentum
    0.1
    """

    paper: ClassVar[str] = "code released with @chen2025hybrid"

    momentum: float = param(0.1, gt=0, le=1, doc="β, step of the server's statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""
        return AveragedStatistics(channels, eps=self.eps)

    def merge(
        self,
        messages: Tensor,
        counts: Tensor,
        previous: Tensor,
        layers: Sequence[StatisticsSlices],
        defense: StatisticsAggregation,
    ) -> Tensor:
        """The released server step, every sum taken by the defense."""
        new, before = previous.double().clone(), previous.double()
        for i, layer in enumerate(layers):
            n = counts[:, i].double()
            total = float(n.sum())
            if total < 2:
                continue
            m, v = messages[:, layer.mean].double(), messages[:, layer.variance].double().clamp(min=0.0)
            aggregate = defense.mixed(torch.cat([m, v], dim=1), weights=n / total)
            new[layer.mean] = torch.lerp(before[layer.mean], aggregate(m), self.momentum)
            spread = aggregate(v) + aggregate((m - new[layer.mean]).square())
            moved = torch.lerp(before[layer.variance], spread * (total / (total - 1)), self.momentum)
            new[layer.variance] = moved.clamp(min=0.0)
        return new.to(previous.dtype)
