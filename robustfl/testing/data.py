"""The laws of partitions and data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Dataset, Partition
from robustfl.data import data_root
from robustfl.data.checks import NAMES, checked_arrays, data_doubts, repeated_images
from robustfl.errors import DataMissing, FileMissing
from robustfl.randomness import numpy_stream
from robustfl.testing.common import laws_of
from robustfl.testing.suite import DOUBLE, Broken, Law, Suite, Trial

_CLIENTS, _CLASSES, _IMAGES = 5, 10, 400


def _splitting(method: Partition, ask: Callable[..., Any], case: int, like: Tensor) -> Any:
    """The parts of labels in no order, every class as often."""
    del like
    labels, draws = (numpy_stream(case, name) for name in ("check labels", "check split"))
    y = labels.permutation(np.arange(_IMAGES) % _CLASSES)
    split = lambda: method.split(y, clients=_CLIENTS, classes=_CLASSES, generator=draws)  # noqa: E731
    return ask("split", split, [], {"labels": torch.from_numpy(y)})


def _parts(trial: Trial) -> str | None:
    """One array of sample numbers per client, in range, and no sample belongs to two clients."""
    parts, owner = _splitting(trial.method, lambda member, run, *rest: run(), 0, DOUBLE), dict[int, int]()
    if not isinstance(parts, list) or len(parts) != _CLIENTS:
        what = f"a list of {len(parts)}" if isinstance(parts, list) else f"a {type(parts).__name__}"
        raise Broken(f"split returned {what} for {_CLIENTS} clients; a list with one index array each is needed")
    for k, part in enumerate(parts):
        if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
            raise Broken(f"client {k} got {type(part).__name__}, not an array [m] of whole numbers")
        if len(part) and (part.min() < 0 or part.max() >= _IMAGES):
            raise Broken(f"client {k} has indices from {part.min()} to {part.max()} of {_IMAGES} samples")
        for index in part.tolist():
            if index in owner:
                whose = "twice" if owner[index] == k else f"as does client {owner[index]}"
                raise Broken(f"client {k} has sample {index} {whose}; parts must not overlap")
            owner[index] = k
    return None if len(owner) == _IMAGES else f"fact: {len(owner) / _IMAGES:.0%} of the samples are given out"


PARTITION = Suite(laws_of(Law("parts", _parts), without=("shape, dtype and device", "finite")), _splitting)


def loading(
    method: Dataset, ask: Callable[..., Any], case: int, like: Tensor, *, root: str | Path | None = None
) -> None:
    """Load the arrays of a data set whose files are below ``root``."""
    del case, like
    arrays = method.load(data_root(root), download=False)
    ask("load", lambda: [getattr(arrays, name) for name in NAMES], [], {})


def _arrays(trial: Trial) -> str | None:
    """Images are [N H W C], uint8 or float32 in [0, 1], labels from 0 to classes - 1, and the fingerprint is theirs."""
    arrays = trial.method.load(trial.root, download=False)
    right = checked_arrays("load()", {n: getattr(arrays, n) for n in NAMES}, classes=arrays.classes)
    for name in ("train_x", "test_x"):
        x, wanted = getattr(arrays, name), getattr(right, name)
        if (x.shape, x.dtype) != (wanted.shape, wanted.dtype):
            raise Broken(f"{name} is {x.dtype} {x.shape}; [N H W C] of uint8, or float32 in [0, 1], is needed")
    digest, loaded = trial.method.fingerprint(trial.root, download=False), arrays.fingerprint
    if not digest or digest != loaded:
        raise Broken(f"fingerprint() says {digest!r}, load() says {loaded!r}; cells are keyed by it: both must agree")
    doubts = data_doubts(right)
    return f"fact: {'; '.join(doubts)}" if doubts else None


def _test_apart(trial: Trial) -> str | None:
    """Test images are others than training images; real data sets repeat some, half of the test part is too much."""
    arrays = trial.method.load(trial.root, download=False)
    again = repeated_images(arrays)
    if 2 * again > len(arrays.test_x):
        raise Broken(f"{again} of {len(arrays.test_x)} test images are training images, too")
    return None


DATASET = Suite(
    laws_of(
        Law("arrays", _arrays),
        Law("test apart", _test_apart),
        without=("shape, dtype and device", "inputs untouched", "finite"),
    ),
    loading,
)


def absent(method: Dataset, root: Path) -> str:
    """Why the data cannot be looked at, where its files are not here. Raises ``FileMissing`` for a parameter's file."""
    try:
        method.fingerprint(root, download=False)
    except FileMissing:
        raise
    except DataMissing as error:
        return f"not looked at: {error}"
    except Exception:  # the laws say what is wrong
        return ""
    return ""
