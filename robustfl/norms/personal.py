"""Schemes whose clients keep batch-norm entries, or everything, to themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Norm, Tag
from robustfl.norms.layers import OwnBatchNorm
from robustfl.parameters import param
from robustfl.registry import register


@dataclass(frozen=True)
class _Personal(Norm):
    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""
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
