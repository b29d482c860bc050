"""Data sets from a NumPy archive."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import CLIENTS, NAMES, Array, checked_arrays
from robustfl.data.specs import find_path
from robustfl.data.stored import Source, StoredDataset, file_stamp
from robustfl.errors import UsageError, reason
from robustfl.parameters import param
from robustfl.registry import register

_MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")
_UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


@register("npz", version=1)
@dataclass(frozen=True)
class Npz(StoredDataset):
    """Any images from an ``.npz`` file with ``train_x train_y test_x test_y``; scenarios also write ``npz:PATH``.

    Images are uint8 or float in [0, 1], ``[N H W C]`` or ``[N H W]``; labels are integers from 0. ``client`` and
    ``test_client`` say whose each image is, by whole numbers or names, for ``partition=natural`` and ``tests=own``.
    Archives of MedMNIST (``train_images``, ``train_labels``, …) are read as they are, without their validation part. A
    relative path is looked up in the working directory, then in the data root.

    >>> Npz(path="mine.npz", limit=1000).path
    'mine.npz'
    """

    path: str = param(doc="the archive")

    def source(self, root: Path, *, download: bool) -> Source:
        return npz_source(find_path(self.name, self.path, root, f"it should hold {', '.join(NAMES)}"))


def npz_source(path: Path, *, classes: int | None = None) -> Source:
    """The source of an archive; the content decides the fingerprint, the file's size and time the stamp."""
    return Source(file_stamp(f"npz 2 classes={classes}", [path]), lambda: read_npz(path, classes=classes))


def read_npz(path: Path, *, classes: int | None) -> Arrays:
    """The checked arrays of an archive. Pickled contents are never loaded."""
    try:
        with open(path, "rb") as file:  # numpy leaves a file of its own open when it turns out not to be an archive
            return checked_arrays(str(path), _members(path, np.load(file, allow_pickle=False)), classes=classes)
    except UsageError:
        raise
    except _UNREADABLE as error:
        # numpy takes what is no archive for a pickle, and advises to load that
        foreign = not isinstance(error, OSError) and not zipfile.is_zipfile(path)
        why = f"damaged, or another kind of file; expected {', '.join(NAMES)}" if foreign else reason(error)
        raise UsageError(f"{path} is not a readable .npz archive: {why}") from error


def _members(path: Path, archive: Any) -> dict[str, Array]:
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise UsageError(f"{path} holds a single array; expected an .npz archive with {', '.join(NAMES)}")
    medical = "train_images" in archive.files
    raw = {}
    for name, there in zip(
        (*NAMES, *CLIENTS), (*(_MEDMNIST if medical else NAMES), "client", "test_client"), strict=True
    ):
        if there not in archive.files:
            if name in CLIENTS:
                continue
            raise UsageError(f"{path}: no array {there!r}; expected {', '.join(NAMES)}, got {archive.files}")
        try:
            raw[name] = archive[there]
        except _UNREADABLE as error:
            raise UsageError(f"{path}: {there} cannot be read: {reason(error)}") from error
        if medical and name.endswith("_y"):
            raw[name] = _one_label(f"{path}: {there}", raw[name])
    return raw


def _one_label(what: str, labels: Array) -> Array:
    """MedMNIST's labels ``[N 1]`` as ``[N]``."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise UsageError(f"{what} has {labels.shape[1]} labels for each image; expected one class, [N] or [N 1]")
    return labels.reshape(len(labels))
