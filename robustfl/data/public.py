"""Public data sets: found under the data root, or downloaded there on demand; those that torchvision knows."""

from __future__ import annotations

import os
import shutil
import uuid
import warnings
import zipfile
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.npz import npz_source
from robustfl.data.stored import Source, StoredDataset, file_stamp
from robustfl.errors import DataMissing, UsageError, reason, told
from robustfl.parameters import param
from robustfl.registry import register


class Public(StoredDataset):
    """A data set that is an archive ``<root>/<form>.npz``, else files below the data root, else a download."""

    @property
    def form(self) -> str:
        """The name of the archive, without its ending."""
        return self.name

    @property
    @abstractmethod
    def classes(self) -> int:
        """The number of classes."""

    @abstractmethod
    def on_disk(self, root: Path) -> Source | None:
        """Where the images are below ``root``, if they are."""

    @abstractmethod
    def fetch(self, root: Path, temporary: Path) -> None:
        """Download into ``temporary``, then move to ``root``, so that no half-written file is ever found."""

    def places(self, root: Path) -> tuple[Path, ...]:
        """The folders to name where the images are in none."""
        return (root / self.name,)

    def source(self, root: Path, *, download: bool) -> Source:
        archive = root / f"{self.form}.npz"
        if archive.is_file():
            return npz_source(archive, classes=self.classes)
        found = self.on_disk(root)
        if found is None and download:
            self._fetch(root)
            found = self.on_disk(root)
        if found is None:
            raise self.missing(root, "it is not there")
        return found

    def missing(self, root: Path, why: str) -> DataMissing:
        """The error to raise for a data set that is not there."""
        looked = " and ".join(map(str, self.places(root)))
        why = " ".join(why.split()).replace(" )", ")")  # errors may have many lines
        return DataMissing(
            f"data set {self.name!r}: {why}. Looked in {looked} and for {root / self.form}.npz; "
            f"where there is a network, fetch it with: robustfl doctor --fetch {self.name}"
        )

    def _fetch(self, root: Path) -> None:
        temporary = root / f".fetch-{uuid.uuid4().hex}"
        new = [folder for folder in (root, *root.parents) if not folder.exists()]
        try:
            temporary.mkdir(parents=True)
            self.fetch(root, temporary)
        except (OSError, RuntimeError, zipfile.BadZipFile) as error:
            if self.on_disk(root) is None:  # else another process was faster
                raise self.missing(root, f"it could not be fetched ({reason(error)})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            for folder in new:  # of a root that was mistyped nothing stays
                with suppress(OSError):
                    folder.rmdir()


class Vision(Public):
    """A data set of torchvision's, there called ``torchvision``; ``files`` are patterns that all must match."""

    torchvision: ClassVar[str]

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Where its files lie in ``<root>/<name>`` or ``<root>``."""

    def read(self, datasets: Any, folder: Path, *, train: bool, download: bool) -> tuple[Array, Array]:
        """Images and labels of one split; ``datasets`` is the module ``torchvision.datasets``."""
        split = getattr(datasets, self.torchvision)(folder, train=train, download=download)
        return np.asarray(split.data), np.asarray(split.targets)

    def on_disk(self, root: Path) -> Source | None:
        for folder in (root / self.name, root):
            matches = [list(folder.glob(pattern)) for pattern in self.files]
            if all(matches):
                stamp = file_stamp(f"torchvision {self.form}", [file for match in matches for file in match])
                return Source(stamp, lambda folder=folder: self._decode(folder))  # type: ignore[misc]
        return None

    def fetch(self, root: Path, temporary: Path) -> None:
        for train in (True, False):
            self.read(_datasets(), temporary, train=train, download=True)
        for file in [f for f in temporary.rglob("*") if f.is_file()]:
            target = root / self.name / file.relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)

    def _decode(self, folder: Path) -> Arrays:
        try:
            with warnings.catch_warnings():
                # CIFAR's pickles are older than numpy 2.4's wish for a boolean `align`; the arrays are right.
                warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
                (train_x, train_y), (test_x, test_y) = (
                    self.read(_datasets(), folder, train=train, download=False) for train in (True, False)
                )
        except Exception as error:  # whatever torchvision makes of a damaged file
            raise UsageError(
                f"data set {self.name!r}: the files in {folder} cannot be read ({told(error)}); "
                f"delete them and run: robustfl doctor --fetch {self.name}"
            ) from error
        raw = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
        return checked_arrays(f"{self.name} in {folder}", raw, classes=self.classes)


def _datasets() -> Any:
    from torchvision import datasets  # a second to import; only needed until the cache is there

    return datasets


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
