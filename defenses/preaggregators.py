"""Steps before aggregation: clipping of long rows (fixed, ARC), mixing of neighbours (NNM), and buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Context, Step
from robustfl.kernels import squared_distances
from robustfl.parameters import param
from robustfl.registry import register

from .draws import generator_of, permutation
from .reference import clipped, least
from .ties import smallest


def lengths(gram: Tensor) -> Tensor:
    """Lengths ``[n]`` of the rows with the inner products ``gram [n n]``."""
    return gram.diagonal().clamp(min=0).sqrt()


@register("clipping", version=1)
@dataclass(frozen=True)
class Clipping(Step):
    """Rows longer than ``c`` are shortened to ``c``.

        x_i ← min(1, c / ‖x_i‖) x_i

    A fixed ``c`` has no guarantee under heterogeneity: too large it does nothing, too small it biases honest rows.

    Args: ``c`` > 0, the greatest length (2, the value other projects use).

    >>> import robustfl
    >>> robustfl.defense("clipping(c=2)+mean")(torch.tensor([[1.0], [8.0]]), f=0)
    tensor([1.5000])

    Reference: static clipping, the baseline of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@allouah2025adaptive"
    cost: ClassVar[str] = "2nd: lengths of the rows, then one scaled sum"
    lengths_only: ClassVar[bool] = True
    unfit_for_statistics: ClassVar[str] = (
        "it shortens rows to a fixed length, and with them variances on which all clients agree"
    )

    c: float = param(2.0, gt=0, doc="greatest length of a row")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return clipped(X, self.c)

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        return torch.diag((self.c / lengths(gram)).clamp(max=1))

    def min_clients(self, f: int) -> int:
        return 2 * f + 1


@register("arc", version=1)
@dataclass(frozen=True)
class AdaptiveRobustClipping(Step):
    """The ``k`` longest rows are shortened to the length of the next one.

        x_i ← min(1, C / ‖x_i‖) x_i,   C = the (k+1)-th greatest length,   k = ⌊2f (n-f) / n⌋

    It keeps the guarantee of the rule after it, unlike a fixed threshold, but does nothing against attackers that are
    no longer than honest clients.

    >>> import robustfl
    >>> robustfl.defense("arc+mean")(torch.tensor([[1.0], [2.0], [90.0]]), f=1)
    tensor([1.6667])

    Reference: the algorithm ARC of the paper below. Notes: before ``nnm`` it brings lengths, and so distances, close to
    each other. ByzFL on torch tensors then finds other neighbors now and then, because it sums distances in float32
    (off by 1e-5 at 80,000 entries); given float64 arrays it agrees to 1e-12. Its ``k``, rounded from a float, can be
    one less.
    """

    paper: ClassVar[str] = "@allouah2025adaptive"
    cost: ClassVar[str] = "2nd: lengths of the rows, then one scaled sum"
    lengths_only: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        k = 2 * f * (len(X) - f) // len(X)
        return clipped(X, torch.linalg.vector_norm(X, dim=1).sort(descending=True).values[k])

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        n, length = len(gram), lengths(gram)
        longest = length.sort(descending=True, stable=True)
        clipped = 2 * f * (n - f) // n
        scale = torch.ones_like(length)
        threshold = longest.values[clipped]
        rows = longest.indices[:clipped]
        scale[rows] = (threshold / length[rows]).nan_to_num(nan=1.0)
        return torch.diag(scale)

    def min_clients(self, f: int) -> int:
        return 2 * f + 1


@register("nnm", version=2)
@dataclass(frozen=True)
class NearestNeighborMixing(Step):
    """Every row becomes the mean of its ``n - f`` nearest rows, itself included.

        x_i ← 1/(n-f) Σ_{j ∈ N_i} x_j,   N_i = the n-f rows nearest to x_i, ties to the lowest index

    It makes any rule after it near-optimal under heterogeneity, and breaks when more than ``f`` clients collude.

    >>> from robustfl.contracts import Context
    >>> X = torch.tensor([[0.0], [1.0], [9.0]])
    >>> (NearestNeighborMixing().mix(X @ X.T, f=1, context=Context()).float() @ X).flatten()
    tensor([0.5000, 0.5000, 5.0000])

    Reference: Algorithm 1 of the paper below. Notes: the paper asks for ``n > 2f``, so does this. Distances that
    are equal but for rounding tie; so do all from a row so long that its last bits outweigh their differences.
    """

    paper: ClassVar[str] = "@allouah2023fixing"
    cost: ClassVar[str] = (
        "n²d for the inner products, n² log n for the neighbors; the mixed rows are made in blocks, n²d"
    )
    centred: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return torch.stack([X[least((X - x).square().sum(1), len(X) - f)].mean(0) for x in X])

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        n = gram.shape[0]
        slack = _slack(gram) if context.slack is None else context.slack
        nearest = smallest(squared_distances(gram), n - f, slack)
        return torch.zeros_like(gram, dtype=torch.float64).scatter_(1, nearest, 1 / (n - f))

    def min_clients(self, f: int) -> int:
        return 2 * f + 1


def _slack(gram: Tensor) -> Tensor:
    """The rounding error of squared distances if the inner products ``[n n]`` come from nowhere in particular."""
    length = gram.diagonal().clamp(min=0).sqrt()
    return 16 * torch.finfo(gram.dtype).eps * (length[:, None] + length[None, :]).square()


def grouped(order: Tensor, s: int) -> Tensor:
    """Coefficients ``[⌈n/s⌉ n]`` of the means of ``s`` consecutive rows in the given order; the last may have fewer."""
    n = len(order)
    buckets = -(-n // s)
    mixing = torch.zeros((buckets, n), dtype=torch.float64, device=order.device)
    mixing[torch.arange(n, device=order.device) // s, order] = 1.0
    return mixing / mixing.sum(dim=1, keepdim=True)


@register("bucketing", version=1)
@dataclass(frozen=True)
class Bucketing(Step):
    """Means of ``s`` rows at a time, in random order, take the place of the rows.

        y_j = 1/s Σ_{k=(j-1)s+1}^{js} x_{π(k)},   π a random permutation, the last bucket may be smaller

    It evens out honest clients that differ, but each attacker spoils a whole bucket, so ``f`` of ``⌈n/s⌉`` are bad.

    Args: ``s`` ≥ 1 rows in a bucket; ``None`` (default) for ``⌊n/2f⌋``, reduced until ``⌈n/s⌉ > 2f``, and 1 for f = 0.

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[1.0], [1.0], [1.0], [1.0], [1.0], [90.0]])
    >>> robustfl.defense("bucketing(s=2)+median")(X, f=1, generator=stream(0, "defense"))
    tensor([1.])

    Reference: Algorithm 1 of the paper below.
    """

    paper: ClassVar[str] = "@karimireddy2022byzantine"
    cost: ClassVar[str] = "nd"
    on_host: ClassVar[str] = "draws which rows share a bucket"
    lengths_only: ClassVar[bool] = True

    s: int | None = param(None, ge=1, doc="rows in a bucket; None means as many as f allows, at most n/2f")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        order = permutation(len(X), generator_of(context, "bucketing"))
        return torch.stack([bucket.mean(0) for bucket in torch.split(X[order], self.size(len(X), f))])

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        n = gram.shape[0]
        return grouped(permutation(n, generator_of(context, "bucketing")), self.size(n, f))

    def min_clients(self, f: int) -> int:
        return 2 * f * (self.s or 1) + 1

    def rows_after(self, n: int, f: int) -> int:
        return -(-n // self.size(n, f))

    def size(self, n: int, f: int) -> int:
        if self.s is not None:
            return self.s
        size = max(1, n // (2 * f)) if f else 1
        while size > 1 and -(-n // size) <= 2 * f:
            size -= 1
        return size
