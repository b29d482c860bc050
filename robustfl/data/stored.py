"""What all data sets share: the cache, and taking a part of the images."""

from __future__ import annotations

import dataclasses
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
        train = _chosen(whole.train_y, self.limit, "train", whole.fingerprint)
        test = _chosen(whole.test_y, self.test_limit, "test", whole.fingerprint)
        changes: dict[str, Array] = {}
        for split, kept in (("train", train), ("test", test)):
            if kept is not None:
                changes |= {f"{split}_{a}": getattr(whole, f"{split}_{a}")[kept] for a in "xy"}
        return dataclasses.replace(whole, **changes, fingerprint=self._digest(whole)) if changes else whole

    def fingerprint(self, root: Path, *, download: bool = True) -> str:
        return self._digest(load_cached(root / ".cache", self.name, self.source(root, download=download)))

    def _digest(self, whole: Arrays) -> str:
        """The digest of the part that is kept."""
        kept = [min(limit or len(y), len(y)) for limit, y in self._limits(whole)]
        if kept == [len(whole.train_y), len(whole.test_y)]:
            return whole.fingerprint
        return hashlib.sha256(f"{whole.fingerprint} {kept}".encode()).hexdigest()

    def _limits(self, whole: Arrays) -> list[tuple[int | None, Array]]:
        return [(self.limit, whole.train_y), (self.test_limit, whole.test_y)]


def _chosen(labels: Array, limit: int | None, split: str, fingerprint: str) -> Array | None:
    """Ascending indices of the images to keep; ``None`` for all."""
    if limit is None or limit >= len(labels):
        return None
    order = numpy_stream(0, "limit", split, fingerprint).permutation(len(labels))
    return np.sort(order[:limit])
