"""Fully connected and convolutional networks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.errors import UsageError
from robustfl.models.network import ClientDropout, Network, require
from robustfl.parameters import param
from robustfl.registry import register


@register("mlp", version=1)
@dataclass(frozen=True)
class Mlp(Model):
    """Flatten, then for each width a linear layer, norm, ReLU; a linear layer to the logits.

    28×28 images and one hidden layer of 30: 23,920 trainable, 60 running values with batch norm.

    >>> Mlp(hidden=(64, 32))
    Mlp(hidden=(64, 32))

    Reference: Wang, Shi, Chang, Why Batch Normalization Damage Federated Learning on Non-IID Data?, IEEE Transactions
    on Neural Networks and Learning Systems 2025, arXiv:2301.02982 (width confirmed by its traffic table).
    Notes: the source states no activation; ReLU after the norm is ours. Outputs are logits.
    """

    paper: ClassVar[str] = "@wang2025batch"

    hidden: tuple[int, ...] = param((30,), ge=1, doc="widths of the hidden layers")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes)
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(shape)
        for following in self.hidden:
            layers += [nn.Linear(width, following), norm.layer(following), nn.ReLU()]
            width = following
        return Network(*layers, nn.Linear(width, classes))


@register("simple-cnn", version=1)
@dataclass(frozen=True)
class SimpleCnn(Model):
    """Three times 3×3 convolution (16, 32, 64), norm, ReLU, pool 2; FC 128, ReLU; FC.

    On 3×32×32 images and 10 classes: 156,298 trainable, 224 running values. Wants at least 8×8 pixels.

    Reference: Chen, Xu, Wu, Kittler, Hybrid Batch Normalisation: Resolving the Dilemma of Batch Normalisation in
    Federated Learning, ICML 2025, arXiv:2505.21877.
    Notes: outputs are logits.
    """

    paper: ClassVar[str] = "@chen2025hybrid"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=8)
        before, height, width = shape
        layers: list[nn.Module] = []
        for after in (16, 32, 64):
            layers += [nn.Conv2d(before, after, 3, padding=1), norm.layer(after), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        features = 64 * (height // 8) * (width // 8)
        return Network(*layers, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))


@register("bucketing-cnn", version=1)
@dataclass(frozen=True)
class BucketingCnn(Model):
    """3×3 convolution 32, norm, ReLU; 3×3 convolution 64, norm, pool 2, dropout ¼; FC 128, ReLU, dropout ½; FC.

    No padding, and no ReLU before the pool. On 1×28×28 images and 10 classes: 1,199,882 trainable entries besides the
    norms' 192 (norm ``none`` is the paper's), and 192 running values with batch norm. Wants at least 6×6 pixels.
    Dropout masks come from the clients' generators (``begin`` on each ``ClientDropout``).

    Reference: Karimireddy, He, Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    arXiv:2006.09365, as its authors released it.
    Notes: outputs are logits. The released first dropout drops whole maps; here it drops single values.
    """

    paper: ClassVar[str] = "@karimireddy2022byzantine"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=6)
        channels, height, width = shape
        features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
        return Network(
            nn.Conv2d(channels, 32, 3), norm.layer(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3), norm.layer(64), nn.MaxPool2d(2), ClientDropout(0.25),
            nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), ClientDropout(0.5), nn.Linear(128, classes),
        )  # fmt: skip


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


@register("femnist-cnn", version=1)
@dataclass(frozen=True)
class FemnistCnn(Model):
    """Two 5×5 convolutions (32, 64), each norm, ReLU, pool 2; a hidden linear layer; FC.

    On 1×28×28 images, 62 classes and the default width: 1,690,238 trainable, 192 running values with batch norm. Wants
    at least 4×4 pixels.

    Args:
        hidden: width of the hidden linear layer, ≥ 1; 2048 in LEAF's network.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629, Section 3; Caldas et al., LEAF: A Benchmark for Federated Settings, 2018, arXiv:1812.01097.
    """

    paper: ClassVar[str] = "@mcmahan2017communication"

    hidden: int = param(512, ge=1, doc="width of the hidden linear layer")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        channels, height, width = shape
        return Network(
            *(nn.Conv2d(channels, 32, 5, padding=2), norm.layer(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), norm.layer(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * (height // 4) * (width // 4), self.hidden), nn.ReLU()),
            nn.Linear(self.hidden, classes),
        )


@register("fbn-cnn", version=2)
@dataclass(frozen=True)
class FbnCnn(Model):
    """Four 3×3 convolutions (64, 64, 128, 128), each ReLU then norm; pool 2, dropout ¼ after the 2nd and 4th; FC 128.

    The norm comes *after* the ReLU. On 3×32×32 images and 10 classes: 1,310,922 trainable, 768 running values. Wants
    at least 4×4 pixels. Dropout masks come from the clients' generators (``begin`` on each ``ClientDropout``).

    Reference: Guerraoui, Pinot, Rizk, Stephan, Taïani, Overcoming the Challenges of Batch Normalization in Federated
    Learning, 2024, arXiv:2405.14670, Table 1.
    Notes: outputs are logits; the paper's NLL on log-softmax is cross-entropy on them.
    """

    paper: ClassVar[str] = "@guerraoui2024overcoming"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        channels, height, width = shape
        layers: list[nn.Module] = []
        for first, second in ((channels, 64), (64, 128)):
            layers += [nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), norm.layer(second)]
            layers += [nn.Conv2d(second, second, 3, padding=1), nn.ReLU(), norm.layer(second)]
            layers += [nn.MaxPool2d(2), ClientDropout(0.25)]
        features = 128 * (height // 4) * (width // 4)
        return Network(*layers, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))


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
        super().__post_init__()
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
