"""The CNN customary for FEMNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register


@register("femnist-cnn", version=1)
@dataclass(frozen=True)
class FemnistCnn(Model):
    """Two 5×5 convolutions (32, 64), each norm, ReLU, pool 2; a hidden linear layer; FC.

    On 1×28×28 images, 62 classes and the default width: 1,690,238 trainable, 192 running values with batch norm. Wants
    at least 4×4 pixels.

    Args:
        hidden: width of the hidden linear layer, ≥ 1; 2048 in LEAF's network.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629, Section 3; Caldas et al., LEAF: A Benchmark for Federated Settings, 2018, arXiv:1812.01097.
    """

    paper: ClassVar[str] = "@mcmahan2017communication"

    hidden: int = param(512, ge=1, doc="width of the hidden linear layer")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        channels, height, width = shape
        return Network(
            *(nn.Conv2d(channels, 32, 5, padding=2), norm.layer(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), norm.layer(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * (height // 4) * (width // 4), self.hidden), nn.ReLU()),
            nn.Linear(self.hidden, classes),
        )
