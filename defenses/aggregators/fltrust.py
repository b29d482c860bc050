"""FLTrust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.registry import register

from ..rows import Mixed, MixedRule


@register("fltrust", version=1)
@dataclass(frozen=True)
class FLTrust(MixedRule):
    """Rows count as much as they point where the server's own row points, all with the length of that row.

        F(X) = Σ t_i (‖g_0‖ / ‖x_i‖) x_i / Σ t_i,   t_i = max(0, cos(x_i, g_0)),   g_0 = the server's row

    It needs clean data on the server that look like the clients'; where they do not, honest clients are ignored.
    If nobody is trusted the result is zero, and the fact ``no_trust`` says so. A row of zeros has no trust.

    >>> import robustfl
    >>> X = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-9.0, 0.0]])
    >>> robustfl.defense("fltrust")(X, f=1, reference=torch.tensor([1.0, 0.0]))
    tensor([1., 0.])

    Reference: Algorithm 2 of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@cao2021fltrust"
    cost: ClassVar[str] = "nd for the inner products with the server's own update, one sum; that update"
    needs_reference: ClassVar[bool] = True

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        X, reference = rows.stack.X, context.reference
        if reference is None:
            raise UsageError("fltrust compares clients with the server's own update; give reference=[d]")
        if reference.shape != X.shape[1:]:
            raise UsageError(f"fltrust: the reference has {reference.numel()} entries, rows have {X.shape[1]}")
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(reference).all()):
            raise UsageError("fltrust: the server's own update is not finite")
        along, length = rows.along(reference.detach().to(dtype=X.dtype, device=X.device)), rows.norms()
        own = along[-1].sqrt()
        # A mixed row that rounding alone made points nowhere.
        known = length > rows.slack_of_norms(length)
        cosine = torch.where(known, along[:-1] / (length * own).clamp(min=1e-300), 0.0)
        trust = torch.where(own > 0, cosine.clamp(min=0, max=1), 0.0)
        total = trust.sum()
        weights = torch.where(known & (total > 0), trust * own / (length * total), 0.0)
        return Aggregated(rows.combine(weights), facts={"trust": trust, "no_trust": ~(total > 0)})

    def min_clients(self, f: int) -> int:
        return f + 1
