"""Encoded images (PNG, JPEG, …) to arrays of bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robustfl.data.checks import Array
from robustfl.errors import UsageError, reason

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
