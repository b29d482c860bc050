"""Tiny-ImageNet's folders of JPEG images: found under the data root, or downloaded there on demand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.fedbn import lines_of
from robustfl.data.pictures import arrays_of
from robustfl.data.public import Public
from robustfl.data.stored import Source, file_stamp
from robustfl.errors import DataMissing, UsageError
from robustfl.registry import register

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
FOLDER = "tiny-imagenet-200"
CLASSES, SIDE = 200, 64

Labelled = list[tuple[Path, int]]


@register("tiny-imagenet", version=1)
@dataclass(frozen=True)
class TinyImageNet(Public):
    """Tiny-ImageNet, 64×64 colour photographs of 200 classes, 100,000 / 10,000 (its validation images).

    Read from the unpacked ``tiny-imagenet-200.zip``. Labels number the sorted lines of ``wnids.txt``; grey images
    become RGB. Training images take turns by class, so that every long run of them holds all classes.

    >>> TinyImageNet(limit=20000).limit
    20000

    Notes: whether images changed is told by the folders' times, not by reading 110,000 files: after overwriting an
    image in place, delete ``.cache`` in the data root.
    """

    paper: ClassVar[str] = "@le2015tiny"
    classes: ClassVar[int] = CLASSES

    def on_disk(self, root: Path) -> Source | None:
        places = (root / self.name / FOLDER, *self.places(root))
        folder = next((place for place in places if (place / "wnids.txt").is_file()), None)
        return None if folder is None else Source(_stamp(self.name, folder), lambda: _decode(self.name, folder))

    def places(self, root: Path) -> tuple[Path, ...]:
        return root / self.name, root / FOLDER

    def fetch(self, root: Path, temporary: Path) -> None:
        from torchvision.datasets.utils import download_and_extract_archive

        target = root / FOLDER
        if target.exists():
            raise self.missing(root, f"{target} holds no wnids.txt; delete or complete it")
        download_and_extract_archive(URL, str(temporary), md5=MD5)
        os.replace(temporary / FOLDER, target)


def _stamp(name: str, folder: Path) -> str:
    """From the lists and the folders of images, whose times change as files come, go or are replaced."""
    lists = [folder / "wnids.txt", folder / "val/val_annotations.txt"]
    images = [folder / "val/images", *(_images(folder, wnid) for wnid in _wnids(folder))]
    gone = [p for p in (*lists, *images) if not p.exists()]
    if gone:
        raise DataMissing(f"{name}: there is no {gone[0]}; unpack {FOLDER}.zip again")
    return hashlib.sha256(file_stamp(name, lists + images).encode()).hexdigest()


def _wnids(folder: Path) -> list[str]:
    wnids = sorted({line.strip() for line in lines_of(folder / "wnids.txt")} - {""})
    if len(wnids) != CLASSES:
        raise UsageError(f"{folder / 'wnids.txt'} lists {len(wnids)} classes; {CLASSES} are expected")
    return wnids


def _images(folder: Path, wnid: str) -> Path:
    return folder / "train" / wnid / "images"


def _decode(name: str, folder: Path) -> Arrays:
    wnids = _wnids(folder)
    raw: dict[str, Array] = {}
    for part, labelled in (("train", _training(folder, wnids)), ("test", _validation(folder, wnids))):
        raw[f"{part}_x"] = arrays_of([file for file, _ in labelled], (SIDE, SIDE), 3, resized=False)
        raw[f"{part}_y"] = np.array([label for _, label in labelled], dtype=np.int64)
    return checked_arrays(f"{name} in {folder}", raw, classes=CLASSES)


def _training(folder: Path, wnids: list[str]) -> Labelled:
    turns = []
    for label, wnid in enumerate(wnids):
        files = sorted(_images(folder, wnid).glob("*.JPEG"))
        boxes = folder / "train" / wnid / f"{wnid}_boxes.txt"  # a line for every image
        if boxes.is_file():
            _complete(boxes, (line.split("\t")[0] for line in lines_of(boxes)), _images(folder, wnid))
        if not files:
            raise UsageError(f"{_images(folder, wnid)} holds no .JPEG image; unpack {FOLDER}.zip again")
        turns += [(turn, label, file) for turn, file in enumerate(files)]
    return [(file, label) for _, label, file in sorted(turns)]


def _validation(folder: Path, wnids: list[str]) -> Labelled:
    annotations, images = folder / "val/val_annotations.txt", folder / "val/images"
    number = {wnid: label for label, wnid in enumerate(wnids)}
    labels = {}
    for count, line in enumerate(lines_of(annotations), 1):
        name, wnid = (*line.split("\t"), "")[:2]
        if wnid not in number:
            raise UsageError(f"{annotations}, line {count}: expected 'image<tab>class of wnids.txt', got {line!r}")
        labels[name] = number[wnid]
    _complete(annotations, labels, images)
    return [(images / name, label) for name, label in labels.items()]


def _complete(listing: Path, names: Iterable[str], images: Path) -> None:
    """Refuse a folder that lacks images its list names, such as one unpacked by half."""
    there = set(os.listdir(images))
    gone = [name for name in names if name not in there]
    if gone:
        raise UsageError(
            f"{images} lacks {len(gone)} images of {listing}, such as {gone[0]}; unpack {FOLDER}.zip again"
        )
