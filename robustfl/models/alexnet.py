"""The DomainNet AlexNet of the FedRBN paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.registry import register


@register("alexnet", version=1)
@dataclass(frozen=True)
class AlexNet(Model):
    """AlexNet with a norm after every convolution and hidden linear layer, adaptive pool 6, FC 4096, 4096.

    On 3×256×256 images and 10 classes: 57,063,498 trainable, 18,688 running values with batch norm. Wants at least
    63×63 pixels.

    Reference: Hong et al., Federated Robustness Propagation: Sharing Adversarial Robustness in Heterogeneous Federated
    Learning, AAAI 2023, arXiv:2106.10196, Table 6, after Li et al., FedBN: Federated Learning on Non-IID Features via
    Local Batch Normalization, ICLR 2021, arXiv:2102.07623.
    """

    paper: ClassVar[str] = "@hong2023federated, Table 6"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=63)
        layers: list[nn.Module] = []
        before = shape[0]
        convolutions = ((64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False),
                        (256, 3, 1, 1, True))  # fmt: skip
        for width, kernel, stride, padding, pool in convolutions:
            layers += [nn.Conv2d(before, width, kernel, stride, padding), norm.layer(width), nn.ReLU()]
            layers += [nn.MaxPool2d(3, 2)] if pool else []
            before = width
        layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten()]
        for inputs in (before * 36, 4096):
            layers += [nn.Linear(inputs, 4096), norm.layer(4096), nn.ReLU()]
        return Network(*layers, nn.Linear(4096, classes))
