"""A small CNN for the embedded 8×8 digits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register


@register("digits-cnn", version=1)
@dataclass(frozen=True)
class DigitsCnn(Model):
    """3×3 convolution 16, norm, ReLU, pool 2; FC 64, norm, ReLU; FC.

    The Digits network of the FedRBN paper made small: norm layers after the convolution and after the hidden
    linear layer. On 1×8×8 images and 10 classes: 17,418 trainable, 160 running values with batch norm. Wants at least
    2×2 pixels.

    The norm after the linear layer matters on split labels: its units tell classes apart, so clients with one class
    each have very different statistics there. After the convolution alone they hardly differ on these images.

    Args:
        hidden: width of the hidden linear layer, ≥ 1.

    Reference: none; designed for this data set. Outputs are logits.
    """

    hidden: int = param(64, ge=1, doc="width of the hidden linear layer")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=2)
        channels, height, width = shape
        return Network(
            *(nn.Conv2d(channels, 16, 3, padding=1), norm.layer(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(
                nn.Flatten(),
                nn.Linear(16 * (height // 2) * (width // 2), self.hidden),
                norm.layer(self.hidden),
                nn.ReLU(),
            ),
            nn.Linear(self.hidden, classes),
        )
