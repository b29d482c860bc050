"""Network architectures; each is built with any norm and gives logits. Importing this room registers them."""

from __future__ import annotations

from robustfl.models.digits_cnn import DigitsCnn
from robustfl.models.dropout import ClientDropout, seed_dropout
from robustfl.models.fbn_cnn import FbnCnn
from robustfl.models.mlp import Mlp
from robustfl.models.mnist_cnn import MnistCnn
from robustfl.models.resnet18 import ResNet18
from robustfl.models.resnet20 import ResNet20
from robustfl.models.simple_cnn import SimpleCnn

__all__ = [
    "ClientDropout",
    "DigitsCnn",
    "FbnCnn",
    "Mlp",
    "MnistCnn",
    "ResNet18",
    "ResNet20",
    "SimpleCnn",
    "seed_dropout",
]
