"""Public data sets: found under the data root, or downloaded there on demand; those that torchvision knows."""

from __future__ import annotations

import os
import shutil
import uuid
import warnings
import zipfile
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.cache import Source, file_stamp
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.npz import npz_source
from robustfl.data.stored import StoredDataset
from robustfl.errors import DataMissing, UsageError, reason, told


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
