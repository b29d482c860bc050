"""Encoded images (PNG, JPEG, …) to arrays of bytes, and folders of them as torchvision's ImageFolder reads them."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.specs import find_path
from robustfl.data.stored import Source, StoredDataset, file_stamp
from robustfl.errors import UsageError, reason, some
from robustfl.parameters import param
from robustfl.registry import register

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = ("1", "L", "LA", "La")


@dataclass(frozen=True)
class Encoded:
    """An image file in memory, and its name in messages."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


Picture = Path | Encoded


@contextmanager
def opened(picture: Picture) -> Iterator[Image]:
    """Open an image of 8 bits per channel; raises ``UsageError`` naming one that cannot be read, there or within."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(picture if isinstance(picture, Path) else io.BytesIO(picture.content))
        with image:
            if image.mode[:1] in ("I", "F"):
                raise UsageError(f"{picture} has more than 8 bits per channel (mode {image.mode}); 8 are expected")
            yield image
    except UsageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UsageError(f"{picture} is too large an image: {reason(error)}") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"{picture} is no readable image: {reason(error)}") from error


def array_of(picture: Picture, size: tuple[int, int] | None = None, channels: int = 3) -> Array:
    """An image as uint8 ``[H W channels]``, RGB or grey; resized (bilinear, antialiased) to ``size``, (W, H), if given.

    Grey values are repeated, colour becomes ITU-R 601 luma, transparency is dropped.
    """
    from PIL.Image import Resampling

    with opened(picture) as image:
        converted = image.convert("RGB" if channels == 3 else "L")
        made = np.asarray(converted.resize(size, Resampling.BILINEAR) if size else converted)
    return made if channels == 3 else made[..., None]


def arrays_of(pictures: Sequence[Picture], size: tuple[int, int], channels: int, *, resized: bool = True) -> Array:
    """Images as uint8 ``[N H W channels]``; raises ``UsageError`` for one of another size that is not ``resized``."""
    (width, height), first = size, (len(pictures), size[1], size[0], channels)
    images = np.empty(first, np.uint8)  # the only copy: 1.2 GB for those of Tiny-ImageNet
    for image, picture in zip(images, pictures, strict=True):
        pixels = array_of(picture, size if resized else None, channels)
        if pixels.shape != image.shape:
            raise UsageError(f"{picture} has {pixels.shape[1]}×{pixels.shape[0]} pixels; {width}×{height} are expected")
        image[...] = pixels
    return images


def common_form(
    where: str, pictures: Sequence[Picture], size: int | None, channels: int | None
) -> tuple[tuple[int, int], int]:
    """The size (W, H) and the number of channels of all images, where the arguments do not say.

    Raises ``UsageError`` naming ``where`` if images differ in a size or a kind that is not given.
    """
    if size is not None and channels is not None:
        return (size, size), channels
    first: dict[tuple[int, int], Picture] = {}
    kinds: dict[bool, list[Picture]] = {True: [], False: []}
    for picture in pictures:
        with opened(picture) as image:
            first.setdefault(image.size, picture)
            kinds[image.mode in _GREY].append(picture)
    if size is None and len(first) > 1:
        (a, one), (b, other) = list(first.items())[:2]
        raise UsageError(
            f"{where}: images differ in size, {one} has {a[0]}×{a[1]} pixels and {other} {b[0]}×{b[1]}; "
            "give size=, to which all are resized"
        )
    if channels is None and all(kinds.values()):
        grey, coloured = kinds[True], kinds[False]
        raise UsageError(
            f"{where}: {len(grey)} images are grey, such as {grey[0]}, and {len(coloured)} coloured, such as "
            f"{coloured[0]}; give channels=3 (grey is repeated) or channels=1 (all become grey)"
        )
    return (size, size) if size else next(iter(first)), channels or (1 if kinds[True] else 3)


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
