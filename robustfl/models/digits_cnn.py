"""A small CNN for the embedded 8×8 digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.shapes import require
from robustfl.registry import register


@register("digits-cnn", version=1)
@dataclass(frozen=True)
class DigitsCnn(Model):
    """3×3 convolution 16, norm, ReLU, pool 2; 3×3 convolution 32, norm, ReLU; FC.

    On 1×8×8 images and 10 classes: 10,026 trainable, 96 running values with batch norm. Pooling early makes a step
    three times cheaper than pooling at the end, at the same accuracy (99 % on ``digits`` after 300 centralised steps
    of SGD). Wants at least 2×2 pixels.

    Reference: none; designed for this data set. Outputs are logits.
    """

    spec: ClassVar[str] = "§7"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=2)
        channels, height, width = shape
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 3, padding=1), norm.layer(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), norm.layer(32), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(32 * (height // 2) * (width // 2), classes)),
        )
