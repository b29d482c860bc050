"""Rules that vote with signs: majority vote, and robust learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import Refused
from robustfl.kernels.blocks import at_once
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import SignMajority
from ..rows import MajorityRule, Mixed, MixedRule


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

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del f, context
        return X.sign().sum(0).sign()

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f, context
        return Aggregated(rows.columns(SignMajority()))


@register("rlr", version=1)
@dataclass(frozen=True)
class RobustLearningRate(MixedRule):
    """The mean, turned around in every coordinate on whose sign too few rows agree.

        F(X)_j = mean_i x_ij   if |Σ_i sign(x_ij)| ≥ θ,   else   -mean_i x_ij

    Made against backdoors, which live in coordinates that few clients move: there the model is moved away from what
    they want. It bounds no lengths, so that one huge row rules the mean (put ``clipping`` before it), and where honest
    clients disagree it unlearns what they learn.

    Args: ``theta`` ≥ 0, or None (default) for ``f + 1``: with it, the majority that is followed is an honest one.

    >>> import robustfl
    >>> robustfl.defense("rlr")(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, -4.0], [1.0, 8.0]]), f=1)
    tensor([ 1., -1.])

    Reference: the robust learning rate of the paper below. Notes: rows count alike, as in the mean without weights; the
    paper chooses ``theta`` by hand, larger than the number of corrupt clients.
    """

    paper: ClassVar[str] = "@ozdayi2021defending"
    cost: ClassVar[str] = "nd"
    unfit_for_statistics: ClassVar[str] = "a variance on which too few rows agree would turn negative"

    theta: int | None = param(None, ge=0, doc="least surplus of one sign; None for f + 1")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del context
        agreed = X.sign().sum(0).abs() >= (f + 1 if self.theta is None else self.theta)
        return torch.where(agreed, 1.0, -1.0) * X.mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del context
        theta = f + 1 if self.theta is None else self.theta
        if theta > rows.count:
            raise Refused(f"rlr: theta={theta} is more than the {rows.count} rows, so that no coordinate could pass")
        return Aggregated(rows.columns(_Voted(rows.count, theta)), facts={"theta": theta})

    @property
    def uses_f(self) -> bool:
        return self.theta is None

    def min_clients(self, f: int) -> int:
        return max(2 * f + 1, self.theta or 0)


@dataclass(frozen=True)
class _Voted:
    """Per column, the mean, negative where the signs sum to less than ``theta``."""

    n: int
    theta: int
    scratch_rows: int = 2

    def whole(self, X: Tensor) -> bool:
        """Not on the CPU: signs of a block are made one row at a time."""
        return at_once(X)

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        if at_once(rows):
            agreed = rows.sign().sum(0).abs_() >= self.theta
            torch.mul(rows.mean(0, dtype=torch.float64).to(out), torch.where(agreed, 1.0, -1.0).to(out), out=out)
            return
        votes, sign = scratch
        votes.zero_()
        out.zero_()
        for row in rows:
            votes.add_(torch.sign(row, out=sign))
            out.add_(row, alpha=1 / self.n)  # a sum of float32 entries of 3e38 would be infinite
        out.mul_(torch.where(votes.abs_() >= self.theta, 1.0, -1.0).to(out))
