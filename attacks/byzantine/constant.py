"""Messages whose entries are all the same: zero, infinity, not-a-number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import ColumnAttack, Knowledge, View
from robustfl.registry import register

from .sight import own_rows


class _Constant(ColumnAttack):
    cost: ClassVar[str] = "fd"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    value: ClassVar[float]

    def columns(self, view: View) -> Tensor:
        return torch.full_like(own_rows(view, self.name), self.value, memory_format=torch.contiguous_format)


@register("zero", version=1)
@dataclass(frozen=True)
class Zero(_Constant):
    """The attackers send zero vectors, as a client does that contributes nothing: ``x_i = 0``.

    Shrinks a plain mean by ``h/n`` and no more; rules that look at norms may still take it for an honest row.

    >>> import robustfl
    >>> robustfl.forge("zero", torch.ones(4, 3), f=1)
    tensor([[0., 0., 0.]])
    """

    value: ClassVar[float] = 0.0


@register("inf", version=1)
@dataclass(frozen=True)
class Inf(_Constant):
    """The attackers send vectors whose every entry is infinity: a test of the server's input policy.

    Harmless where non-finite rows are dropped before aggregation; fatal to any rule without that policy.

    >>> import robustfl
    >>> robustfl.forge("inf", torch.zeros(4, 3), f=1)
    tensor([[inf, inf, inf]])
    """

    value: ClassVar[float] = math.inf
    exempt: ClassVar[Mapping[str, str]] = {"finite": "to send infinity is the attack"}


@register("nan", version=1)
@dataclass(frozen=True)
class NaN(_Constant):
    """The attackers send vectors whose every entry is not-a-number: a test of the server's input policy.

    Harmless where non-finite rows are dropped before aggregation; fatal to any rule without that policy.

    >>> import robustfl
    >>> robustfl.forge("nan", torch.zeros(4, 3), f=1)
    tensor([[nan, nan, nan]])
    """

    value: ClassVar[float] = math.nan
    exempt: ClassVar[Mapping[str, str]] = {"finite": "to send not-a-number is the attack"}
