"""Batch normalization as it is: naive, fixed, on one machine, with two branches, and kept by clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from robustfl.contracts import (
    BranchedLayer,
    BranchedNorm,
    Layers,
    Norm,
    OneMachineNorm,
    StatisticsAggregation,
    Tag,
)
from robustfl.norms.layers import MergedBatchNorm, OwnBatchNorm
from robustfl.norms.merging import AveragedNorm
from robustfl.parameters import param
from robustfl.registry import register


@register("naive-bn", version=1)
@dataclass(frozen=True)
class NaiveBN(AveragedNorm):
    """Clients normalise with their own batch; the server averages their running statistics.

    Train: ``y = γ(u − ū_i)/√(σ_i² + ε) + ζ``; server: ``m⁺ = F(m_i)``, ``v⁺ = F(v_i)``. On heterogeneous data it
    breaks: ``v⁺`` misses the variance between the clients' means, so that evaluation differs from training.

    ``momentum`` in (0, 1] moves running values (torch's convention and default); ``eps`` > 0 stabilises the root.

    >>> import torch
    >>> layer = NaiveBN().layer(2)
    >>> x = torch.tensor([[1.0, 4.0], [3.0, 8.0]])
    >>> layer(x).detach().sign(), layer.report()[0]
    (tensor([[-1., -1.],
            [ 1.,  1.]]), tensor([[0.2000, 0.6000]]))

    Notes: with a pipeline such as ``nnm+median`` one mixing, fixed on a layer's means and variances together, serves
    both, so that schemes differ in their formulas alone.
    """

    paper: ClassVar[str] = "@ioffe2015batch; as averaged by @mcmahan2017communication"
    cost: ClassVar[str] = "2C numbers per layer and round each way"

    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")


@register("fixbn", version=1)
@dataclass(frozen=True)
class FixBN(AveragedNorm):
    """Naive batch normalization until round ``⌊T·switch⌋``, then the averaged statistics are frozen.

    Before: ``m⁺ = F(m_i)``, ``v⁺ = F(v_i)``; after: training normalises with ``(m, v)`` and nothing is reported.
    The frozen variance misses the between-client term, which hurts most when clients share no labels.

    ``switch`` in [0, 1] is the fraction of the rounds after which statistics are fixed (½ in Guerraoui et al., 2024);
    ``momentum`` in (0, 1] and ``eps`` > 0 are torch's.

    >>> norm = FixBN(switch=0.5)
    >>> norm.frozen(1499, 3000), norm.frozen(1500, 3000)
    (False, True)

    Notes: only normalization layers are fixed, dropout stays on; scale and shift keep training.
    """

    paper: ClassVar[str] = "@zhong2023making"
    cost: ClassVar[str] = "2C numbers per layer and round each way until the statistics are fixed"

    switch: float = param(0.5, ge=0, le=1, doc="fraction of the rounds after which statistics are frozen")
    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def frozen(self, round: int, rounds: int) -> bool:
        """True if ``round`` (from 0) lies in the second phase; a product like 100 · 0.29 counts as 29."""
        return round >= math.floor(rounds * self.switch + 1e-9)


@register("centralised-bn", version=1)
@dataclass(frozen=True)
class CentralisedBN(OneMachineNorm):
    """An oracle: one machine runs ordinary batch normalization on the union of all clients' batches.

    ``y = γ(u − ū)/√(σ² + ε) + ζ`` with the mean and variance of the merged batch. It needs everybody's activations
    in one place, so it only runs without attack, with full participation and one batch per round.

    ``momentum`` in (0, 1] and ``eps`` > 0 are torch's.

    >>> import torch
    >>> layer = CentralisedBN().layer(1)
    >>> layer.begin((1, 1))
    >>> layer(torch.tensor([[1.0], [3.0]])).detach().round().tolist()
    [[-1.0], [1.0]]

    Notes: every client's update row is the gradient of the merged batch's mean loss, its statistics row the merged
    running statistics; any rule of identical rows returns that row, and the merge ignores the defense.
    """

    paper: ClassVar[str] = "@ioffe2015batch"
    cost: ClassVar[str] = "the batches of all clients on one machine"

    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        return MergedBatchNorm(channels, momentum=self.momentum, eps=self.eps)

    def merge(
        self, messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation
    ) -> Tensor:
        """The merged batch's running statistics, which every row holds."""
        return messages[0].to(previous.dtype).clone()


class DualBatchNorm(BranchedLayer):
    """Two batch normalizations, ``clean`` and ``adversarial``; with ``share_affine`` they scale and shift alike."""

    def __init__(self, channels: int, *, momentum: float, eps: float, share_affine: bool) -> None:
        super().__init__()
        self.clean = OwnBatchNorm(channels, momentum=momentum, eps=eps)
        self.adversarial = OwnBatchNorm(channels, momentum=momentum, eps=eps)
        if share_affine:
            self.adversarial.weight, self.adversarial.bias = self.clean.weight, self.clean.bias

    def forward(self, x: Tensor) -> Tensor:
        chosen: OwnBatchNorm = getattr(self, self.branch)
        before = chosen.frozen
        chosen.frozen = before or self.frozen_branch
        try:
            out: Tensor = chosen(x)
        finally:
            chosen.frozen = before
        return out


@register("dual-bn", version=1)
@dataclass(frozen=True)
class DualBN(AveragedNorm, BranchedNorm):
    """Every layer has two sets of statistics, for clean and for adversarial batches; each forward names its branch.

    ``y = γ(u − ū)/√(σ² + ε) + ζ`` with the batch's statistics in training and the branch's running ones in
    evaluation. A user that never trains a branch has statistics (0, 1) there unless somebody propagates some.

    ``local`` keeps statistics and scale/shift on the client, as FedRBN does; else all are averaged. ``share_affine``
    gives both branches one scale and shift (the released code; the paper calls only statistics personal).
    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> import torch
    >>> layer = DualBN().layer(1)
    >>> layer.branch = "adversarial"
    >>> _ = layer(torch.tensor([[1.0], [3.0]]))
    >>> layer.adversarial.report()[0].tolist(), layer.clean.report()[2].tolist()
    ([[0.20000000298023224]], [0])
    """

    paper: ClassVar[str] = "@xie2020adversarial; local as in @hong2023federated"
    cost: ClassVar[str] = "2 × 2C numbers per layer and round each way"

    local: bool = param(False, doc="keep statistics, scale and shift on the client")
    share_affine: bool = param(True, doc="one scale and shift for both branches")
    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    @property
    def private(self) -> frozenset[Tag]:
        return frozenset({Tag.AFFINE, Tag.MEAN, Tag.VARIANCE}) if self.local else frozenset()

    def layer(self, channels: int) -> nn.Module:
        return DualBatchNorm(channels, momentum=self.momentum, eps=self.eps, share_affine=self.share_affine)


@dataclass(frozen=True)
class _Personal(Norm):
    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        return OwnBatchNorm(channels, momentum=self.momentum, eps=self.eps)


@register("fedbn", version=1)
@dataclass(frozen=True)
class FedBN(_Personal):
    """Batch normalization stays with the client: scale, shift and statistics are private, weights are averaged.

    ``y = γ_k(u − ū)/√(σ² + ε) + ζ_k``; client ``k`` is tested with its own composite model. It has no global model:
    a client with two classes is lost on the others, and one that never takes part keeps its initial values.

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> sorted(tag.value for tag in FedBN().private)
    ['affine', 'mean', 'variance']
    """

    paper: ClassVar[str] = "@li2021fedbn"
    cost: ClassVar[str] = "no statistics to send, and no affine parameters"
    private: ClassVar[frozenset[Tag]] = frozenset({Tag.AFFINE, Tag.MEAN, Tag.VARIANCE})


@register("silobn", version=1)
@dataclass(frozen=True)
class SiloBN(_Personal):
    """Statistics stay with the client, scale and shift are averaged like the weights.

    ``y = γ(u − ū)/√(σ² + ε) + ζ`` with ``(ū, σ²)`` and their running values private. Client ``k`` is tested with its
    own composite model; one that never takes part keeps its initial statistics.

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> sorted(tag.value for tag in SiloBN().private)
    ['mean', 'variance']
    """

    paper: ClassVar[str] = "@andreux2020siloed"
    cost: ClassVar[str] = "no statistics to send; affine parameters are shared"
    private: ClassVar[frozenset[Tag]] = frozenset({Tag.MEAN, Tag.VARIANCE})


@register("singlenet", version=1)
@dataclass(frozen=True)
class SingleNet(_Personal):
    """No communication: every client trains its own batch-norm network alone, the lower bound of a comparison.

    All entries are private, so there is nothing to aggregate and nothing to attack: a defense changes nothing, an
    attack reaches nobody (both are told).

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> SingleNet().private == frozenset(Tag) - {Tag.COUNTER}
    True
    """

    paper: ClassVar[str] = "@wang2025batch (reference without communication)"
    cost: ClassVar[str] = "nothing is sent"
    private: ClassVar[frozenset[Tag]] = frozenset(Tag) - {Tag.COUNTER}
