"""Network architectures; each is built with any norm and gives logits. Importing this room registers them."""

from __future__ import annotations

from robustfl.models.cnns import (
    AlexNet,
    BucketingCnn,
    DigitsCnn,
    DigitsNet,
    DomainsCnn,
    FbnCnn,
    FemnistCnn,
    Mlp,
    MnistCnn,
    SimpleCnn,
)
from robustfl.models.network import ClientDropout, Network, seed_dropout
from robustfl.models.resnets import ResNet18, ResNet20, WideResNet
from robustfl.models.torchvision_nets import MobileNetV2, TorchvisionResNet18, TorchvisionResNet50, Vgg11, Vgg19
from robustfl.models.vit import Vit
from robustfl.models.weights import Weights

__all__ = [
    "AlexNet", "BucketingCnn", "ClientDropout", "DigitsCnn", "DigitsNet", "DomainsCnn", "FbnCnn", "FemnistCnn", "Mlp",
    "MnistCnn", "MobileNetV2", "Network", "ResNet18", "ResNet20", "SimpleCnn", "TorchvisionResNet18",
    "TorchvisionResNet50", "Vgg11", "Vgg19", "Vit", "Weights", "WideResNet", "seed_dropout",
]  # fmt: skip
