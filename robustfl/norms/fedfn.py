"""FedFN: normalised features in place of normalization layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.errors import Refused
from robustfl.parameters import param
from robustfl.registry import register


def feature_norm(h: Tensor, scale: float = 1.0) -> Tensor:
    """``scale · h/‖h‖₂`` for every row of ``h [b d]``; a zero row stays zero."""
    h = h.to(torch.promote_types(h.dtype, torch.float32))  # in training in bfloat16 the length would be half a % off
    unit: Tensor = h / h.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return scale * unit


class FeatureNorm(nn.Module):
    """``feature_norm``, times √d if ``by_width``."""

    def __init__(self, by_width: bool) -> None:
        super().__init__()
        self.by_width = by_width

    def forward(self, h: Tensor) -> Tensor:
        return feature_norm(h, math.sqrt(h.shape[1]) if self.by_width else 1.0)


@register("fedfn", version=1)
@dataclass(frozen=True)
class FedFN(Norm):
    """No normalization layers; the feature vector is put on a sphere: ``h ← s·h/‖h‖₂``.

    Deep networks without normalization layers train slowly; the sphere only tames the last ones.

    Args:
        position: ``classifier``: before the last linear layer; ``flatten``: before the first (as Chen et al. 2025 do).
        scale: ``1`` or ``sqrt-d``, the square root of the feature's width.

    Reference: Kim et al., FedFN: Feature Normalization for Alleviating Data Heterogeneity Problem in Federated
    Learning, NeurIPS Workshops 2023, arXiv:2311.13267.

    >>> import torch
    >>> feature_norm(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    paper: ClassVar[str] = "@kim2023fedfn"

    position: str = param("classifier", choices=("classifier", "flatten"), doc="before the last or first linear layer")
    scale: str = param("1", choices=("1", "sqrt-d"), doc="length of the normalised feature")

    def layer(self, channels: int) -> nn.Module:
        """The identity."""
        del channels
        return nn.Identity()

    def adapt(self, network: nn.Module) -> None:
        """Put the feature normalization before its linear layer."""
        linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
        if not linear:
            raise Refused("fedfn: the model has no linear layer to normalise features for")
        name, layer = linear[-1 if self.position == "classifier" else 0]
        network.set_submodule(name, nn.Sequential(FeatureNorm(self.scale == "sqrt-d"), layer))
