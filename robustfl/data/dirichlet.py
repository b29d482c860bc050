"""Class proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustfl.contracts import Partition
from robustfl.data.checks import Array
from robustfl.data.partitions import check_split, shuffled_classes
from robustfl.errors import Refused, UsageError
from robustfl.parameters import check, param
from robustfl.registry import register

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
        check(self)
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
