"""Every client holds ``k`` classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from robustfl.contracts import Partition
from robustfl.data.checks import Array
from robustfl.data.partitions import check_split, shuffled_classes
from robustfl.errors import Refused
from robustfl.parameters import param
from robustfl.registry import register


def _holds(clients: int, classes: int, k: int) -> Array:
    """A table ``[clients classes]`` of who holds which class; refuses what leaves classes unequally shared."""
    if not 1 <= k <= classes:
        raise Refused(f"classes: k={k} must lie in [1, {classes}], the number of classes")
    if clients < 1 or (classes % clients and clients % classes):
        raise Refused(
            f"classes: {clients} clients and {classes} classes; one must be a multiple of the other, "
            "or some classes would have more holders than others"
        )
    stride = max(1, classes // clients)
    if k % stride:
        raise Refused(
            f"classes: k={k} must be a multiple of classes/clients={stride}, "
            "or some classes would have more holders than others"
        )
    starts = np.arange(clients) * classes // clients
    held = np.zeros((clients, classes), bool)
    held[np.arange(clients)[:, None], (starts[:, None] + np.arange(k)) % classes] = True
    return held


def class_fractions(clients: int, classes: int, k: int) -> Array:
    """The share of every class in every client's data ``[clients classes]``; rows sum to 1.

    >>> class_fractions(2, 4, 2).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    return _holds(clients, classes, k) / k


@register("classes", version=1)
@dataclass(frozen=True)
class KClasses(Partition):
    """Client ``i`` of ``N`` holds the ``k`` classes from ``⌊i·c/N⌋`` on, cyclically; holders share a class equally.

    Every class has ``kN/c`` holders; leftovers go to the lowest clients. Defined when one of ``N`` and ``c`` divides
    the other and ``c/N`` divides ``k``; anything else is refused. For ``N=5``, ``c=10`` this is ``(2i+j) mod 10``; for
    100 classes and five clients ``k=20`` gives consecutive blocks. Classes of unequal size make shares only
    approximately ``1/k``.

    >>> parts = KClasses(k=2).split(np.array([3, 1, 2, 0]), clients=2, classes=4, generator=np.random.default_rng(0))
    >>> [sorted(p.tolist()) for p in parts]
    [[1, 3], [0, 2]]
    """

    paper: ClassVar[str] = "@wang2025batch"

    k: int = param(ge=1, doc="classes per client")

    def split(self, labels: Array, *, clients: int, classes: int, generator: np.random.Generator) -> list[Array]:
        check_split(labels, clients, classes)
        held = _holds(clients, classes, self.k)
        parts: list[list[Array]] = [[] for _ in range(clients)]
        for c, pool in enumerate(shuffled_classes(labels, classes, generator)):
            holders = np.flatnonzero(held[:, c])
            for i, piece in zip(holders, np.array_split(pool, len(holders)), strict=True):
                parts[i].append(piece)
        return [np.concatenate(pieces) for pieces in parts]
