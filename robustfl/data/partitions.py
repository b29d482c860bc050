"""Partitions of the training samples over clients, and what belongs to every one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustfl.data.checks import Array
from robustfl.data.dirichlet import Dirichlet, dirichlet_counts
from robustfl.data.gamma import Gamma, gamma_similarity
from robustfl.data.iid import Iid
from robustfl.data.k_classes import KClasses, class_fractions
from robustfl.errors import UsageError

__all__ = [
    "Dirichlet",
    "Gamma",
    "Iid",
    "KClasses",
    "class_fractions",
    "dirichlet_counts",
    "gamma_similarity",
    "label_counts",
    "train_validation",
]


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
