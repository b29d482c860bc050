"""FLANDERS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..draws import generator_of, subset
from ..rows import MajorityRule, Mixed
from ..ties import smallest

_CLOSE = 1e-10


@register("flanders", version=1)
@dataclass(frozen=True)
class Flanders(MajorityRule):
    """The mean of the ``n - f`` rows that a matrix autoregression of past rounds predicts best.

        S = the n-f columns of least ‖x_i,t - (A Z_{t-1} B)_i‖²,   Z_t = [x_1,t … x_n,t] on b coordinates

        A, B = argmin Σ_s ‖Z_s - A Z_{s-1} B‖² + α ‖A‖² + β ‖B‖²   over the last ``window`` rounds, by turns from B = I

    Rounds before there are two to learn from are plain means, so that attackers are to start later; those who did from
    the beginning, and smoothly, are predicted as well as anybody.

    Args: ``window`` ≥ 2 past rounds (5); ``b`` ≥ 1 coordinates looked at, at most all (500, the paper's); ``alpha``,
    ``beta`` > 0 (1); ``steps`` ≥ 1 turns at most (100). State: ``"columns" [b]``, ``"clients" [k]``, ``"history"
    [t k b]``, ``"aggregates" [t b]``.

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> rule, state = robustfl.defense("flanders"), None
    >>> for t in range(4):
    ...     X = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.5, 1.5]]) * 0.9**t
    ...     X[2] *= -20 if t == 3 else 1
    ...     vector, state = rule.stateful(X, f=1, state=state, generator=stream(0, "defense"))
    >>> vector.round(decimals=3)  # the mean of the first two rows
    tensor([1.0930, 1.0930])

    Reference: the filter of the paper below, with the mean of the rows left. Notes: the paper follows local models,
    here it is the messages, which are what a rule is given; dropped rows, and rounds a client missed, stand in the
    history as the aggregate. The authors' code shifts and scales entries by their extremes and starts from random
    matrices; here the largest entry is scaled to one, and nothing is drawn but the coordinates, in the first round.
    """

    paper: ClassVar[str] = "@gabrielli2023protecting"
    cost: ClassVar[str] = "steps times (n·window)³ on b entries a row, one sum"
    on_host: ClassVar[str] = "draws coordinates and predicts from past rounds"
    unfit_for_statistics: ClassVar[str] = "no state is kept of statistics, so there is nothing to predict from"

    window: int = param(5, ge=2, doc="past rounds that are learnt from")
    b: int = param(500, ge=1, doc="random coordinates looked at, at most all")
    alpha: float = param(1.0, gt=0, doc="weight of ‖A‖²")
    beta: float = param(1.0, gt=0, doc="weight of ‖B‖²")
    steps: int = param(100, ge=1, doc="most turns between A and B")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n, d = rows.count, rows.stack.shape[1]
        columns = context.state.get("columns")
        if columns is None:
            columns = subset(d, min(d, self.b), generator_of(context, "flanders"))
        elif int(columns.max()) >= d:
            raise UsageError(f"flanders: state 'columns' goes up to {int(columns.max())}, rows have {d} entries")
        clients = torch.arange(n) if context.clients is None else context.clients.cpu()
        now = rows.materialise().index_select(1, columns.to(rows.stack.device)).double().cpu()
        past = _history_of(context.state, clients)
        kept, scores = torch.arange(n), torch.zeros(n, dtype=torch.float64)
        if len(past) >= 2:
            scores = (now - self._predicted(past)).square().sum(1)
            kept = smallest(scores, n - f, 1e-6 * (scores + now.square().sum(1)))
        weights = rows.mean_of(kept)
        dropped = weights == 0
        now[dropped] = weights @ now
        state = _remembered(context.state, clients, now, weights @ now, self.window)
        facts = {"kept": kept.tolist(), "scores": scores.tolist(), "judged": len(past) >= 2}
        return Aggregated(rows.combine(weights), state={"columns": columns, **state}, facts=facts)

    def _predicted(self, past: Tensor) -> Tensor:
        """The prediction after the matrices ``past [t n b]`` (rows are clients, so the transposed equation)."""
        scale = float(past.abs().max())
        if not scale > 0:
            return torch.zeros_like(past[0])
        series = [matrix.T / scale for matrix in past]
        return forecast(series, self.alpha, self.beta, self.steps).T * scale


def forecast(series: Sequence[Tensor], alpha: float, beta: float, steps: int) -> Tensor:
    """``A Z_t B [b n]`` for the ridge solutions of ``Z_s ≈ A Z_{s-1} B`` on the matrices ``Z_1 … Z_t [b n]``.

    ``A [b b]`` is never made: it is ``Y Cᵀ (C Cᵀ + α I)⁻¹ = Y (Cᵀ C + α I)⁻¹ Cᵀ`` with ``C = [Z_{s-1} B]_s`` and
    ``Y = [Z_s]_s``, whose inner matrix has as many rows as clients and rounds.
    """
    before, after = list(series[:-1]), torch.cat(list(series[1:]), dim=1)
    n = series[0].shape[1]
    B = torch.eye(n, dtype=torch.float64)
    target = torch.cat(list(series[1:]), dim=0)
    for _ in range(steps):
        # A Z_{s-1} for every s, then B from the rows of all of them.
        inner = _inner(before, B, alpha)
        pushed = torch.cat([after @ (inner @ Z) for Z in before], dim=0)
        new = torch.linalg.solve(pushed.T @ pushed + beta * torch.eye(n, dtype=torch.float64), pushed.T @ target)
        moved, B = float((new - B).abs().max()), new
        if moved < _CLOSE:
            break
    found: Tensor = after @ (_inner(before, B, alpha) @ (series[-1] @ B))
    return found


def _inner(before: Sequence[Tensor], B: Tensor, alpha: float) -> Tensor:
    """``(Cᵀ C + α I)⁻¹ Cᵀ`` with ``C = [Z_{s-1} B]_s``."""
    C = torch.cat([Z @ B for Z in before], dim=1)
    found: Tensor = torch.linalg.solve(C.T @ C + alpha * torch.eye(C.shape[1], dtype=torch.float64), C.T)
    return found


def _history_of(state: Mapping[str, Tensor], clients: Tensor) -> Tensor:
    """The past matrices ``[t n b]`` of the present clients; what a client never sent is the aggregate of that round."""
    if "history" not in state:
        return torch.zeros((0, len(clients), 0), dtype=torch.float64)
    known, history = state["clients"].cpu(), state["history"].double().cpu()
    past = state["aggregates"].double().cpu()[:, None, :].repeat(1, len(clients), 1)
    for place, client in enumerate(clients.tolist()):
        seat = (known == client).nonzero().flatten()
        if len(seat):
            past[:, place] = history[:, int(seat)]
    return past


def _remembered(
    state: Mapping[str, Tensor], clients: Tensor, now: Tensor, aggregate: Tensor, window: int
) -> dict[str, Tensor]:
    """The history of everybody known, ``window`` rounds of it, with this round at its end."""
    before = state["clients"].cpu() if "clients" in state else clients[:0]
    known = torch.unique(torch.cat([before, clients]))
    past = _history_of(state, known) if "history" in state else now.new_zeros((0, len(known), now.shape[1]))
    new = aggregate.repeat(len(known), 1)
    new[torch.searchsorted(known, clients)] = now
    aggregates = state["aggregates"].double().cpu() if "aggregates" in state else now.new_zeros((0, now.shape[1]))
    return {
        "clients": known,
        "history": torch.cat([past, new[None]])[-window:],
        "aggregates": torch.cat([aggregates, aggregate[None]])[-window:],
    }
