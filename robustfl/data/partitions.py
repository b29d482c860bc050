"""The common part of all partitions of training samples over clients, and what is made of a client's part."""

from __future__ import annotations

from collections.abc import Sequence

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


def train_validation(indices: Array, fraction: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """A client's samples split at random into training and validation, both in the order given.

    The validation part has ``round(fraction·M)`` samples, but never all of them.

    >>> train, validation = train_validation(np.arange(10), 0.1, np.random.default_rng(0))
    >>> len(train), len(validation)
    (9, 1)
    """
    if not 0 <= fraction < 1:
        raise UsageError(f"train_validation: fraction={fraction!r} must be ≥ 0, < 1")
    size = min(round(fraction * len(indices)), max(len(indices) - 1, 0))
    held_out = np.zeros(len(indices), bool)
    held_out[generator.permutation(len(indices))[:size]] = True
    return indices[~held_out], indices[held_out]


def label_counts(labels: Array, parts: Sequence[Array], classes: int) -> list[list[int]]:
    """The number of samples of each class that each client has, ``[clients][classes]``.

    >>> label_counts(np.array([0, 2, 2]), [np.array([0, 1]), np.array([2])], 3)
    [[1, 0, 1], [0, 0, 1]]
    """
    return [[int(v) for v in np.bincount(labels[part], minlength=classes)] for part in parts]
