"""The public data sets by name, one short class each; ``vision.Vision`` finds or fetches their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.data.checks import Array
from robustfl.data.vision import Vision
from robustfl.parameters import param
from robustfl.registry import register

_IDX = tuple(f"{s}-{k}-ubyte" for s in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))
_EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


@register("mnist", version=1)
@dataclass(frozen=True)
class Mnist(Vision):
    """MNIST, 28×28 handwritten digits, 60,000 / 10,000.

    ``Mnist(limit=6000)`` keeps 6,000 of the training images.
    """

    paper: ClassVar[str] = "@lecun1998gradient"
    torchvision: ClassVar[str] = "MNIST"
    classes: ClassVar[int] = 10
    files: ClassVar[tuple[str, ...]] = tuple(f"MNIST/raw/{f}" for f in _IDX)


@register("fashion-mnist", version=1)
@dataclass(frozen=True)
class FashionMnist(Vision):
    """Fashion-MNIST, 28×28 clothes, 60,000 / 10,000."""

    paper: ClassVar[str] = "@xiao2017fashion"
    torchvision: ClassVar[str] = "FashionMNIST"
    classes: ClassVar[int] = 10
    files: ClassVar[tuple[str, ...]] = tuple(f"FashionMNIST/raw/{f}" for f in _IDX)


@register("emnist", version=1)
@dataclass(frozen=True)
class Emnist(Vision):
    """EMNIST, 28×28 letters and digits, turned upright; labels from 0. Archives: ``emnist-<split>.npz``.

    >>> Emnist(split="letters")
    Emnist(limit=None, test_limit=None, split='letters')
    """

    paper: ClassVar[str] = "@cohen2017emnist"
    torchvision: ClassVar[str] = "EMNIST"

    split: str = param("balanced", choices=tuple(_EMNIST_CLASSES), doc="which of EMNIST's six forms")

    @property
    def form(self) -> str:
        return f"emnist-{self.split}"

    @property
    def classes(self) -> int:
        return _EMNIST_CLASSES[self.split]

    @property
    def files(self) -> tuple[str, ...]:
        kinds = ("images-idx3", "labels-idx1")
        return tuple(f"EMNIST/raw/{self.form}-{s}-{k}-ubyte" for s in ("train", "test") for k in kinds)

    def read(self, datasets: Any, folder: Path, *, train: bool, download: bool) -> tuple[Array, Array]:
        part = datasets.EMNIST(folder, split=self.split, train=train, download=download)
        first = 1 if self.split == "letters" else 0
        return np.asarray(part.data).transpose(0, 2, 1), np.asarray(part.targets) - first


@register("cifar10", version=1)
@dataclass(frozen=True)
class Cifar10(Vision):
    """CIFAR-10, 32×32 colour photographs, 50,000 / 10,000."""

    paper: ClassVar[str] = "@krizhevsky2009learning"
    torchvision: ClassVar[str] = "CIFAR10"
    classes: ClassVar[int] = 10
    files: ClassVar[tuple[str, ...]] = ("cifar-10-batches-py/data_batch_*", "cifar-10-batches-py/test_batch")


@register("cifar100", version=1)
@dataclass(frozen=True)
class Cifar100(Vision):
    """CIFAR-100, 32×32 colour photographs, 50,000 / 10,000, fine labels."""

    paper: ClassVar[str] = "@krizhevsky2009learning"
    torchvision: ClassVar[str] = "CIFAR100"
    classes: ClassVar[int] = 100
    files: ClassVar[tuple[str, ...]] = ("cifar-100-python/train", "cifar-100-python/test")


@register("svhn", version=1)
@dataclass(frozen=True)
class Svhn(Vision):
    """Street View House Numbers, 32×32 colour, cropped digits, 73,257 / 26,032."""

    paper: ClassVar[str] = "@netzer2011reading"
    torchvision: ClassVar[str] = "SVHN"
    classes: ClassVar[int] = 10
    files: ClassVar[tuple[str, ...]] = ("train_32x32.mat", "test_32x32.mat")

    def read(self, datasets: Any, folder: Path, *, train: bool, download: bool) -> tuple[Array, Array]:
        split = datasets.SVHN(folder, split="train" if train else "test", download=download)
        return split.data.transpose(0, 2, 3, 1), split.labels


@register("usps", version=1)
@dataclass(frozen=True)
class Usps(Vision):
    """USPS, 16×16 handwritten postal digits, 7,291 / 2,007."""

    paper: ClassVar[str] = "@hull1994database"
    torchvision: ClassVar[str] = "USPS"
    classes: ClassVar[int] = 10
    files: ClassVar[tuple[str, ...]] = ("usps.bz2", "usps.t.bz2")
