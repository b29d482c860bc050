"""Images and labels from outside, checked at the door and brought into the one form of ``contracts.Arrays``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from robustfl.contracts import Arrays
from robustfl.errors import UsageError

NAMES = ("train_x", "train_y", "test_x", "test_y")
CLIENTS = ("train_client", "test_client")
"""The arrays that a data set may have besides."""
_BLOCK = 4096
_DARK = 0.07  # digits of 16 levels that are taken for bytes reach 16/255
SURELY = 20  # images of a class that a random test part hardly ever lacks: with e^-20 at most
_REPEATED = 0.01  # of the test images; published data sets repeat fewer

Array = np.ndarray[Any, Any]


def checked_arrays(where: str, raw: Mapping[str, Array], *, classes: int | None = None) -> Arrays:
    """``Arrays`` from four plain arrays; ``where`` names their origin in messages.

    Images ``[N H W]`` or ``[N H W C]``, uint8 or float in [0, 1]; labels integers ``[N]`` in ``[0, classes)``
    (``classes=None``: the largest label + 1). ``train_client`` and ``test_client``, the client of each image, may be
    there, too. Raises ``UsageError`` naming ``where``, the array and what is expected.
    """
    train_x, test_x = (_images(f"{where}: {name}", raw[name]) for name in ("train_x", "test_x"))
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        raise UsageError(
            f"{where}: train_x {train_x.dtype} {train_x.shape[1:]} and test_x {test_x.dtype} {test_x.shape[1:]} "
            "must hold images of one dtype and shape"
        )
    train_y = _labels(f"{where}: train_y", raw["train_y"], len(train_x), classes)
    test_y = _labels(f"{where}: test_y", raw["test_y"], len(test_x), classes)
    count = classes or int(max(train_y.max(), test_y.max())) + 1
    if count < 2:
        raise UsageError(f"{where}: all labels are 0; at least two classes are expected")
    if classes is None and count > len(train_y) + len(test_y):
        raise UsageError(f"{where}: labels reach {count - 1} with fewer images; expected 0 … classes-1: renumber them")
    parts = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y, **_clients(where, raw)}
    return Arrays(**parts, classes=count, fingerprint=content_digest(parts, count))


def _clients(where: str, raw: Mapping[str, Array]) -> dict[str, Array]:
    """The client of every image as int64; names are numbered in the order of their text."""
    given = {name: raw[name] for name in CLIENTS if raw.get(name) is not None}
    if "test_client" in given and "train_client" not in given:
        raise UsageError(f"{where}: test_client without client, which says whose the training images are")
    for name, column in given.items():
        _check_clients(f"{where}: {name.removeprefix('train_')}", column, len(raw[f"{name.partition('_')[0]}_y"]))
    if len({column.dtype.kind in "US" for column in given.values()}) > 1:
        raise UsageError(f"{where}: client and test_client must both be numbers, or both names")
    if not given:
        return {}
    names, numbers = np.unique(np.concatenate([*given.values()]), return_inverse=True)
    if names.dtype.kind not in "US":
        numbers = np.concatenate([column.astype(np.int64) for column in given.values()])
    found = dict(zip(given, np.split(numbers.astype(np.int64), [len(raw["train_y"])]), strict=False))
    alone = np.setdiff1d(found.get("test_client", found["train_client"]), found["train_client"])
    if len(alone):
        who = names[alone[0]] if names.dtype.kind in "US" else alone[0]
        raise UsageError(
            f"{where}: {len(alone)} clients of test_client have no training image, such as {who}; leave them out"
        )
    return found


def _check_clients(what: str, column: Array, count: int) -> None:
    """Raise ``UsageError`` for a client column that is not one number ≥ 0, or one name, for each image."""
    if column.shape != (count,):
        raise UsageError(f"{what} has shape {column.shape}; expected the client of each image, [{count}]")
    if column.dtype.kind in "US":
        missing = np.char.str_len(np.char.strip(column)) == 0
    elif column.dtype.kind in "iuf":
        missing = ~((column >= 0) & (column < 2**53))  # a NaN compares false
        if column.dtype.kind == "f" and not missing.any():
            missing = column != np.floor(column)
    else:
        raise UsageError(f"{what} is {column.dtype}; expected numbers ≥ 0 or names")
    if missing.any():
        first = int(missing.argmax())
        raise UsageError(
            f"{what}: image {first} has the client {column[first].item()!r} ({int(missing.sum())} images have none); "
            "expected a whole number ≥ 0 or a name for each image: leave images without a client out"
        )


def _images(what: str, x: Array) -> Array:
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or 0 in x.shape:
        raise UsageError(f"{what} has shape {x.shape}; expected at least one image, [N H W] or [N H W C]")
    if x.shape[3] > 4:
        raise UsageError(f"{what} has shape {x.shape}; expected [N H W C] with at most 4 channels, channels last")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if not np.issubdtype(x.dtype, np.floating):
        raise UsageError(f"{what} is {x.dtype}; expected uint8, or float in [0, 1]")
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        bad = ~((block >= 0) & (block <= 1)).all(axis=(1, 2, 3))  # a NaN compares false, so it is bad too
        if bad.any():
            first = block[int(bad.argmax())]
            value = first[~((first >= 0) & (first <= 1))].flat[0]
            raise UsageError(f"{what}: image {start + int(bad.argmax())} holds {value}; floats must lie in [0, 1]")
    return np.ascontiguousarray(x, dtype=np.float32)


def _labels(what: str, y: Array, count: int, classes: int | None) -> Array:
    if y.shape != (count,):
        raise UsageError(f"{what} has shape {y.shape}; expected one label per image, [{count}]")
    if not np.issubdtype(y.dtype, np.integer):
        raise UsageError(f"{what} is {y.dtype}; expected integers")
    bad = (y < 0) | (y >= (2**31 if classes is None else classes))
    if bad.any():
        allowed = "≥ 0" if classes is None else f"in [0, {classes})"
        raise UsageError(f"{what}: label {y[int(bad.argmax())]} of image {int(bad.argmax())}; labels must be {allowed}")
    return np.ascontiguousarray(y, dtype=np.int64)


def data_doubts(arrays: Arrays) -> list[str]:
    """Reasons to doubt accuracies on data of the right form, one sentence each.

    Pixels that are all near 0, classes without (training, test) images, test images that are trained on.
    """
    trained, tested = (np.bincount(y, minlength=arrays.classes) for y in (arrays.train_y, arrays.test_y))
    absent, unseen = np.flatnonzero(trained + tested == 0), np.flatnonzero((trained == 0) & (tested > 0))
    # A random part of the images would hold some of these.
    untested = np.flatnonzero((tested == 0) & (trained * len(arrays.test_y) >= SURELY * len(arrays.train_y)))
    parts = {"training": arrays.train_x, "test": arrays.test_x}
    doubts = [dark(what, float(x.max()) / (255 if x.dtype == np.uint8 else 1)) for what, x in parts.items()]
    doubts = list(filter(None, doubts))[:1]
    if len(absent):
        doubts.append(
            f"labels are not consecutive: no image has {_named(absent)} of 0 … {arrays.classes - 1}, and the model "
            f"learns {arrays.classes} classes; renumber the labels from 0, as "
            "np.unique(labels, return_inverse=True)[1] does, or take more images"
        )
    if len(unseen):
        count = int(tested[unseen].sum())
        doubts.append(f"no training image of {_named(unseen)}, of which there are {count} test images")
    if len(untested):
        count = int(trained[untested].sum())
        doubts.append(f"no test image of {_named(untested)}, of which there are {count} training images")
    if (again := repeated_images(arrays)) > _REPEATED * len(arrays.test_y):
        doubts.append(f"{again} of {len(arrays.test_y)} test images are training images, too")
    return doubts


def dark(what: str, brightest: float) -> str:
    """A warning if the brightest pixel is near the 0 of the range from 0 to 1 in which radii count; "" otherwise."""
    if brightest > _DARK:
        return ""
    return (
        f"no pixel of a {what} image is above {brightest:.2g}, where 1 is white: almost black, and radii such as eps "
        "are measured in [0, 1]; give bytes that reach 255, or floats that reach 1"
    )


def _named(classes: Array) -> str:
    named = ("class " if len(classes) == 1 else "classes ") + ", ".join(map(str, classes[:5]))
    return named + (", …" if len(classes) > 5 else "")


def repeated_images(arrays: Arrays) -> int:
    """The number of test images that are training images, too."""
    known = {hash(image.tobytes()) for image in arrays.train_x}
    return sum(hash(image.tobytes()) in known for image in arrays.test_x)


def content_digest(parts: Mapping[str, Array], classes: int) -> str:
    """The sha256 of dtypes, shapes and contents of all arrays, hexadecimal; independent of where they came from."""
    digest = hashlib.sha256(f"classes={classes}".encode())
    for name in (*NAMES, *(name for name in CLIENTS if name in parts)):
        part = np.ascontiguousarray(parts[name])
        digest.update(f"|{name} {part.dtype.newbyteorder('<').str} {part.shape}|".encode())
        digest.update(part.data)
    return digest.hexdigest()
