"""Data sets from a NumPy archive."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.cache import Source, file_stamp
from robustfl.data.checks import NAMES, Array, checked_arrays
from robustfl.data.specs import find_path
from robustfl.data.stored import StoredDataset
from robustfl.errors import UsageError, reason
from robustfl.parameters import param
from robustfl.registry import register

_UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


@register("npz", version=1)
@dataclass(frozen=True)
class Npz(StoredDataset):
    """Any images from an ``.npz`` file with ``train_x train_y test_x test_y``; scenarios also write ``npz:PATH``.

    Images are uint8 or float in [0, 1], ``[N H W C]`` or ``[N H W]``; labels are integers from 0. A relative path is
    looked up in the working directory, then in the data root.

    >>> Npz(path="mine.npz", limit=1000).path
    'mine.npz'
    """

    path: str = param(doc="the archive")

    def source(self, root: Path, *, download: bool) -> Source:
        del download
        return npz_source(find_path(self.name, self.path, root, f"it should hold {', '.join(NAMES)}"))


def npz_source(path: Path, *, classes: int | None = None) -> Source:
    """The source of an archive; the content decides the fingerprint, the file's size and time the stamp."""
    return Source(file_stamp(f"npz classes={classes}", [path]), lambda: read_npz(path, classes=classes))


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
    raw = {}
    for name in NAMES:
        if name not in archive.files:
            raise UsageError(f"{path}: no array {name!r}; expected {', '.join(NAMES)}, got {archive.files}")
        try:
            raw[name] = archive[name]
        except _UNREADABLE as error:
            raise UsageError(f"{path}: {name} cannot be read: {reason(error)}") from error
    return raw
