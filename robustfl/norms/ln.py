"""Layer normalization, as group normalization with one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Norm
from robustfl.norms.layers import ClientGroupNorm
from robustfl.parameters import param
from robustfl.registry import register


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
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""
        return ClientGroupNorm(channels, 1, eps=self.eps)
