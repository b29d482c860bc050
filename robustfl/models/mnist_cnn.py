"""A CNN of MNIST's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.registry import register


@register("mnist-cnn", version=1)
@dataclass(frozen=True)
class MnistCnn(Model):
    """Twice 5×5 convolution without padding (20, 50), norm, ReLU, pool 2; FC 500, ReLU; FC.

    On 1×28×28 images and 10 classes: 431,080 trainable entries besides the norms' 140, and 140 running values with
    batch norm. Wants at least 16×16 pixels.

    Reference: LeCun et al., Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE 1998 (the
    two-stage layout).
    Notes: outputs are logits.
    """

    paper: ClassVar[str] = "@lecun1998gradient"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=16)
        before, height, width = shape
        layers: list[nn.Module] = []
        for after in (20, 50):
            layers += [nn.Conv2d(before, after, 5), norm.layer(after), nn.ReLU(), nn.MaxPool2d(2)]
            before, height, width = after, (height - 4) // 2, (width - 4) // 2
        return Network(*layers, nn.Flatten(), nn.Linear(50 * height * width, 500), nn.ReLU(), nn.Linear(500, classes))
