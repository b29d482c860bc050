"""A small CNN for the embedded domains."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register


@register("domains-cnn", version=1)
@dataclass(frozen=True)
class DomainsCnn(Model):
    """Two 3×3 convolutions (16, 32), norm, ReLU and pool 2 after each; FC 64, norm, ReLU; FC.

    The ``digits`` network made small, for the domains of ``digits-domain``: norms after convolutions and after the
    hidden linear layer. On 3×16×16 images and 10 classes: 38,794 trainable, 224 running values with batch norm. Wants
    at least 4×4 pixels.

    Args:
        hidden: width of the hidden linear layer, ≥ 1.

    Reference: none; designed for this data set. Outputs are logits.
    """

    hidden: int = param(64, ge=1, doc="width of the hidden linear layer")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        channels, height, width = shape
        return Network(
            *(nn.Conv2d(channels, 16, 3, padding=1), norm.layer(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), norm.layer(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(32 * (height // 4) * (width // 4), self.hidden), norm.layer(self.hidden), nn.ReLU()),
            nn.Linear(self.hidden, classes),
        )
