"""Identically distributed clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustfl.contracts import Partition
from robustfl.data.checks import Array
from robustfl.data.partitions import check_split
from robustfl.registry import register


@register("iid", version=1)
@dataclass(frozen=True)
class Iid(Partition):
    """All samples in random order, cut into ``n`` parts whose sizes differ by at most one.

    With fewer samples than clients the last clients stay empty.

    >>> parts = Iid().split(np.zeros(5, int), clients=2, classes=1, generator=np.random.default_rng(0))
    >>> [len(p) for p in parts]
    [3, 2]
    """

    def split(self, labels: Array, *, clients: int, classes: int, generator: np.random.Generator) -> list[Array]:
        check_split(labels, clients, classes)
        return np.array_split(generator.permutation(len(labels)), clients)
