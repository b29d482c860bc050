"""Embedded data sets: scikit-learn's handwritten digits, and three domains made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.stored import Source, StoredDataset
from robustfl.parameters import param
from robustfl.randomness import numpy_stream
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
        return Source(f"scikit-learn {version('scikit-learn')} digits 1", decode_digits)


def decode_digits() -> Arrays:
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


SIDE = 16


@register("digits-domain", version=1)
@dataclass(frozen=True)
class DigitsDomain(StoredDataset):
    """One of three looks of the embedded digits, 3×16×16: the same split as ``digits``, so that nothing leaks.

    ``clean``: enlarged, grey on black. ``textured``: inverted, on a coloured texture of smooth random waves.
    ``shifted``: a random colour, blurred, moved by up to two pixels on a dark coloured ground. Draws come from
    fixed streams, so every run sees the same images.

    >>> DigitsDomain(style="textured", limit=100).style
    'textured'

    Reference: Alpaydin, Kaynak, Optical Recognition of Handwritten Digits, UCI 1998; the looks are our own.
    """

    paper: ClassVar[str] = "@alpaydin1998optical (looks our own)"

    style: str = param("clean", choices=("clean", "textured", "shifted"), doc="the domain")

    def source(self, root: Path, *, download: bool) -> Source:
        return Source(
            f"scikit-learn {version('scikit-learn')} digits-domain 1 {self.style}", lambda: _decode(self.style)
        )


def _decode(style: str) -> Arrays:
    digits = decode_digits()
    make: Callable[[Array, np.random.Generator], Array] = {"clean": _clean, "textured": _textured, "shifted": _shifted}[
        style
    ]
    raw = {"train_y": digits.train_y, "test_y": digits.test_y}
    for part in ("train_x", "test_x"):
        grey = _enlarged(getattr(digits, part)[..., 0].astype(np.float64) / 255)
        generator = numpy_stream(0, "digits-domain", style, part)
        raw[part] = np.rint(255 * np.clip(make(grey, generator), 0, 1)).astype(np.uint8)
    return checked_arrays(f"digits-domain {style}", raw, classes=10)


def _enlarged(x: Array) -> Array:
    """``[N 8 8]`` to ``[N 16 16]``, bilinear."""
    places = np.clip((np.arange(SIDE) + 0.5) / 2 - 0.5, 0, x.shape[1] - 1)
    low = np.floor(places).astype(np.int64)
    high, share = np.minimum(low + 1, x.shape[1] - 1), places - low
    rows: Array = x[:, low] * (1 - share)[None, :, None] + x[:, high] * share[None, :, None]
    made: Array = rows[:, :, low] * (1 - share) + rows[:, :, high] * share
    return made


def _clean(grey: Array, generator: np.random.Generator) -> Array:
    del generator
    return np.repeat(grey[..., None], 3, axis=-1)


def _textured(grey: Array, generator: np.random.Generator) -> Array:
    n = len(grey)
    axis = np.arange(SIDE) * (2 * np.pi / SIDE)
    texture = np.zeros((n, SIDE, SIDE, 3))
    for _ in range(3):
        waves = generator.integers(1, 4, size=(n, 1, 1, 3)) * np.sign(generator.random((n, 1, 1, 3)) - 0.5)
        across = generator.integers(1, 4, size=(n, 1, 1, 3))
        phase = generator.uniform(0, 2 * np.pi, size=(n, 1, 1, 3))
        texture += np.sin(waves * axis[None, :, None, None] + across * axis[None, None, :, None] + phase) / 3
    ground = 0.7 + 0.25 * texture
    made: Array = ground * (1 - 0.9 * grey[..., None])
    return made


def _shifted(grey: Array, generator: np.random.Generator) -> Array:
    n = len(grey)
    blurred = grey
    for axis in (1, 2):
        padded = np.pad(blurred, [(0, 0)] + [(1, 1) if a == axis else (0, 0) for a in (1, 2)])
        parts = [np.take(padded, np.arange(k, k + SIDE), axis=axis) for k in range(3)]
        blurred = 0.25 * parts[0] + 0.5 * parts[1] + 0.25 * parts[2]
    rows, columns = (generator.integers(-2, 3, size=n) for _ in range(2))
    padded = np.pad(blurred, [(0, 0), (2, 2), (2, 2)])
    index = np.arange(SIDE) + 2
    moved = padded[
        np.arange(n)[:, None, None], (index[None, :] - rows[:, None])[:, :, None],
        (index[None, :] - columns[:, None])[:, None, :],
    ]  # fmt: skip
    ink = generator.uniform(0.35, 1.0, size=(n, 1, 1, 3))
    ground = generator.uniform(0.0, 0.3, size=(n, 1, 1, 3))
    made: Array = ground + (ink - ground) * moved[..., None]
    return made
