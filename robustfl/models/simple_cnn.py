"""A small CNN for 32×32 images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.registry import register


@register("simple-cnn", version=1)
@dataclass(frozen=True)
class SimpleCnn(Model):
    """Three times 3×3 convolution (16, 32, 64), norm, ReLU, pool 2; FC 128, ReLU; FC.

    On 3×32×32 images and 10 classes: 156,298 trainable, 224 running values. Wants at least 8×8 pixels.

    Reference: Chen, Xu, Wu, Kittler, Hybrid Batch Normalisation: Resolving the Dilemma of Batch Normalisation in
    Federated Learning, ICML 2025, arXiv:2505.21877.
    Notes: outputs are logits.
    """

    paper: ClassVar[str] = "@chen2025hybrid"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=8)
        before, height, width = shape
        layers: list[nn.Module] = []
        for after in (16, 32, 64):
            layers += [nn.Conv2d(before, after, 3, padding=1), norm.layer(after), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        features = 64 * (height // 8) * (width // 8)
        return Network(*layers, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))
