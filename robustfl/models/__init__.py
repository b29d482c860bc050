"""Network architectures; each is built with any norm and gives logits. Importing this room registers them."""

from __future__ import annotations

from robustfl.models.alexnet import AlexNet
from robustfl.models.bucketing_cnn import BucketingCnn
from robustfl.models.digits import DigitsNet
from robustfl.models.digits_cnn import DigitsCnn
from robustfl.models.domains_cnn import DomainsCnn
from robustfl.models.dropout import ClientDropout, seed_dropout
from robustfl.models.fbn_cnn import FbnCnn
from robustfl.models.femnist_cnn import FemnistCnn
from robustfl.models.mlp import Mlp
from robustfl.models.mnist_cnn import MnistCnn
from robustfl.models.network import Network
from robustfl.models.resnet18 import ResNet18
from robustfl.models.resnet20 import ResNet20
from robustfl.models.simple_cnn import SimpleCnn
from robustfl.models.torchvision_nets import MobileNetV2, TorchvisionResNet18, TorchvisionResNet50, Vgg11, Vgg19
from robustfl.models.weights import Weights

__all__ = [
    "AlexNet", "BucketingCnn", "ClientDropout", "DigitsCnn", "DigitsNet", "DomainsCnn", "FbnCnn", "FemnistCnn", "Mlp",
    "MnistCnn", "MobileNetV2", "Network", "ResNet18", "ResNet20", "SimpleCnn", "TorchvisionResNet18",
    "TorchvisionResNet50", "Vgg11", "Vgg19", "Weights", "seed_dropout",
]  # fmt: skip
