"""Data sets that are decoded once: a folder per content, memory-mapped by every process that uses it.

``<root>/.cache/<name>-<fingerprint>/`` holds the arrays as ``.npy`` and ``meta.json``. A folder appears complete
or not at all (temporary folder, fsync, rename); deleting ``.cache`` is always safe. Where it cannot be written, data
stay in memory. Every process compares what it finds there with the fingerprint once; what differs is decoded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.contracts import Arrays, Dataset
from robustfl.data.checks import CLIENTS, NAMES, Array, content_digest
from robustfl.errors import reason
from robustfl.file_io import read_json
from robustfl.parameters import param
from robustfl.randomness import numpy_stream

_log = logging.getLogger("robustfl.data")
_DAY = 86400.0
_KEPT_STAMPS = 16
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError)  # numpy calls an empty file the end of one
_verified: set[tuple[object, ...]] = set()  # files by path, size and times, as they were when their content was right


@dataclass(frozen=True)
class Source:
    """Where images come from: ``stamp`` changes whenever they may have, ``decode`` reads them."""

    stamp: str
    decode: Callable[[], Arrays]


def file_stamp(name: str, files: list[Path]) -> str:
    """A stamp from what the file system knows of ``files``: another file of equal size and time has another."""
    return json.dumps([name, *(_marks(f.absolute()) for f in sorted(files))])


def load_cached(folder: Path, name: str, source: Source) -> Arrays:
    """The arrays of ``source``, memory-mapped from ``folder`` if decoded before; else decoded and stored there."""
    found = _find(folder, name, source.stamp)
    if found is not None:
        return found
    arrays = source.decode()
    try:
        return _store(folder, name, source.stamp, arrays)
    except OSError as error:
        _log.warning("%s: no cache in %s (%s); the images stay in memory", name, folder, reason(error))
        return arrays


def _find(folder: Path, name: str, stamp: str) -> Arrays | None:
    for meta_file in sorted(folder.glob(f"{name}-*/meta.json")):
        try:
            meta = read_json(meta_file)
            if stamp in meta["sources"]:
                return _open(meta_file.parent, meta)
        except OSError as error:
            _log.warning("cache %s cannot be read (%s); decoding again", meta_file.parent, reason(error))
        except _DAMAGED as error:
            _log.warning("cache %s is damaged (%s); decoding again", meta_file.parent, reason(error))
    return None


def _open(place: Path, meta: dict[str, Any]) -> Arrays:
    """Map a cache folder; raises ``ValueError`` if a file is not what ``meta`` says."""
    parts: dict[str, Any] = {}
    names = [*NAMES, *(name for name in CLIENTS if name in meta["arrays"])]
    seen = (meta["fingerprint"], *(_marks(place / f"{name}.npy") for name in names))
    for name in names:
        array = np.load(place / f"{name}.npy", mmap_mode="r" if name.endswith("_x") else None, allow_pickle=False)
        if [str(array.dtype), *array.shape] != meta["arrays"][name]:
            raise ValueError(f"{name}.npy is {array.dtype} {array.shape}")
        parts[name] = array
    if seen not in _verified:
        if content_digest(parts, int(meta["classes"])) != meta["fingerprint"]:
            raise ValueError("its content has another digest than when it was decoded")
        _verified.add(seen)
    return Arrays(**parts, classes=int(meta["classes"]), fingerprint=str(meta["fingerprint"]))


def _marks(file: Path) -> tuple[object, ...]:
    facts = file.stat()
    return str(file), facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _store(folder: Path, name: str, stamp: str, arrays: Arrays) -> Arrays:
    place = folder / f"{name}-{arrays.fingerprint[:32]}"
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    parts = {name: part for name in (*NAMES, *CLIENTS) if (part := getattr(arrays, name)) is not None}
    shapes = {name: [str(part.dtype), *part.shape] for name, part in parts.items()}
    meta = {"fingerprint": arrays.fingerprint, "classes": arrays.classes, "arrays": shapes, "sources": [stamp]}
    kept = _kept(place, meta)
    if kept is not None:
        return kept
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        for array, part in parts.items():
            with open(temporary / f"{array}.npy", "wb") as file:
                np.save(file, part, allow_pickle=False)
                _sync(file)
        _write_json(temporary / "meta.json", meta)
        try:
            temporary.rename(place)
        except OSError:
            # Another process was faster, or an unreadable folder is in the way: the former is as good as ours.
            kept = _kept(place, meta)
            if kept is not None:
                return kept
            place.rename(folder / f".tmp-{uuid.uuid4().hex}")
            temporary.rename(place)
        return _open(place, meta)
    except (ValueError, EOFError) as error:
        raise OSError(f"what was written to {place} reads back differently: {reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _kept(place: Path, meta: dict[str, Any]) -> Arrays | None:
    """The arrays already in ``place``, with the new stamp noted there; ``None`` if it is not whole."""
    try:
        old = read_json(place / "meta.json")
        arrays = _open(place, old)
        stamps = [s for s in old["sources"] if s not in meta["sources"]] + meta["sources"]
        if old["fingerprint"] != meta["fingerprint"]:
            return None
    except _DAMAGED:
        return None
    try:
        temporary = place / f".meta-{uuid.uuid4().hex}"
        _write_json(temporary, {**old, "sources": stamps[-_KEPT_STAMPS:]})
        temporary.replace(place / "meta.json")
    except OSError as error:
        _log.info("cache %s: the new stamp could not be noted (%s)", place, error)
    return arrays


def _write_json(path: Path, value: Any) -> None:
    with open(path, "w") as file:
        json.dump(value, file)
        _sync(file)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind more than a day ago."""
    for left in folder.glob(".tmp-*"):
        with suppress(FileNotFoundError):  # its owner has just renamed it
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class StoredDataset(Dataset):
    """A data set decoded once into ``<root>/.cache``.

    ``limit`` and ``test_limit`` keep at most that many images: the first of a random order that depends on nothing
    but the content, so smaller limits are subsets of larger ones.
    """

    limit: int | None = param(None, ge=1, doc="keep at most this many training images")
    test_limit: int | None = param(None, ge=1, doc="keep at most this many test images")

    @abstractmethod
    def source(self, root: Path, *, download: bool) -> Source:
        """Where the images are; raises ``DataMissing`` if they are nowhere and cannot be fetched."""

    def load(self, root: Path, *, download: bool = True) -> Arrays:
        whole = load_cached(root / ".cache", self.name, self.source(root, download=download))
        if self._digest(whole) == whole.fingerprint:
            return whole
        train = _chosen(whole.train_y, self.limit, "train", whole.fingerprint)
        test = _chosen(whole.test_y, self.test_limit, "test", whole.fingerprint)
        return Arrays(
            whole.train_x[train],
            whole.train_y[train],
            whole.test_x[test],
            whole.test_y[test],
            classes=whole.classes,
            fingerprint=self._digest(whole),
            train_client=None if whole.train_client is None else whole.train_client[train],
            test_client=None if whole.test_client is None else whole.test_client[test],
        )

    def fingerprint(self, root: Path, *, download: bool = True) -> str:
        return self._digest(load_cached(root / ".cache", self.name, self.source(root, download=download)))

    def _digest(self, whole: Arrays) -> str:
        sizes = [len(whole.train_y), len(whole.test_y)]
        kept = [min(limit or size, size) for limit, size in zip((self.limit, self.test_limit), sizes, strict=True)]
        if kept == sizes:
            return whole.fingerprint
        return hashlib.sha256(f"{whole.fingerprint} {kept}".encode()).hexdigest()


def _chosen(labels: Array, limit: int | None, split: str, fingerprint: str) -> Array | slice:
    """Ascending indices of the images to keep; a slice, which copies nothing, for all."""
    if limit is None or limit >= len(labels):
        return slice(None)
    order = numpy_stream(0, "limit", split, fingerprint).permutation(len(labels))
    kept: Array = np.sort(order[:limit])
    return kept
