"""The laws of partitions and data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustfl.contracts import Dataset
from robustfl.data.checks import NAMES, checked_arrays, data_doubts, repeated_images
from robustfl.errors import DataMissing, FileMissing
from robustfl.randomness import numpy_stream
from robustfl.testing.common import laws_of
from robustfl.testing.suite import Calls, Law, Suite, Trial, demand

_CLIENTS, _CLASSES, _IMAGES = 5, 10, 400


def _splitting(calls: Calls) -> Any:
    """The parts of labels in no order, every class as often."""
    labels, draws = (numpy_stream(calls.case, name) for name in ("check labels", "check split"))
    y = labels.permutation(np.arange(_IMAGES) % _CLASSES)
    return calls(calls.method.split, y, clients=_CLIENTS, classes=_CLASSES, generator=draws)


def _parts(trial: Trial) -> str | None:
    """One array of sample numbers per client, in range, and no sample belongs to two clients."""
    parts, owner = _splitting(Calls(trial.method)), dict[int, int]()
    what = f"a list of {len(parts)}" if isinstance(parts, list) else f"a {type(parts).__name__}"
    listed = isinstance(parts, list) and len(parts) == _CLIENTS
    demand(listed, f"split returned {what} for {_CLIENTS} clients; a list with one index array each is needed")
    for k, part in enumerate(parts):
        whole = isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind in "iu"
        demand(whole, f"client {k} got {type(part).__name__}, not an array [m] of whole numbers")
        low, high = (part.min(), part.max()) if len(part) else (0, 0)
        demand(low >= 0 and high < _IMAGES, f"client {k} has indices from {low} to {high} of {_IMAGES} samples")
        for index in part.tolist():
            whose = "twice" if owner.get(index) == k else f"as does client {owner.get(index)}"
            demand(index not in owner, f"client {k} has sample {index} {whose}; parts must not overlap")
            owner[index] = k
    return None if len(owner) == _IMAGES else f"fact: {len(owner) / _IMAGES:.0%} of the samples are given out"


PARTITION = Suite(laws_of(Law("parts", _parts), without=("shape, dtype and device", "finite")), _splitting)


def _loading(calls: Calls) -> None:
    arrays = calls.method.load(calls.root, download=False)
    calls.found.extend(torch.from_numpy(np.array(getattr(arrays, name))) for name in NAMES)


def _arrays(trial: Trial) -> str | None:
    """Images are [N H W C], uint8 or float32 in [0, 1], labels from 0 to classes - 1, and the fingerprint is theirs."""
    arrays = trial.method.load(trial.root, download=False)
    right = checked_arrays("load()", {n: getattr(arrays, n) for n in NAMES}, classes=arrays.classes)
    for name in ("train_x", "test_x"):
        x, wanted = getattr(arrays, name), getattr(right, name)
        fits = (x.shape, x.dtype) == (wanted.shape, wanted.dtype)
        demand(fits, f"{name} is {x.dtype} {x.shape}; [N H W C] of uint8, or float32 in [0, 1], is needed")
    digest, loaded = trial.method.fingerprint(trial.root, download=False), arrays.fingerprint
    said = f"fingerprint() says {digest!r}, load() says {loaded!r}"
    demand(digest and digest == loaded, f"{said}; cells are keyed by it: both must agree")
    doubts = data_doubts(right)
    return f"fact: {'; '.join(doubts)}" if doubts else None


def _test_apart(trial: Trial) -> None:
    """Test images are others than training images; real data sets repeat some, half of the test part is too much."""
    arrays = trial.method.load(trial.root, download=False)
    again, n = repeated_images(arrays), len(arrays.test_x)
    demand(2 * again <= n, f"{again} of {n} test images are training images, too")


_NOT_OF_DATA = ("shape, dtype and device", "inputs untouched", "finite")
DATASET = Suite(laws_of(Law("arrays", _arrays), Law("test apart", _test_apart), without=_NOT_OF_DATA), _loading)


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
