"""The Digits benchmark as FedBN publishes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.cache import Source, file_stamp
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.fitting import fitted
from robustfl.data.pickles import read_pickle
from robustfl.data.stored import StoredDataset
from robustfl.errors import DataMissing, UsageError
from robustfl.parameters import param
from robustfl.registry import register

DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
SIDE = 28


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

    domain: str = param("MNIST", choices=DOMAINS, doc="the domain")
    parts: int = param(10, ge=1, le=10, doc="how many of the ten training parts to take, from the first")

    def source(self, root: Path, *, download: bool) -> Source:
        del download
        folder = root / "digits" / self.domain
        files = [folder / "partitions" / f"train_part{i}.pkl" for i in range(self.parts)] + [folder / "test.pkl"]
        missing = [f for f in files if not f.is_file()]
        if missing:
            raise DataMissing(
                f"digits-fedbn: there is no file {missing[0]}; unpack FedBN's prepared Digits (see its repository, "
                f"med-air/FedBN) so that {root / 'digits'} holds {', '.join(DOMAINS)}"
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
    return fitted(str(file), images, size=SIDE, channels=3), labels
