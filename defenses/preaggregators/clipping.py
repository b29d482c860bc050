"""Static clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Context, Step
from robustfl.parameters import param
from robustfl.registry import register


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

    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        del f, context
        return torch.diag((self.c / lengths(gram)).clamp(max=1))

    def min_clients(self, f: int) -> int:
        return 2 * f + 1
