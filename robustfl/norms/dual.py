"""Dual batch normalization: separate statistics for clean and adversarial inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from robustfl.contracts import BranchedLayer, BranchedNorm, Tag
from robustfl.norms.layers import OwnBatchNorm
from robustfl.norms.merging import AveragedNorm
from robustfl.parameters import param
from robustfl.registry import register


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
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""
        return DualBatchNorm(channels, momentum=self.momentum, eps=self.eps, share_affine=self.share_affine)
