"""Images in one folder per class, as torchvision's ``ImageFolder`` reads them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.pictures import arrays_of, common_form
from robustfl.data.specs import find_path
from robustfl.data.stored import Source, StoredDataset, file_stamp
from robustfl.errors import UsageError, reason, some
from robustfl.parameters import param
from robustfl.registry import register

PARTS = ("train", "test")
ENDINGS = frozenset((".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"))
"""Those of ``torchvision.datasets.folder.IMG_EXTENSIONS``."""

Listing = dict[str, list[Path]]


@register("imagefolder", version=1)
@dataclass(frozen=True)
class ImageFolder(StoredDataset):
    """Images below ``path/train/<class>/`` and ``path/test/<class>/``; scenarios also write ``imagefolder:PATH``.

    The layout of ``torchvision.datasets.ImageFolder``: labels number the sorted names of the class folders, images lie
    at any depth below them, hidden files and folders are skipped. A relative path is looked up in the working
    directory, then in the data root.

    ``size`` resizes to a square (bilinear, antialiased, aspect ratio not preserved); without it all images must have
    one size. ``channels=3`` makes every image RGB (grey values are repeated, transparency is dropped), ``channels=1``
    grey (ITU-R 601 luma); without it all images must be grey, or all coloured. Images of both splits take turns by
    class, so that their first ones hold all classes.

    >>> ImageFolder(path="birds", size=32, channels=3).size
    32
    """

    path: str = param(doc="the folder that holds train and test")
    size: int | None = param(None, ge=1, doc="height and width; none: all images have one size")
    channels: int | None = param(None, ge=1, le=3, doc="1 or 3; none: all images are grey, or all coloured")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels == 2:
            raise UsageError("ImageFolder: channels=2 must be 1 (grey) or 3 (RGB)")

    def source(self, root: Path, *, download: bool) -> Source:
        place = find_path(self.name, self.path, root, "it should hold train/<class>/ and test/<class>/ with images")
        if not place.is_dir():
            raise UsageError(
                f"imagefolder: {place} is a file; a folder with train/<class>/ and test/<class>/ is expected"
            )
        listings = {part: _listing(place, part) for part in PARTS}
        _check_classes(place, listings)
        files = [file for listing in listings.values() for found in listing.values() for file in found]
        try:
            stamp = file_stamp(f"{self.name} {place} {self.size} {self.channels}", files)
        except OSError as error:  # such as a link to nowhere
            raise UsageError(f"imagefolder: {error.filename} cannot be read: {reason(error)}") from None
        decode = partial(_decode, place, listings, self.size, self.channels)
        return Source(hashlib.sha256(stamp.encode()).hexdigest(), decode)


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _listing(place: Path, part: str) -> Listing:
    """The image files of every class folder of ``place/part``, sorted."""
    if not (place / part).is_dir():
        there = some([entry.name for entry in _visible(place) if entry.is_dir()], 8) or "no folder"
        raise UsageError(
            f"imagefolder: there is no folder {place / part}; {place} must hold train/<class>/ and test/<class>/, and "
            f"holds {there}"
        )
    classes = {folder.name: _images(folder) for folder in _visible(place / part) if folder.is_dir()}
    if not classes:
        raise UsageError(f"imagefolder: {place / part} holds no class folder; put images in {part}/<class>/")
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise UsageError(
            f"imagefolder: {place / part / empty[0]} holds no image ({', '.join(sorted(ENDINGS))})"
            + (f"; nor do {len(empty) - 1} other class folders" if len(empty) > 1 else "")
            + ": add some or remove the folder"
        )
    return classes


def _images(folder: Path) -> list[Path]:
    found = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in names if not name.startswith("."))
        found += [Path(place, name) for name in visible if os.path.splitext(name)[1].lower() in ENDINGS]
    return sorted(found)


def _check_classes(place: Path, listings: dict[str, Listing]) -> None:
    """Raise ``UsageError`` for classes that only one of train and test has, and for a single class."""
    train, test = (set(listings[part]) for part in PARTS)
    for part, other, only in (*zip(PARTS, PARTS[::-1], (train - test, test - train), strict=True),):
        if only:
            raise UsageError(
                f"imagefolder: {place} has classes in {part} that {other} has not: {some(sorted(only), 5)}; both need "
                "the same class folders"
            )
    if len(train) < 2:
        raise UsageError(f"imagefolder: {place / 'train'} holds one class, {min(train)}; at least two are expected")


def _decode(place: Path, listings: dict[str, Listing], size: int | None, channels: int | None) -> Arrays:
    labelled = {part: _turns(listing) for part, listing in listings.items()}
    where, raw = f"imagefolder {place}", dict[str, Array]()
    form = common_form(where, [file for found in labelled.values() for file, _ in found], size, channels)
    for part, found in labelled.items():
        raw[f"{part}_x"] = arrays_of([file for file, _ in found], *form)
        raw[f"{part}_y"] = np.array([label for _, label in found], dtype=np.int64)
    return checked_arrays(where, raw, classes=len(listings["train"]))


def _turns(listing: Listing) -> list[tuple[Path, int]]:
    """Files with their labels, the first of every class, then the second, and so on."""
    turns = [
        (turn, label, file) for label, name in enumerate(sorted(listing)) for turn, file in enumerate(listing[name])
    ]
    return [(file, label) for _, label, file in sorted(turns)]
