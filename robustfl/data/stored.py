"""The base of stored data sets: the cache, and taking a part of the images."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustfl.contracts import Arrays, Dataset
from robustfl.data.cache import Source, load_cached
from robustfl.data.checks import Array
from robustfl.parameters import param
from robustfl.randomness import numpy_stream


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
        """The digest of the part that is kept."""
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
