"""ResNet-18 for small images, with one or two kinds of norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register

_WIDTHS = (64, 128, 256, 512)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


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
        second = norm.layer if self.variant == "norm" else _group_norm
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 64, 3, padding=1), norm.layer(64), nn.ReLU()]
        before = 64
        for after in _WIDTHS:
            layers += [_Block(norm, second, before, after), _Block(norm, second, after, after)]
            before = after
        # Three halvings that round up, then a pool of 3 with stride 2 that rounds down.
        height, width = (((side + 7) // 8 - 3) // 2 + 1 for side in shape[1:])
        features = before * height * width
        return Network(*layers, nn.AvgPool2d(3, stride=2), nn.Flatten(), nn.Linear(features, classes))
