"""AlignIns: inspection of how directions align."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..reference import clipped, lengths
from ..rows import MajorityRule, Mixed, shortened
from ..ties import usual


@register("alignins", version=1)
@dataclass(frozen=True)
class AlignIns(MajorityRule):
    """Rows whose direction and main signs agree with model and majority as usual are clipped and averaged.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i,   S = {i : |z(ω_i)| ≤ λ_c and |z(ρ_i)| ≤ λ_s}

        ω_i = cos(x_i, θ),   ρ_i = share of x_i's top entries with most rows' sign,   z(u)_i = (u_i - median u) / std u

    ``M`` is the median length of the rows in ``S``, ``θ`` the server's model; most rows' sign is ``sign Σ_i sign x_i``,
    and a row's top entries are its ``⌊share · d⌋`` largest in magnitude. Made against backdoors. Attackers who keep
    both numbers usual pass; honest clients with unusual data do not: of normal scores one in three is farther than 1.

    Args: ``share`` in (0, 1] of the entries (0.3); ``direction_bound`` λ_c > 0 (1) and ``sign_bound`` λ_s > 0 (1), in
    deviations.

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [-9.0, -9.0]])
    >>> robustfl.defense("alignins(share=1)")(X, f=1).round(decimals=2)
    tensor([1.3300, 1.3300])

    Reference: the algorithm of the paper below. Notes: where nobody is usual the result is zero, as in the authors'
    code, and the fact ``no_trust`` says so. Medians are means of the middle two. Entries tied with the smallest of the
    top count too; a zero in a row agrees with everybody, and with a tied majority nothing else does, as in the paper's
    formula, where the code compares its sign. A score on the bound is usual, as are equal ones, where the code wants
    less than the bound and trusts nobody of equals; rows count alike, where it weighs them by samples. A row of one's
    own comes without a model: then signs decide alone.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@xu2025detecting"
    cost: ClassVar[str] = "a selection of the largest of d entries a row, 4nd"
    on_host: ClassVar[str] = "leaves out rows"
    unfit_for_statistics: ClassVar[str] = "rows are shortened towards the origin, so variances would shrink"

    share: float = param(0.3, gt=0, le=1, doc="share of the entries whose signs are compared")
    direction_bound: float = param(1.0, gt=0, doc="farthest cosine with the model from the median, in deviations")
    sign_bound: float = param(1.0, gt=0, doc="farthest agreement of signs from the median, in deviations")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        del f
        kept = usual(agreement(X, self.share), self.sign_bound)
        if context.model is not None:
            kept &= usual(torch.cosine_similarity(X, context.model.to(X)[None]), self.direction_bound)
        return clipped(X[kept], lengths(X[kept]).quantile(0.5)).mean(0) if bool(kept.any()) else torch.zeros_like(X[0])

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        length = rows.norms()
        aligned = agreement(rows.materialise(), self.share)
        kept = usual(aligned, self.sign_bound)
        if context.model is not None:
            kept = kept & usual(_cosines(rows, length, context.model), self.direction_bound)
        nobody = not bool(kept.any())
        weights = torch.zeros_like(length) if nobody else shortened(kept, length, length[kept].quantile(0.5))
        facts = {"kept": kept.nonzero().flatten().tolist(), "aligned": aligned.tolist(), "no_trust": nobody}
        return Aggregated(rows.combine(weights), facts=facts)


def agreement(X: Tensor, share: float) -> Tensor:
    """The share of every row's largest entries that have the sign of most rows ``X [n d]``: ``[n]``, in float64."""
    votes = torch.zeros_like(X[0])
    for row in X:
        votes += row.sign()
    majority, top = votes.sign(), max(1, int(share * X.shape[1] + 1e-9))
    made = torch.empty(len(X), dtype=torch.float64)
    for i, row in enumerate(X):
        size = row.abs()
        largest = (size >= size.topk(top).values[-1]) & (row != 0)
        against = largest & (row.sign() != majority)
        made[i] = 1 - int(against.sum()) / max(top, int(largest.sum()))
    return made


def _cosines(rows: Mixed, length: Tensor, model: Tensor) -> Tensor:
    """``cos(x_i, θ)`` of all rows ``[n]``; 0 for a row of zeros, and without a direction of the model."""
    X = rows.stack.X
    if model.shape != X.shape[1:]:
        raise UsageError(f"alignins: the model has {model.numel()} entries, rows have {X.shape[1]}")
    inner = rows.inner(model.detach().to(X))
    return inner[:-1, -1] / (length * inner[-1, -1].clamp(min=0).sqrt()).clamp(min=1e-300)
