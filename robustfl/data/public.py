"""The public data sets by name, one short class each; ``vision.Vision`` finds or fetches their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.data.cache import Source
from robustfl.data.checks import Array
from robustfl.data.stored import StoredDataset
from robustfl.data.vision import Read, Vision
from robustfl.parameters import param
from robustfl.registry import register

_IDX = tuple(f"{s}-{k}-ubyte" for s in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))
_EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


def _of(name: str) -> Read:
    """Reads the data set of this name in torchvision."""

    def read(datasets: Any, folder: Path, train: bool, download: bool) -> tuple[Array, Array]:
        split = getattr(datasets, name)(folder, train=train, download=download)
        return np.asarray(split.data), np.asarray(split.targets)

    return read


def _svhn(datasets: Any, folder: Path, train: bool, download: bool) -> tuple[Array, Array]:
    split = datasets.SVHN(folder, split="train" if train else "test", download=download)
    return split.data.transpose(0, 2, 3, 1), split.labels


@register("mnist", version=1)
@dataclass(frozen=True)
class Mnist(StoredDataset):
    """MNIST, 28×28 handwritten digits, 60,000 / 10,000.

    ``Mnist(limit=6000)`` keeps 6,000 of the training images.
    """

    paper: ClassVar[str] = "@lecun1998gradient"

    def source(self, root: Path, *, download: bool) -> Source:
        files = tuple(f"MNIST/raw/{f}" for f in _IDX)
        return Vision("mnist", 10, files, _of("MNIST")).source(root, download=download)


@register("fashion-mnist", version=1)
@dataclass(frozen=True)
class FashionMnist(StoredDataset):
    """Fashion-MNIST, 28×28 clothes, 60,000 / 10,000."""

    paper: ClassVar[str] = "@xiao2017fashion"

    def source(self, root: Path, *, download: bool) -> Source:
        files = tuple(f"FashionMNIST/raw/{f}" for f in _IDX)
        return Vision("fashion-mnist", 10, files, _of("FashionMNIST")).source(root, download=download)


@register("emnist", version=1)
@dataclass(frozen=True)
class Emnist(StoredDataset):
    """EMNIST, 28×28 letters and digits, turned upright; labels from 0. Archives: ``emnist-<split>.npz``.

    >>> Emnist(split="letters")
    Emnist(limit=None, test_limit=None, split='letters')
    """

    paper: ClassVar[str] = "@cohen2017emnist"

    split: str = param("balanced", choices=tuple(_EMNIST_CLASSES), doc="which of EMNIST's six forms")

    def source(self, root: Path, *, download: bool) -> Source:
        def read(datasets: Any, folder: Path, train: bool, download: bool) -> tuple[Array, Array]:
            part = datasets.EMNIST(folder, split=self.split, train=train, download=download)
            first = 1 if self.split == "letters" else 0
            return np.asarray(part.data).transpose(0, 2, 1), np.asarray(part.targets) - first

        kinds = ("images-idx3", "labels-idx1")
        files = tuple(f"EMNIST/raw/emnist-{self.split}-{s}-{k}-ubyte" for s in ("train", "test") for k in kinds)
        form = Vision("emnist", _EMNIST_CLASSES[self.split], files, read, npz=f"emnist-{self.split}")
        return form.source(root, download=download)


@register("cifar10", version=1)
@dataclass(frozen=True)
class Cifar10(StoredDataset):
    """CIFAR-10, 32×32 colour photographs, 50,000 / 10,000."""

    paper: ClassVar[str] = "@krizhevsky2009learning"

    def source(self, root: Path, *, download: bool) -> Source:
        files = ("cifar-10-batches-py/data_batch_*", "cifar-10-batches-py/test_batch")
        return Vision("cifar10", 10, files, _of("CIFAR10")).source(root, download=download)


@register("cifar100", version=1)
@dataclass(frozen=True)
class Cifar100(StoredDataset):
    """CIFAR-100, 32×32 colour photographs, 50,000 / 10,000, fine labels."""

    paper: ClassVar[str] = "@krizhevsky2009learning"

    def source(self, root: Path, *, download: bool) -> Source:
        files = ("cifar-100-python/train", "cifar-100-python/test")
        return Vision("cifar100", 100, files, _of("CIFAR100")).source(root, download=download)


@register("svhn", version=1)
@dataclass(frozen=True)
class Svhn(StoredDataset):
    """Street View House Numbers, 32×32 colour, cropped digits, 73,257 / 26,032."""

    paper: ClassVar[str] = "@netzer2011reading"

    def source(self, root: Path, *, download: bool) -> Source:
        files = ("train_32x32.mat", "test_32x32.mat")
        return Vision("svhn", 10, files, _svhn).source(root, download=download)


@register("usps", version=1)
@dataclass(frozen=True)
class Usps(StoredDataset):
    """USPS, 16×16 handwritten postal digits, 7,291 / 2,007."""

    paper: ClassVar[str] = "@hull1994database"

    def source(self, root: Path, *, download: bool) -> Source:
        return Vision("usps", 10, ("usps.bz2", "usps.t.bz2"), _of("USPS")).source(root, download=download)
