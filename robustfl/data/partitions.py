"""Partitions: which client has which training samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from robustfl.contracts import Partition
from robustfl.data.checks import Array
from robustfl.errors import Refused, UsageError
from robustfl.parameters import param
from robustfl.registry import register


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


@register("natural", version=1)
@dataclass(frozen=True)
class Natural(Partition):
    """The clients that the data come with: every client has the images that are its own, as in a file's ``client``.

    With fewer clients than the data have, those that take part are drawn at random, all equally likely, by the seed
    (LEAF's sampling of users). Clients with fewer than ``min_size`` images are left out first (LEAF's ``-k``). They are
    numbered in the order of the data's own numbers or names.

    >>> parts = Natural().split(np.array([7, 3, 7, 9]), clients=3, classes=10, generator=np.random.default_rng(0))
    >>> [p.tolist() for p in parts]
    [[1], [0, 2], [3]]

    Reference: Caldas et al., LEAF: A Benchmark for Federated Settings, 2018, arXiv:1812.01097.
    """

    paper: ClassVar[str] = "@caldas2018leaf"
    by: ClassVar[Literal["label", "client"]] = "client"

    min_size: int = param(1, ge=1, doc="least images of a client that takes part")

    def split(self, labels: Array, *, clients: int, classes: int, generator: np.random.Generator) -> list[Array]:
        check_split(labels, clients, classes)
        known, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        able = np.flatnonzero(sizes >= self.min_size)
        if len(able) < clients:
            raise Refused(
                f"natural: clients={clients} are more than the {len(able)} clients with at least "
                f"min_size={self.min_size} images, of {len(known)} in the data; use clients ≤ {len(able)}"
            )
        parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1])
        chosen = able if len(able) == clients else np.sort(generator.choice(able, clients, replace=False))
        return [parts[k] for k in chosen]


def long_tailed(labels: Array, classes: int, imbalance: float, generator: np.random.Generator) -> Array:
    """Ascending indices of a subset whose classes shrink exponentially, from the first to the last.

    Of class ``c`` with ``m_c`` samples ``⌊m_c·imbalance^(-c/(C-1))⌋`` are drawn at random, and at least one if there is
    any: of balanced classes the first then has ``imbalance`` times as many as the last.

    >>> chosen = long_tailed(np.repeat([0, 1, 2], 100), 3, 100, np.random.default_rng(0))
    >>> np.bincount(np.repeat([0, 1, 2], 100)[chosen]).tolist()
    [100, 10, 1]

    Reference: Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, arXiv:1901.05555
    (long-tailed CIFAR).
    """
    pools = shuffled_classes(labels, classes, generator)
    sizes = [math.floor(len(pool) * imbalance ** (-c / (classes - 1)) + 1e-9) for c, pool in enumerate(pools)]
    return np.sort(np.concatenate([pool[: max(size, 1)] for pool, size in zip(pools, sizes, strict=True)]))


def proportional_tests(labels: Array, counts: Sequence[Sequence[int]], generator: np.random.Generator) -> list[Array]:
    """The test images of every client: of each class the share that it has of the class's training images.

    ``labels [N]`` are those of the test images, ``counts [n c]`` the clients' training images of every class. Parts are
    disjoint, drawn at random, and together all test images of classes that someone trains on.

    >>> parts = proportional_tests(np.array([0, 0, 0, 1]), [[2, 0], [1, 5]], np.random.default_rng(0))
    >>> [np.array([0, 0, 0, 1])[part].tolist() for part in parts]
    [[0, 0], [0, 1]]
    """
    trained = np.asarray(counts, np.float64)
    pools = shuffled_classes(labels, trained.shape[1], generator)
    parts: list[list[Array]] = [[] for _ in trained]
    for pool, column in zip(pools, trained.T, strict=True):
        if column.sum():
            cuts = np.cumsum(dirichlet_counts([column / column.sum()], [len(pool)])[0])[:-1]
            for part, piece in zip(parts, np.split(pool, cuts), strict=True):
                part.append(piece)
    return [np.sort(np.concatenate(pieces)) if pieces else np.empty(0, np.int64) for pieces in parts]


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


_REDRAWS = 1000


def dirichlet_counts(proportions: Any, class_counts: Any) -> Array:
    """Samples of every class for every client ``[c N]``: class ``c`` is cut at ``⌊cumsum(proportions[c])·M_c⌋``.

    Rows of ``proportions [c N]`` sum to 1, and every row of the result to ``class_counts[c]``.

    >>> dirichlet_counts([[0.5, 0.3, 0.2]], [7]).tolist()
    [[3, 2, 2]]
    """
    p, counts = np.asarray(proportions, np.float64), np.asarray(class_counts, np.int64)
    if p.ndim != 2 or counts.shape != (len(p),) or not np.allclose(p.sum(1), 1) or (p < 0).any():
        raise UsageError(f"dirichlet_counts: proportions {p.shape} must be rows ≥ 0 of sum 1, one per class count")
    cuts = np.floor(np.cumsum(p, axis=1) * counts[:, None]).astype(np.int64)
    cuts[:, -1] = counts  # a sum of 1 - 1e-16 must not lose a sample
    return np.diff(np.minimum(cuts, counts[:, None]), axis=1, prepend=0)


@register("dirichlet", version=1)
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label skew of strength ``alpha``: small values concentrate classes on few clients, large ones approach iid.

    ``classwise``: every class is divided by ``Dir(α·1_N)`` over clients, so sizes vary; drawn again until every client
    has ``min_size`` samples. ``equal``: every client draws ``q`` over classes and takes ``⌊M/N⌋`` samples by classes
    from ``q`` without replacement, dropping exhausted classes; up to ``N-1`` samples stay unused. There ``base`` says
    what α multiplies: ``q ~ Dir(α·prior)``, of total concentration α, or ``q ~ Dir(α·1)``, of α times the classes.
    Tiny ``alpha`` with many clients makes ``min_size`` unreachable and is refused.

    Mean number of classes of a client (in brackets: share of clients with one class only), for ten balanced classes
    of 5,000 samples, 100 clients, 20 splits:
    α = 0.1: 4.9 (1 %) ``classwise``, 1.6 (56 %) ``equal``, 4.6 (2 %) ``equal, base=ones``;
    α = 0.3: 8.2 (0 %), 2.4 (21 %), 7.5 (0 %); α = 0.5: 9.2 (0 %), 3.1 (10 %), 8.6 (0 %);
    α = 1: 9.9 (0 %), 4.6 (2 %), 9.4 (0 %).

    >>> part = Dirichlet(alpha=1.0, mode="equal")
    >>> [len(p) for p in part.split(np.arange(9) % 3, clients=2, classes=3, generator=np.random.default_rng(0))]
    [4, 4]

    Reference: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019, arXiv:1909.06335 (``equal`` with ``base=prior``).
    Notes: the published class-wise form allows empty clients (``min_size=0``). ``base=ones`` is what the words of
    Legate, MSc thesis 2022 (arXiv:2304.05260) fit, where most clients have all classes at α = 0.5.
    """

    paper: ClassVar[str] = "@hsu2019measuring"

    alpha: float = param(gt=0, lt=float("inf"), doc="concentration")
    mode: str = param("classwise", choices=("classwise", "equal"), doc="who draws: each class or each client")
    min_size: int = param(1, ge=0, doc="least samples of a client (classwise: redraw until reached)")
    base: str = param("prior", choices=("prior", "ones"), doc="what α multiplies in mode equal")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base != "prior" and self.mode != "equal":
            raise UsageError(f"Dirichlet: base={self.base!r} belongs to mode='equal', not {self.mode!r}")

    def split(self, labels: Array, *, clients: int, classes: int, generator: np.random.Generator) -> list[Array]:
        check_split(labels, clients, classes)
        if len(labels) < clients * self.min_size:
            raise Refused(
                f"dirichlet: {len(labels)} samples cannot give {clients} clients min_size={self.min_size} each; "
                f"min_size ≤ {len(labels) // clients} can be met"
            )
        pools = shuffled_classes(labels, classes, generator)
        if self.mode == "equal":
            return self._equal(pools, clients, generator)
        counts = self._classwise(np.array([len(p) for p in pools]), clients, generator)
        pieces = [np.split(pool, np.cumsum(row)[:-1]) for pool, row in zip(pools, counts, strict=True)]
        return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

    def _classwise(self, class_counts: Array, clients: int, generator: np.random.Generator) -> Array:
        for _ in range(_REDRAWS):
            p = generator.dirichlet(np.full(clients, self.alpha), size=len(class_counts))
            counts = dirichlet_counts(p, class_counts)
            if counts.sum(0).min() >= self.min_size:
                return counts
        raise Refused(
            f"dirichlet: alpha={self.alpha:g} left a client with fewer than min_size={self.min_size} samples "
            f"in {_REDRAWS} draws for {clients} clients; use mode=equal, a smaller min_size, a larger alpha or fewer "
            "clients"
        )

    def _equal(self, pools: list[Array], clients: int, generator: np.random.Generator) -> list[Array]:
        left = np.array([len(p) for p in pools])
        taken = np.zeros_like(left)
        present = np.flatnonzero(left)
        base = left[present] / max(left.sum(), 1) if self.base == "prior" else np.ones(len(present))
        size = int(left.sum()) // clients
        parts = []
        for _ in range(clients if len(present) else 0):
            q = np.zeros(len(pools))
            q[present] = generator.dirichlet(self.alpha * base)
            take = _draw(q, left, size, generator)
            parts.append(np.concatenate([p[s : s + t] for p, s, t in zip(pools, taken, take, strict=True)]))
            taken, left = taken + take, left - take
        return parts or [np.empty(0, np.int64) for _ in range(clients)]


def _draw(q: Array, left: Array, size: int, generator: np.random.Generator) -> Array:
    """The numbers of each class, drawing from ``q`` without replacement.

    Drawn in bulk: what exceeds a class's stock is drawn again from the other classes, which has the same distribution
    as dropping the class the moment it is exhausted.
    """
    take = np.zeros_like(left)
    while (need := size - int(take.sum())) > 0:
        stock = left - take
        weights = np.where(stock > 0, q, 0.0)
        if weights.sum() <= 0:
            weights = stock.astype(np.float64)
        take = take + np.minimum(generator.multinomial(need, weights / weights.sum()), stock)
    return take
