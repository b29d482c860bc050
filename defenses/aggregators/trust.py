"""Rules that weigh clients by cosines: FLTrust and FoolsGold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..cosines import comparable
from ..reference import lengths
from ..rows import Mixed, MixedRule, Stack


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

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        own = context.reference
        assert own is not None
        trust = torch.cosine_similarity(X, own.to(X)[None]).clamp(min=0)
        scaled = X * (torch.linalg.vector_norm(own) / lengths(X))[:, None]
        return trust @ scaled / trust.sum() if float(trust.sum()) > 0 else torch.zeros_like(X[0])

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
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


@register("foolsgold", version=2)
@dataclass(frozen=True)
class FoolsGold(MixedRule):
    """Clients whose sums of past rows point the same way are taken for copies of one attacker and lose weight.

        F(X) = Σ α_i x_i / Σ α_i,   α_i = κ (ln(a_i / (1-a_i)) + 1/2) clipped to [0, 1],   a_i = 1 - max_j cs_ij

    where ``cs_ij`` is the cosine of the histories ``H_i = Σ_t x_i,t``, times ``v_i / v_j`` if ``v_j > v_i`` (pardoning;
    ``v_i = max(0, max_j cs_ij)``), and ``a`` is divided by its maximum. One attacker alone is not seen, nor is any that
    varies; honest clients with the same data look like copies. It needs rows of single clients, so no mixing step
    before it.

    Args: ``kappa`` > 0 confidence (1). State: ``"history" [k d]`` and the ``"clients" [k]`` it belongs to.

    >>> import robustfl
    >>> robustfl.defense("foolsgold")(torch.tensor([[1.0, 0.0], [-9.0, -9.0], [-9.0, -9.0], [0.0, 1.0]]), f=2)
    tensor([0.5000, 0.5000])

    Reference: Algorithm 1 of the paper below, without the optional weights of features. Notes: the paper adds
    ``Σ α_i x_i`` to the model; divided by ``Σ α_i`` its length does not depend on ``n``. If all weights vanish the
    result is zero, and the fact ``no_trust`` says so.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@fung2020limitations"
    cost: ClassVar[str] = "n²d for the inner products of the histories, which take n·d memory"
    on_host: ClassVar[str] = "looks up whose rows it has seen"
    unfit_for_statistics: ClassVar[str] = (
        "variances point the same way in honest clients, who would count as copies of one attacker"
    )

    kappa: float = param(1.0, gt=0, doc="confidence")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        H = X + context.state["history"].to(X) if context.state else X
        similar = torch.cosine_similarity(H[:, None], H[None], dim=2).fill_diagonal_(-torch.inf)
        v = similar.max(dim=1).values.clamp(min=0)
        similar = torch.where(v[None] > v[:, None], similar * v[:, None] / v[None], similar)
        a = (1 - similar.max(dim=1).values).clamp(0, 1)
        weight = (self.kappa * (torch.logit(a / a.max()) + 0.5)).clamp(0, 1)
        return weight @ X / weight.sum()

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        clients = torch.arange(rows.count) if context.clients is None else context.clients.cpu()
        known, history, own = _remember(context.state, clients, rows.materialise())
        everybody = torch.equal(own, torch.arange(len(known)))
        seen = Mixed(Stack(history if everybody else history[own.to(history.device)]))
        alpha = self._weights(seen)
        total = float(alpha.sum())
        state = {"history": history, "clients": known}
        facts = {"weights": alpha.tolist(), "no_trust": not total > 0}
        weights = alpha / total if total > 0 else alpha
        return Aggregated(rows.combine(weights), state=state, facts=facts)

    def _weights(self, seen: Mixed) -> Tensor:
        seen = comparable(seen)
        inner = seen.inner()
        n, norms = len(inner), seen.norms()
        # A history of zeros is like no other, though rounding may say otherwise.
        directed = norms > seen.slack_of_norms(norms)
        length = torch.where(directed, inner.diagonal().clamp(min=1e-300).sqrt(), torch.inf)
        if n == 1:
            return torch.ones(1, dtype=torch.float64)
        similar = (inner / (length[:, None] * length[None, :])).clamp(-1, 1)
        similar = similar.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
        # Nobody is less than unlike all others: the authors' code has a zero on the diagonal.
        most = similar.max(dim=1).values.clamp(min=0)
        pardon = most[None, :] > most[:, None]
        similar = similar * torch.where(pardon, most[:, None] / most[None, :], 1.0).fill_diagonal_(1.0)
        alpha = (1 - similar.max(dim=1).values).clamp(0, 1)
        # Copies differ by the rounding of their inner products only.
        alpha = torch.where(alpha > max(1e-9, 8 * seen.stack.gram.rounding), alpha, 0.0)
        if not float(alpha.max()) > 0:
            return alpha
        alpha = alpha / alpha.max()
        return (self.kappa * (torch.logit(alpha) + 0.5)).clamp(0, 1)

    def min_clients(self, f: int) -> int:
        return f + 1


def _remember(state: Mapping[str, Tensor], clients: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All clients known now, their histories ``[k d]`` with ``rows`` added, and where the present ones stand."""
    before = state.get("history")
    if before is None:
        return clients.clone(), rows.clone(), torch.arange(len(clients))
    if before.shape[1:] != rows.shape[1:]:
        raise UsageError(
            f"foolsgold: state 'history' has {before.shape[1]} entries a client, rows have {rows.shape[1]}"
        )
    before = before.detach().to(dtype=rows.dtype, device=rows.device)
    if torch.equal(state["clients"].cpu(), clients):
        return clients.clone(), before + rows, torch.arange(len(clients))
    known = torch.unique(torch.cat([state["clients"].cpu(), clients]))
    history = rows.new_zeros((len(known), rows.shape[1]))
    history[torch.searchsorted(known, state["clients"].cpu()).to(rows.device)] = before
    own = torch.searchsorted(known, clients)
    history[own.to(rows.device)] += rows
    return known, history, own
