"""torchvision's networks with their norm layers swapped and without dropout, as Chen et al. (2025) use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.registry import register

_LEAST = 32

Make = Callable[[Any], nn.Module]


def _made(make: Make, channels: int) -> nn.Module:
    """The network ``make`` builds of ``torchvision.models``, for ``channels``; no activation overwrites its input."""
    with torch.device("cpu"):  # whose own tensors torch 2.6 cannot make on the device "meta"
        from torchvision import models  # a second to import; only needed by these networks

    with torch.random.fork_rng(devices=[]):  # constructors draw parameters from the global stream; leave it as it was
        network = make(models)
        name, first = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
        if channels != first.in_channels:
            sides = {"kernel_size": first.kernel_size, "stride": first.stride, "padding": first.padding}
            new: Any = nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **sides)  # type: ignore[arg-type]
            network.set_submodule(name, new)
    for module in network.modules():
        if isinstance(module, (nn.ReLU, nn.ReLU6)):
            module.inplace = False  # what a norm returns may be needed for its backward
    return network


class _ResNet(Model):
    theirs: ClassVar[str]
    """Its name in ``torchvision.models``."""

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=_LEAST)
        network = _made(lambda m: getattr(m, self.theirs)(num_classes=classes, norm_layer=norm.layer), shape[0])
        made = dict(network.named_children())
        *body, head = made.values()
        *names, last = made
        released = {str(i): name for i, name in enumerate(names)} | {str(len(names) + 1): last}
        return Network(*body, nn.Flatten(), head, released=released)


class _Vgg(Model):
    theirs: ClassVar[str]
    """Its name in ``torchvision.models``."""

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=_LEAST)
        network = _made(lambda m: getattr(m, self.theirs)(num_classes=classes, init_weights=False), shape[0])
        features, pool, head = network.children()
        swapped = [norm.layer(m.num_features) if isinstance(m, nn.BatchNorm2d) else m for m in features.children()]
        kept = {name: m for name, m in head.named_children() if not isinstance(m, nn.Dropout)}
        released = {str(i): f"features.{i}" for i in range(len(swapped))}
        released |= {str(len(swapped) + 2 + i): f"classifier.{name}" for i, name in enumerate(kept)}
        return Network(*swapped, pool, nn.Flatten(), *kept.values(), released=released)


@register("tv-resnet18", version=1)
@dataclass(frozen=True)
class TorchvisionResNet18(_ResNet):
    """ResNet-18 for large images: 7×7 stem of stride 2, max pool, four stages of two blocks, global average, FC.

    Convolutions have no biases. On 10 classes: 11,181,642 trainable, 9,600 running values with batch norm. Wants at
    least 32×32 pixels. Initial parameters are torch's defaults, not torchvision's.

    Reference: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385.
    """

    paper: ClassVar[str] = "@he2016deep; as used by @chen2025hybrid"
    theirs: ClassVar[str] = "resnet18"


@register("tv-resnet50", version=1)
@dataclass(frozen=True)
class TorchvisionResNet50(_ResNet):
    """ResNet-50 for large images: 7×7 stem of stride 2, max pool, bottlenecks 3-4-6-3, global average, FC.

    Convolutions have no biases. On 10 classes: 23,528,522 trainable, 53,120 running values with batch norm. Wants at
    least 32×32 pixels. Initial parameters are torch's defaults, not torchvision's.

    Reference: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385.
    """

    paper: ClassVar[str] = "@he2016deep; as used by @chen2025hybrid"
    theirs: ClassVar[str] = "resnet50"


@register("mobilenetv2", version=1)
@dataclass(frozen=True)
class MobileNetV2(Model):
    """MobileNetV2: inverted residuals with depthwise convolutions, global average, FC; no dropout.

    On 10 classes: 2,236,682 trainable, 34,112 running values with batch norm. Wants at least 32×32 pixels. Initial
    parameters are torch's defaults, not torchvision's.

    Reference: Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018, arXiv:1801.04381.
    """

    paper: ClassVar[str] = "@sandler2018mobilenetv2; as used by @chen2025hybrid"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=_LEAST)
        made = _made(lambda m: m.mobilenet_v2(num_classes=classes, norm_layer=norm.layer, dropout=0.0), shape[0])
        features, head = made.children()
        released = {"0": "features", "3": "classifier.1"}
        return Network(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *list(head.children())[1:], released=released)


@register("vgg11", version=1)
@dataclass(frozen=True)
class Vgg11(_Vgg):
    """VGG-11: eight 3×3 convolutions, norm and ReLU after each, five pools of 2; FC 4096, 4096; no dropout.

    On 10 classes: 128,812,810 trainable, 5,504 running values with batch norm. Wants at least 32×32 pixels.

    Reference: Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015,
    arXiv:1409.1556, configuration A.
    Notes: norms are torchvision's addition; the hidden linear layers have none.
    """

    paper: ClassVar[str] = "@simonyan2015very; as used by @chen2025hybrid"
    theirs: ClassVar[str] = "vgg11_bn"


@register("vgg19", version=1)
@dataclass(frozen=True)
class Vgg19(_Vgg):
    """VGG-19: sixteen 3×3 convolutions, norm and ReLU after each, five pools of 2; FC 4096, 4096; no dropout.

    On 10 classes: 139,622,218 trainable, 11,008 running values with batch norm. Wants at least 32×32 pixels.

    Reference: Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015,
    arXiv:1409.1556, configuration E.
    Notes: norms are torchvision's addition; the hidden linear layers have none.
    """

    paper: ClassVar[str] = "@simonyan2015very; as used by @chen2025hybrid"
    theirs: ClassVar[str] = "vgg19_bn"
