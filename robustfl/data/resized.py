"""Data sets brought to another size and number of channels, to take part among other domains."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from robustfl.contracts import Arrays, Dataset
from robustfl.data.checks import CLIENTS, NAMES, Array, checked_arrays
from robustfl.data.specs import dataset_from_spec
from robustfl.data.stored import Source, StoredDataset
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

_BLOCK = 1024


def fitted(where: str, images: Array, *, size: int, channels: int) -> Array:
    """``[N H W]`` or ``[N H W C]`` to ``[N size size channels]``: bilinear, antialiased; grey images are repeated.

    Images that fit are returned as they are. Raises ``UsageError`` naming ``where`` if colour would be lost.
    """
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[3] not in (1, channels):
        raise UsageError(f"{where} has {images.shape[3]} channels, which cannot become {channels}")
    if images.shape[1:3] != (size, size):
        images = np.concatenate([_resized(images[i : i + _BLOCK], size) for i in range(0, len(images), _BLOCK)])
    return np.repeat(images, channels, axis=-1) if images.shape[3] != channels else images


def _resized(images: Array, size: int) -> Array:
    x = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).to(torch.float32)
    y = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True)
    if images.dtype == np.uint8:
        y = y.round().clamp(0, 255).to(torch.uint8)
    made: Array = y.permute(0, 2, 3, 1).contiguous().numpy()
    return made


@register("resized", version=1)
@dataclass(frozen=True)
class Resized(StoredDataset):
    """Another data set, resized (bilinear, antialiased) and with grey repeated to the wanted number of channels.

    ``resized(dataset=mnist, size=28, channels=3)``. Colour is never turned to grey. Nothing is done to images that fit.

    >>> Resized(dataset="mnist", size=28).channels
    3

    Reference: the Digits preparation of Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization, ICLR 2021, arXiv:2102.07623 (28×28, three channels).
    """

    paper: ClassVar[str] = "@li2021fedbn (preparation of the Digits domains)"

    dataset: str = param(doc="the data set to resize, such as mnist or npz:PATH")
    size: int = param(28, ge=1, doc="height and width")
    channels: int = param(3, ge=1, le=4, doc="channels; grey images are repeated")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._inner().name == self.name:
            raise UsageError(f"resized: {self.dataset!r} is resized already")

    def source(self, root: Path, *, download: bool) -> Source:
        inner = self._inner()
        stamp = f"resized 1 {inner.fingerprint(root, download=download)} {self.size} {self.channels}"

        def decode() -> Arrays:
            arrays = inner.load(root, download=download)
            where, sides = f"resized: {self.dataset}", {"size": self.size, "channels": self.channels}
            raw = {name: part for name in (*NAMES, *CLIENTS) if (part := getattr(arrays, name)) is not None}
            raw |= {name: fitted(where, raw[name], **sides) for name in ("train_x", "test_x")}
            return checked_arrays(where, raw, classes=arrays.classes)

        return Source(hashlib.sha256(stamp.encode()).hexdigest(), decode)

    def _inner(self) -> Dataset:
        return dataset_from_spec(self.dataset)
