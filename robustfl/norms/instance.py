"""Instance normalization, as group normalization with one channel per group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Norm
from robustfl.norms.layers import ClientGroupNorm
from robustfl.parameters import param
from robustfl.registry import register


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
        """A layer for inputs ``[b C H W]``."""
        return ClientGroupNorm(channels, channels, eps=self.eps)
