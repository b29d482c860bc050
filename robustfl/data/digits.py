"""The embedded data set: scikit-learn's handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.cache import Source
from robustfl.data.checks import checked_arrays
from robustfl.data.stored import StoredDataset
from robustfl.registry import register


@register("digits", version=1)
@dataclass(frozen=True)
class Digits(StoredDataset):
    """1,797 real handwritten digits, 8×8, shipped with scikit-learn: no download.

    Values 0..16 become uint8 by rounding ``v·255/16``. The split is fixed and stratified: within every class, in
    scikit-learn's order, each fifth image (the 5th, 10th, …) is a test image: 1,442 train, 355 test.

    >>> Digits(limit=100)
    Digits(limit=100, test_limit=None)

    Reference: Alpaydin, Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (its test part).
    """

    paper: ClassVar[str] = "@alpaydin1998optical"

    def source(self, root: Path, *, download: bool) -> Source:
        del root, download
        return Source(f"scikit-learn {version('scikit-learn')} digits 1", decode_digits)


def decode_digits() -> Arrays:
    """The embedded digits with their fixed split."""
    from sklearn.datasets import load_digits  # slow to import, and not needed once the cache is there

    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    y = bunch.target.astype(np.int64)
    place_in_class = np.empty(len(y), np.int64)
    for c in range(10):
        place_in_class[y == c] = np.arange(np.count_nonzero(y == c))
    test = place_in_class % 5 == 4
    raw = {"train_x": x[~test], "train_y": y[~test], "test_x": x[test], "test_y": y[test]}
    return checked_arrays("scikit-learn's digits", raw, classes=10)
