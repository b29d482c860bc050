"""Data sets in the layouts of FedBN: its digits, and folders of images named by lists."""

from __future__ import annotations

import codecs
import hashlib
import os
import pickle
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.pictures import arrays_of
from robustfl.data.resized import fitted
from robustfl.data.stored import Source, StoredDataset, file_stamp
from robustfl.errors import DataMissing, UsageError, reason
from robustfl.parameters import param
from robustfl.randomness import numpy_stream
from robustfl.registry import register

_ADMITTED: dict[str, Any] = {  # by the names of numpy 2; before, ``numpy._core`` was ``numpy.core``
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy._core.multiarray._reconstruct": np.zeros(1).__reduce__()[0],
    "numpy._core.multiarray.scalar": np.float64(0).__reduce__()[0],
    "numpy._core.numeric._frombuffer": np.zeros(1).__reduce_ex__(5)[0],
    "_codecs.encode": codecs.encode,  # bytes, as protocols before 3 store them
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that finds the constructors of arrays, and no other name."""

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get(f"{module.replace('numpy.core.', 'numpy._core.')}.{name}")
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}; only NumPy arrays, numbers and text are allowed")
        return found


def read_pickle(path: Path) -> Any:
    """Read a pickle of arrays, numbers and text; raises ``UsageError`` for any other, before any of it runs."""
    try:
        with open(path, "rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise UsageError(f"{path} is not a pickle of arrays: {reason(error)}") from error


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
            raw[f"{part}_x"] = arrays_of(places, (self.size, self.size), 3)
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


DOMAINNET = ("real", "clipart", "infograph", "painting", "quickdraw", "sketch")
DOMAINNET_CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip


@register("domainnet", version=1)
@dataclass(frozen=True)
class DomainNet(Listed):
    """One domain of DomainNet's ten classes as FedBN uses them, 3×256×256.

    Expected under the data root: ``DomainNet/<domain>_train.pkl`` and ``_test.pkl`` (FedBN: paths, class names) or the
    official lists ``<domain>_train.txt`` (``path label``, filtered by the folder's class and shuffled), and the images.
    Whatever is not RGB is converted to it; FedBN turns pictures with four channels grey.

    >>> DomainNet(domain="sketch").size
    256

    Reference: Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019, arXiv:1812.01754; classes
    bird, feather, headphones, ice_cream, teapot, tiger, whale, windmill, wine_glass, zebra.
    """

    paper: ClassVar[str] = "@peng2019moment; ten classes of @li2021fedbn"
    folder: ClassVar[str] = "DomainNet"
    classes: ClassVar[tuple[str, ...]] = DOMAINNET_CLASSES

    domain: str = param("real", choices=DOMAINNET, doc="the domain")


OFFICE = ("amazon", "caltech", "dslr", "webcam")
OFFICE_CLASSES = (
    "back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug",
    "projector",
)  # fmt: skip


@register("office-caltech", version=1)
@dataclass(frozen=True)
class OfficeCaltech(Listed):
    """One domain of Office-Caltech10 in FedBN's layout, 3×256×256.

    Expected under the data root: ``office_caltech_10/<domain>_train.pkl`` and ``_test.pkl`` (paths, class names or
    numbers) and the images they name.

    >>> OfficeCaltech(domain="dslr").domain
    'dslr'

    Reference: Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
    """

    paper: ClassVar[str] = "@gong2012geodesic; layout of @li2021fedbn"
    folder: ClassVar[str] = "office_caltech_10"
    classes: ClassVar[tuple[str, ...]] = OFFICE_CLASSES

    domain: str = param("amazon", choices=OFFICE, doc="the domain")


DIGITS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
DIGITS_SIDE = 28


@register("digits-fedbn", version=1)
@dataclass(frozen=True)
class DigitsFedBN(StoredDataset):
    """One domain of the Digits benchmark as FedBN publishes it, 3×28×28, resized and grey repeated where needed.

    Expected under the data root: ``digits/<domain>/partitions/train_part0.pkl`` … ``train_part9.pkl`` and
    ``digits/<domain>/test.pkl``, each a pickled pair of image and label arrays. Pickles may hold arrays only.

    >>> DigitsFedBN(domain="USPS", parts=1).parts
    1

    Reference: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
    arXiv:2102.07623.
    """

    paper: ClassVar[str] = "@li2021fedbn"

    domain: str = param("MNIST", choices=DIGITS, doc="the domain")
    parts: int = param(10, ge=1, le=10, doc="how many of the ten training parts to take, from the first")

    def source(self, root: Path, *, download: bool) -> Source:
        folder = root / "digits" / self.domain
        files = [folder / "partitions" / f"train_part{i}.pkl" for i in range(self.parts)] + [folder / "test.pkl"]
        missing = [f for f in files if not f.is_file()]
        if missing:
            raise DataMissing(
                f"digits-fedbn: there is no file {missing[0]}; unpack FedBN's prepared Digits (see its repository, "
                f"med-air/FedBN) so that {root / 'digits'} holds {', '.join(DIGITS)}"
            )
        return Source(file_stamp(f"digits-fedbn {self.parts}", files), lambda: self._decode(files))

    def _decode(self, files: list[Path]) -> Arrays:
        pairs = [_pair(f) for f in files]
        raw = {
            "train_x": np.concatenate([x for x, _ in pairs[:-1]]),
            "train_y": np.concatenate([y for _, y in pairs[:-1]]),
            "test_x": pairs[-1][0],
            "test_y": pairs[-1][1],
        }
        return checked_arrays(f"digits-fedbn {self.domain}", raw, classes=10)


def _pair(file: Path) -> tuple[Array, Array]:
    """Images ``[N 28 28 3]`` and labels ``[N]`` of a file."""
    content = read_pickle(file)
    whole = isinstance(content, (tuple, list)) and len(content) == 2
    if not whole or not all(isinstance(part, np.ndarray) for part in content):
        raise UsageError(f"{file} should hold a pair of arrays, images and labels")
    images, labels = content
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape or labels.shape != images.shape[:1]:
        raise UsageError(
            f"{file}: images {images.dtype} {images.shape} and labels {labels.dtype} {labels.shape} should be uint8 "
            "[N H W] or [N H W C] and [N]"
        )
    return fitted(str(file), images, size=DIGITS_SIDE, channels=3), labels
