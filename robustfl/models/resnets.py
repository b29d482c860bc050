"""ResNets for small images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Model, Norm
from robustfl.errors import UsageError
from robustfl.initialisation import kaiming_normal
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register

_WIDTHS = (64, 128, 256, 512)


class _Block(nn.Module):
    """conv, norm, ReLU, conv, second norm, plus the input (1×1 convolution and second norm where the shape changes)."""

    def __init__(self, norm: Norm, second: Callable[[int], nn.Module], before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1)
        self.norm1 = norm.layer(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.norm2 = second(after)
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride), second(after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


@register("resnet18", version=1)
@dataclass(frozen=True)
class ResNet18(Model):
    """A 3×3 stem of 64 channels, four stages of two blocks (64, 128, 256, 512), average pool 3, FC.

    Convolutions have biases. ``norm``: every norm layer is the scheme's (the pure variants are those with ``naive-bn``
    and ``gn``). ``bn+gn``: the scheme's in the stem and after each block's first convolution, GroupNorm(2) after the
    second and in shortcuts. On 3×32×32 images and 10 classes: 11,178,762 trainable; 3,968 running values in ``bn+gn``,
    9,600 in ``norm`` with batch norm. Wants at least 17×17 pixels.

    >>> ResNet18(variant="bn+gn")
    ResNet18(variant='bn+gn')

    Reference: Legate, MSc thesis, Montréal 2022; Legate, Caccia, Belilovsky, Re-Weighted Softmax Cross-Entropy to
    Control Forgetting in Federated Learning, CoLLAs 2023, arXiv:2304.05260.
    Notes: the average pool of 3 with stride 2 sees the top-left 3×3 of the last 4×4 map, as in the source. The source's
    listing has wrong norm widths in several blocks; these match their convolutions. Outputs are logits.
    """

    paper: ClassVar[str] = "@legate2023weighted"

    variant: str = param("norm", choices=("norm", "bn+gn"), doc="which layers are the scheme's")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=17)
        second = norm.layer if self.variant == "norm" else partial(nn.GroupNorm, 2)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 64, 3, padding=1), norm.layer(64), nn.ReLU()]
        before = 64
        for after in _WIDTHS:
            layers += [_Block(norm, second, before, after), _Block(norm, second, after, after)]
            before = after
        # Three halvings that round up, then a pool of 3 with stride 2 that rounds down.
        height, width = (((side + 7) // 8 - 3) // 2 + 1 for side in shape[1:])
        features = before * height * width
        return Network(*layers, nn.AvgPool2d(3, stride=2), nn.Flatten(), nn.Linear(features, classes))


class _PaddedBlock(nn.Module):
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
                layers.append(_PaddedBlock(norm, before, after))
                before = after
        return Network(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        kaiming_normal(network, generator)


class _WideBlock(nn.Module):
    """norm, ReLU, conv, norm, ReLU, dropout, conv, plus the input, or a 1×1 convolution of the activated input."""

    def __init__(self, norm: Norm, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = norm.layer(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm2 = norm.layer(after)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut = None if before == after else nn.Conv2d(before, after, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(x))
        across = x if self.shortcut is None else self.shortcut(y)
        out: Tensor = across + self.conv2(self.dropout(self.relu(self.norm2(self.conv1(y)))))
        return out


@register("wide-resnet", version=1)
@dataclass(frozen=True)
class WideResNet(Model):
    """WRN-``depth``-``width``: a 3×3 stem of 16 channels, three groups of (depth - 4)/6 pre-activation blocks, FC.

    Groups have ``16·width``, ``32·width`` and ``64·width`` channels; the second and third halve the image. Then norm,
    ReLU and global average. No convolution bias; Kaiming-normal initial weights. On 3×32×32 images and 10 classes WRN-
    16-4 has 2,748,890 trainable, WRN-28-10 36,479,194. Wants at least 4×4 pixels.

    >>> WideResNet(depth=28, width=10).width
    10

    Reference: Zagoruyko, Komodakis, Wide Residual Networks, BMVC 2016, arXiv:1605.07146, Table 1.
    Notes: outputs are logits.
    """

    paper: ClassVar[str] = "@zagoruyko2016wide"

    depth: int = param(16, ge=10, doc="convolutions, 6n + 4")
    width: int = param(4, ge=1, doc="widening factor k")
    dropout: float = param(0.0, ge=0, lt=1, doc="probability, between the convolutions of a block")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.depth - 4) % 6:
            raise UsageError(f"WideResNet: depth={self.depth} must be 6n + 4, such as 10, 16, 22, 28, 34 or 40")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)]
        before = 16
        for group, channels in enumerate((16, 32, 64)):
            for block in range((self.depth - 4) // 6):
                stride = 2 if group and not block else 1
                layers.append(_WideBlock(norm, before, channels * self.width, stride, self.dropout))
                before = channels * self.width
        layers += [norm.layer(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Network(*layers, nn.Linear(before, classes))

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        kaiming_normal(network, generator)
