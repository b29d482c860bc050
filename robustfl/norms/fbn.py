"""FBN as in its paper, and as in the released code of HBN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Layers, Norm, Reports, StatisticsAggregation
from robustfl.errors import Refused
from robustfl.layer_kinds import layer_kind
from robustfl.norms.layers import Normalization, ServerBatchNorm, noted
from robustfl.norms.merging import merge_layers
from robustfl.norms.sums import client_moments
from robustfl.parameters import param
from robustfl.registry import register


@register("fbn", version=1)
@dataclass(frozen=True)
class FBN(Norm):
    """Everybody normalises with the server's ``(m, v)``; the server's merge is exact for the merged batch.

    Client: ``y = γ(u − m)/√(v + ε) + ζ``; ``m_i = (1−β)m + βū_i``; ``v_i = (1−β)v + β·K/(K−1)·σ_i²``. Server:
    ``m⁺ = Σ w_i m_i``; ``v⁺ = Σ w_i v_i + K/((K−1)β)·Σ w_i(m_i − m⁺)²`` with ``w_i = K_i/K``. One wrong mean enters
    ``v⁺`` as its square over ``nβ``, so plain averaging breaks under attack; then the defense replaces every sum.

    ``momentum`` β in (0, 1] (torch's convention and default); ``eps`` > 0; ``joint`` lets steps such as ``nnm``, and
    rules that compare rows, look at all layers together instead of layer by layer; it is refused where the defense goes
    column by column, as a plain median does.

    >>> layer = FBN().layer(1)
    >>> y = layer(torch.tensor([[1.0], [3.0]]))
    >>> [t.tolist() for t in layer.report()]
    [[[2.0]], [[1.0]], [2]]

    Notes: batches may differ in size, where the paper takes them equal. With several local steps ``(m, v)`` stay as
    received, counts, means and deviations are pooled (Chan's rule) and the round moves them once.
    """

    paper: ClassVar[str] = "@guerraoui2024overcoming"
    cost: ClassVar[str] = "2C numbers per layer and round each way"

    momentum: float = param(0.1, gt=0, le=1, doc="β, step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")
    joint: bool = param(False, doc="defend all layers together instead of each by itself")

    def layer(self, channels: int) -> nn.Module:
        return ServerBatchNorm(channels, eps=self.eps)

    def messages(self, reports: Reports, previous: Tensor, layers: Layers) -> Tensor:
        """``(m_i, v_i)`` from pooled means and biased variances. Raises ``Refused`` for one value in all."""
        beta, before = self.momentum, previous.double()
        rows = reports.rows.double()
        sent = torch.empty_like(rows)
        for layer, total in zip(layers, reports.counts.sum(0).tolist(), strict=True):
            if total == 1:
                raise Refused(f"fbn: layer {layer.name!r} saw one value per channel in the round; it needs at least 2")
            unbias = total / (total - 1)
            sent[:, layer.mean] = (1 - beta) * before[layer.mean] + beta * rows[:, layer.mean]
            sent[:, layer.variance] = (1 - beta) * before[layer.variance] + beta * unbias * rows[:, layer.variance]
        return sent.to(reports.rows.dtype)

    def merge(
        self, messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation
    ) -> Tensor:
        """The merged batch's running statistics, every sum taken by the defense."""
        return merge_layers(
            messages, counts, previous, layers, defense, by_values=True, momentum=self.momentum, joint=self.joint
        )


class AveragedStatistics(ServerBatchNorm):
    """As ``ServerBatchNorm``, but reports the plain average over batches of mean and variance, counting samples."""

    def look(self, x: Tensor, sizes: tuple[int, ...]) -> None:
        self.pool(*client_moments(x, sizes), list(sizes))

    @noted
    def pool(self, mean: Tensor, variance: Tensor, counts: list[int]) -> None:
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
        return AveragedStatistics(channels, eps=self.eps)

    def merge(
        self, messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation
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
