"""γ-similarity: a share γ of the data is spread evenly, the rest sorted by class and cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from robustfl.contracts import Partition
from robustfl.data.checks import Array
from robustfl.data.partitions import check_split, sorted_by_class
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register


def gamma_similarity(labels: Array, n: int, gamma: float, permutation: Array) -> list[Array]:
    """The parts of ``n`` clients, given the permutation of all samples.

    The first ``⌊γM⌋`` of the permutation are cut evenly; the rest, sorted by label with ties in the permutation's
    order, is cut into ``n`` consecutive chunks; client ``i`` gets its piece of both.

    >>> [p.tolist() for p in gamma_similarity(np.array([1, 0, 1, 0]), 2, 0.5, np.array([3, 2, 1, 0]))]
    [[3, 1], [2, 0]]
    """
    labels, permutation = np.asarray(labels), np.asarray(permutation)
    if not 0 <= gamma <= 1:
        raise UsageError(f"gamma_similarity: gamma={gamma!r} must be ≥ 0, ≤ 1")
    if len(permutation) != len(labels):
        raise UsageError(f"gamma_similarity: the permutation has {len(permutation)} entries for {len(labels)} labels")
    cut = math.floor(gamma * len(labels) + 1e-9)
    even = np.array_split(permutation[:cut], n)
    chunks = np.array_split(sorted_by_class(labels, permutation[cut:]), n)
    return [np.concatenate(pair) for pair in zip(even, chunks, strict=True)]


@register("gamma", version=1)
@dataclass(frozen=True)
class Gamma(Partition):
    """γ-similarity: 1 is iid, 0 gives every client one or two neighbouring classes ("extreme").

    ``⌊γM⌋`` random samples are split evenly, the rest is sorted by label and cut into ``n`` consecutive chunks.
    Sizes differ by at most one in each of the two parts. The samples set aside are random, not the first ones.

    >>> parts = Gamma(gamma=0).split(np.array([1, 0, 1, 0]), clients=2, classes=2, generator=np.random.default_rng(0))
    >>> [sorted(p.tolist()) for p in parts]
    [[1, 3], [0, 2]]
    """

    paper: ClassVar[str] = "@karimireddy2020scaffold; @guerraoui2024overcoming"

    gamma: float = param(ge=0, le=1, doc="share of the data that is spread evenly")

    def split(self, labels: Array, *, clients: int, classes: int, generator: np.random.Generator) -> list[Array]:
        check_split(labels, clients, classes)
        return gamma_similarity(labels, clients, self.gamma, generator.permutation(len(labels)))
