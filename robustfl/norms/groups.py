"""Group normalization, with layer and instance normalization as its extremes: one group, one channel a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Norm
from robustfl.norms.layers import ClientGroupNorm
from robustfl.parameters import param
from robustfl.registry import register


@register("gn", version=1)
@dataclass(frozen=True)
class GN(Norm):
    """Every sample normalised by itself, over the positions of each group of channels.

    ``y = γ(u − μ_g)/√(σ_g² + ε) + ζ`` with mean and biased variance of the sample's group ``g``. Nothing is shared
    but scale and shift, so heterogeneity cannot bias it; it usually trains worse than batch statistics would.

    ``groups`` ≥ 1 must divide the channels of every layer (2 in Chen et al., 2025); ``eps`` > 0.

    >>> import torch
    >>> GN(groups=2).layer(2)(torch.ones(1, 2, 1, 2)).detach().abs().max()
    tensor(0.)
    """

    paper: ClassVar[str] = "@wu2018group"
    cost: ClassVar[str] = "no statistics to send"

    groups: int = param(2, ge=1, doc="groups of channels")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``; ``Refused`` if ``groups`` do not divide ``channels``."""
        return ClientGroupNorm(channels, self.groups, eps=self.eps)


@register("ln", version=1)
@dataclass(frozen=True)
class LN(Norm):
    """Every sample normalised by itself, over all channels and positions.

    ``y = γ(u − μ)/√(σ² + ε) + ζ`` with mean and biased variance of the sample, scale and shift per channel. It
    removes differences between whole samples, which hurts where their overall level carries the label.

    ``eps`` > 0 is added to variances.

    >>> import torch
    >>> LN().layer(2)(torch.tensor([[1.0, 3.0]])).detach().round()
    tensor([[-1.,  1.]])
    """

    paper: ClassVar[str] = "@ba2016layer"
    cost: ClassVar[str] = "no statistics to send"

    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        return ClientGroupNorm(channels, 1, eps=self.eps)


@register("in", version=1)
@dataclass(frozen=True)
class IN(Norm):
    """Every channel of every sample normalised by itself, over its positions.

    ``y = γ(u − μ_c)/√(σ_c² + ε) + ζ``, scale and shift kept, no running values. It is undefined where a channel has
    one value: vectors ``[b C]`` and 1×1 images are refused.

    ``eps`` > 0 is added to variances.

    >>> import torch
    >>> IN().layer(1)(torch.tensor([[[[1.0, 3.0]]]])).detach().round()
    tensor([[[[-1.,  1.]]]])
    """

    paper: ClassVar[str] = "@ulyanov2016instance"
    cost: ClassVar[str] = "no statistics to send"

    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        return ClientGroupNorm(channels, channels, eps=self.eps)
