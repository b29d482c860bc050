"""The Digits network of the FedRBN paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.errors import UsageError
from robustfl.models.network import Network, require
from robustfl.parameters import check, param
from robustfl.registry import register


@register("digits", version=1)
@dataclass(frozen=True)
class DigitsNet(Model):
    """Three 5×5 convolutions (64, 64, 128), norm, ReLU, pool 2 after two; FC 2048, 512, each norm, ReLU; FC.

    On 3×28×28 images and 10 classes: 14,219,210 trainable, 5,632 running values with batch norm (twice as many with two
    branches). Wants at least 4×4 pixels. The norm after a linear layer is one of vectors.

    Args:
        channels: widths of the three convolutions, each ≥ 1.
        hidden: widths of the two hidden linear layers, each ≥ 1.

    Reference: Hong et al., Federated Robustness Propagation: Sharing Adversarial Robustness in Heterogeneous Federated
    Learning, AAAI 2023, arXiv:2106.10196, Table 5, after Li et al., FedBN: Federated Learning on Non-IID Features via
    Local Batch Normalization, ICLR 2021, arXiv:2102.07623.
    """

    paper: ClassVar[str] = "@hong2023federated, Table 5"

    channels: tuple[int, ...] = param((64, 64, 128), ge=1, doc="widths of the three convolutions")
    hidden: tuple[int, ...] = param((2048, 512), ge=1, doc="widths of the two hidden linear layers")

    def __post_init__(self) -> None:
        check(self)
        for name, values, count in (("channels", self.channels, 3), ("hidden", self.hidden, 2)):
            if len(values) != count:
                raise UsageError(f"DigitsNet: {name}={values!r} must be {count} widths")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        (a, b, c), (first, second) = self.channels, self.hidden
        features = c * (shape[1] // 4) * (shape[2] // 4)
        return Network(
            *(nn.Conv2d(shape[0], a, 5, padding=2), norm.layer(a), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(a, b, 5, padding=2), norm.layer(b), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(b, c, 5, padding=2), norm.layer(c), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(features, first), norm.layer(first), nn.ReLU()),
            *(nn.Linear(first, second), norm.layer(second), nn.ReLU()),
            nn.Linear(second, classes),
        )
