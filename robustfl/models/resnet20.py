"""ResNet-20 for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Model, Norm
from robustfl.initialisation import kaiming_normal
from robustfl.models.network import Network, require
from robustfl.registry import register


class _Block(nn.Module):
    """conv, norm, ReLU, conv, norm, plus the input: every second pixel and zero channels where the shape changes."""

    def __init__(self, norm: Norm, before: int, after: int) -> None:
        super().__init__()
        self.stride = 1 if before == after else 2
        self.extra = (after - before) // 2
        self.conv1 = nn.Conv2d(before, after, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = norm.layer(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm.layer(after)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        out: Tensor = self.relu(y + x)
        return out


@register("resnet20", version=1)
@dataclass(frozen=True)
class ResNet20(Model):
    """A 3×3 stem of 16 channels, three stages of three blocks (16, 32, 64), global average, FC.

    Parameter-free shortcuts (stride-2 slice, zero-padded channels), no convolution bias. On 3×32×32 images and 10
    classes: 269,722 trainable, 1,376 running values in 19 norm layers. Kaiming-normal initial weights. Wants at
    least 4×4 pixels.

    Reference: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385, §4.2 (A).
    Notes: outputs are logits.
    """

    paper: ClassVar[str] = "@he2016deep"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), norm.layer(16), nn.ReLU()]
        before = 16
        for after in (16, 32, 64):
            for _ in range(3):
                layers.append(_Block(norm, before, after))
                before = after
        return Network(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        kaiming_normal(network, generator)
