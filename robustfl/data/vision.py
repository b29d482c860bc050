"""The public data sets torchvision knows: found under the data root, or downloaded there on demand."""

from __future__ import annotations

import os
import shutil
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.cache import Source, file_stamp
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.npz import npz_source
from robustfl.errors import DataMissing, UsageError

Read = Callable[[Any, Path, bool, bool], tuple[Array, Array]]


@dataclass(frozen=True)
class Vision:
    """The layout of one data set on disk: ``files`` are patterns that all must match, ``read`` the images of one split.

    ``read(datasets, folder, train, download)`` gets the module ``torchvision.datasets``. ``npz`` is the name of the
    archive that takes precedence.
    """

    name: str
    classes: int
    files: tuple[str, ...]
    read: Read
    npz: str = ""

    def source(self, root: Path, *, download: bool) -> Source:
        """``<root>/<npz>.npz``, else the files in ``<root>/<name>`` or ``<root>``, else a download."""
        archive = root / f"{self.npz or self.name}.npz"
        if archive.is_file():
            return npz_source(archive, classes=self.classes)
        found = self._on_disk(root)
        if found is None and download:
            self._fetch(root, archive)
            found = self._on_disk(root)
        if found is None:
            raise self._missing(root, archive, "it is not there")
        folder, files = found
        return Source(file_stamp(f"torchvision {self.npz or self.name}", files), lambda: self._decode(folder))

    def _on_disk(self, root: Path) -> tuple[Path, list[Path]] | None:
        for folder in (root / self.name, root):
            matches = [list(folder.glob(pattern)) for pattern in self.files]
            if all(matches):
                return folder, [file for match in matches for file in match]
        return None

    def _missing(self, root: Path, archive: Path, why: str) -> DataMissing:
        return not_there(self.name, (root / self.name,), archive, why)

    def _fetch(self, root: Path, archive: Path) -> None:
        """Download into a temporary folder, then move file by file, so that no half-written file is ever found."""
        temporary = root / f".fetch-{uuid.uuid4().hex}"
        new = [folder for folder in (root, *root.parents) if not folder.exists()]
        try:
            temporary.mkdir(parents=True)
            for train in (True, False):
                self.read(_datasets(), temporary, train, True)
            for file in [f for f in temporary.rglob("*") if f.is_file()]:
                target = root / self.name / file.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)
        except (OSError, RuntimeError) as error:
            raise self._missing(root, archive, f"it could not be fetched ({error})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            for folder in new:  # of a root that was mistyped nothing stays
                with suppress(OSError):
                    folder.rmdir()

    def _decode(self, folder: Path) -> Arrays:
        try:
            with warnings.catch_warnings():
                # CIFAR's pickles are older than numpy 2.4's wish for a boolean `align`; the arrays are right.
                warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
                (train_x, train_y), (test_x, test_y) = (
                    self.read(_datasets(), folder, train, False) for train in (True, False)
                )
        except Exception as error:  # whatever torchvision makes of a damaged file
            raise UsageError(
                f"data set {self.name!r}: the files in {folder} cannot be read ({type(error).__name__}: {error}); "
                f"delete them and run: robustfl doctor --fetch {self.name}"
            ) from error
        raw = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
        return checked_arrays(f"{self.name} in {folder}", raw, classes=self.classes)


def not_there(name: str, places: tuple[Path, ...], archive: Path, why: str) -> DataMissing:
    """The error to raise for a public data set that is in none of ``places`` nor in ``archive``."""
    looked, why = " and ".join(map(str, places)), " ".join(why.split()).replace(" )", ")")  # errors may have many lines
    return DataMissing(
        f"data set {name!r}: {why}. Looked in {looked} and for {archive}; "
        f"where there is a network, fetch it with: robustfl doctor --fetch {name}"
    )


def _datasets() -> Any:
    from torchvision import datasets  # a second to import; only needed until the cache is there

    return datasets
