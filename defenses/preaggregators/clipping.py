"""Clipping of long rows: to a radius, and adaptively (ARC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Context, Step
from robustfl.parameters import param
from robustfl.registry import register

from ..reference import clipped


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
        del f, context
        return clipped(X, self.c)

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        del f, context
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
        del context
        k = 2 * f * (len(X) - f) // len(X)
        return clipped(X, torch.linalg.vector_norm(X, dim=1).sort(descending=True).values[k])

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        del context
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
