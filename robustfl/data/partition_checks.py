"""Checks of a partition's input."""

from __future__ import annotations

import numpy as np

from robustfl.data.checks import Array
from robustfl.errors import UsageError


def check_split(labels: Array, clients: int, classes: int) -> None:
    """Refuse what is no label vector of ``classes`` classes, and fewer than one client."""
    if isinstance(clients, bool) or not isinstance(clients, (int, np.integer)) or clients < 1:
        raise UsageError(f"partition: clients={clients!r} must be an int ≥ 1")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(f"partition: labels {labels.dtype} {labels.shape} must be a vector of integers")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UsageError(f"partition: labels lie in [{labels.min()}, {labels.max()}]; expected [0, {classes})")


def sorted_by_class(labels: Array, indices: Array) -> Array:
    """``indices`` in the order of their labels, ties in the order given."""
    keys = labels[indices]
    if len(keys) and keys.min() >= 0 and keys.max() < 2**16:
        keys = keys.astype(np.uint16)  # numpy sorts these by radix
    return indices[np.argsort(keys, kind="stable")]


def shuffled_classes(labels: Array, classes: int, generator: np.random.Generator) -> list[Array]:
    """The indices of every class, each in random order."""
    ordered = sorted_by_class(labels, generator.permutation(len(labels)))
    return np.split(ordered, np.cumsum(np.bincount(labels, minlength=classes))[:-1])
