"""Majority vote over signs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from robustfl.contracts import Aggregated, Context
from robustfl.registry import register

from ..columns import SignMajority
from ..rows import MajorityRule, Mixed


@register("sign-majority", version=1)
@dataclass(frozen=True)
class SignMajorityVote(MajorityRule):
    """Per coordinate, the sign most rows have; the server moves by the learning rate in every coordinate.

        F(X)_k = sign(Σ_i sign x_ik),   0 for a tie

    Lengths are lost: it needs a learning rate of its own, and heterogeneous clients can outvote the true mean.

    >>> import torch, robustfl
    >>> robustfl.defense("sign-majority")(torch.tensor([[0.1, -5], [2, 5], [-90, 0]]), f=1)
    tensor([1., 0.])

    Reference: signSGD with majority vote, Algorithm 1 of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@bernstein2019signsgd"
    cost: ClassVar[str] = "nd"
    exempt: ClassVar[Mapping[str, str]] = {"no harm": "it returns signs"}
    unfit_for_statistics: ClassVar[str] = "it returns signs, so every variance would be one"

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f, context
        return Aggregated(rows.columns(SignMajority()))
