"""Images of a folder named by lists, in the layout of FedBN."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.cache import Source, file_stamp
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.pickles import read_pickle
from robustfl.data.stored import StoredDataset
from robustfl.errors import DataMissing, UsageError, reason
from robustfl.parameters import param
from robustfl.randomness import numpy_stream


@dataclass(frozen=True)
class Listed(StoredDataset):
    """A data set whose ``<domain>_train`` and ``<domain>_test`` lists below ``folder`` name images of ``classes``."""

    folder: ClassVar[str] = ""
    classes: ClassVar[tuple[str, ...]] = ()

    size: int = param(256, ge=8, doc="height and width after resizing")

    @property
    @abstractmethod
    def domain(self) -> str:
        """The domain whose images these are."""

    def source(self, root: Path, *, download: bool) -> Source:
        """Where the images of the domain are: its lists, pickled or written, and what they name."""
        del download
        domain, base = self.domain, root / self.folder
        files: list[Path] = []
        parts = {}
        for part in ("train", "test"):
            found = [f for suffix in ("pkl", "txt") if (f := base / f"{domain}_{part}.{suffix}").is_file()]
            if not found:
                raise DataMissing(
                    f"{self.name}: there is no {base / f'{domain}_{part}'}.pkl or .txt; it should list image paths "
                    f"(below {base}) and labels of {domain}"
                )
            paths, labels = self._entries(found[0])
            places = [_inside(base, path, found[0]) for path in paths]
            files += [found[0], *places]
            parts[part] = places, labels
        stamp = hashlib.sha256(file_stamp(f"{self.name} {domain} {self.size}", files).encode()).hexdigest()
        return Source(stamp, lambda: self._read(domain, parts))

    def _read(self, domain: str, parts: dict[str, tuple[list[Path], list[int]]]) -> Arrays:
        raw: dict[str, Array] = {}
        for part, (places, labels) in parts.items():
            raw[f"{part}_x"] = pictures(places, self.size, resized=True)
            raw[f"{part}_y"] = np.array(labels, dtype=np.int64)
        return checked_arrays(f"{self.name} {domain}", raw, classes=len(self.classes))

    def _entries(self, file: Path) -> tuple[list[str], list[int]]:
        """Paths and labels of a list: of a pickle as they stand, of a text those of our classes in a fixed order.

        The official texts are sorted by class, which would give users of consecutive blocks few classes each.
        """
        paths, labels = self._pickled(file) if file.suffix == ".pkl" else self._written(file)
        if not paths:
            raise UsageError(f"{file} lists no image of the classes {', '.join(self.classes)}")
        return paths, labels

    def _pickled(self, file: Path) -> tuple[list[str], list[int]]:
        content = read_pickle(file)
        sequences = (list, tuple, np.ndarray)
        lists = [list(p) for p in content if isinstance(p, sequences)] if isinstance(content, sequences) else []
        if len(lists) != 2 or len(lists[0]) != len(lists[1]):
            raise UsageError(f"{file} should hold a pair of paths and labels of one length")
        if not all(isinstance(path, str) for path in lists[0]):
            raise UsageError(f"{file} should list paths, which are texts")
        return [str(path) for path in lists[0]], [self._label(label, file) for label in lists[1]]

    def _written(self, file: Path) -> tuple[list[str], list[int]]:
        paths, labels = [], []
        for number, line in enumerate(lines_of(file), 1):
            path, _, label = line.strip().rpartition(" ")
            if line.strip() and not (path and label.isdecimal()):
                raise UsageError(f"{file}, line {number}: expected 'path label', got {line!r}")
            name = Path(path).parent.name
            if name in self.classes:
                paths.append(path)
                labels.append(self.classes.index(name))
        order = numpy_stream(0, self.name, file.name).permutation(len(paths))
        return [paths[i] for i in order], [labels[i] for i in order]

    def _label(self, label: Any, file: Path) -> int:
        if isinstance(label, str) and label in self.classes:
            return self.classes.index(label)
        whole = isinstance(label, (int, np.integer)) and not isinstance(label, bool)
        if whole and 0 <= int(label) < len(self.classes):
            return int(label)
        named = repr(label) if isinstance(label, (str, int, float)) else f"a {type(label).__name__}"
        raise UsageError(f"{file}: label {named} is none of {', '.join(self.classes)}")


def lines_of(file: Path) -> list[str]:
    """The lines of a text; raises ``UsageError`` naming a file that is none."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None


def _inside(base: Path, path: str, file: Path) -> Path:
    """The listed path below ``base``; FedBN's lists begin with the folder's own name."""
    below = Path(os.path.normpath(path))
    if below.parts[:1] == (base.name,):
        below = Path(*below.parts[1:])
    if below.is_absolute() or ".." in below.parts or not (base / below).is_file():
        raise DataMissing(f"{file} lists {path!r}, which is no file below {base}")
    return base / below


def pictures(files: Sequence[Path], side: int, *, resized: bool) -> Array:
    """Images as RGB uint8 ``[N side side 3]``; raises ``UsageError`` for one of another size that is not resized."""
    images = np.empty((len(files), side, side, 3), np.uint8)  # the only copy: 1.2 GB for those of Tiny-ImageNet
    for image, file in zip(images, files, strict=True):
        pixels = picture(file, side if resized else None)
        if pixels.shape != image.shape:
            raise UsageError(f"{file} has {pixels.shape[1]}×{pixels.shape[0]} pixels; {side}×{side} are expected")
        image[...] = pixels
    return images


def picture(file: Path, size: int | None = None) -> Array:
    """An image as RGB uint8 ``[H W 3]``, resized to ``size × size`` if given; raises ``UsageError`` naming the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file)
        with image:
            colour = image.convert("RGB")
            return np.asarray(colour.resize((size, size), Image.Resampling.BILINEAR) if size else colour)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UsageError(f"{file} is too large an image: {reason(error)}") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"{file} is no readable image: {reason(error)}") from error
