"""Rules that predict the next updates and leave out who departs from them: FLANDERS and FLDetector."""

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


_MOST_CLUSTERS = 7
_REFERENCES = 10


@register("fldetector", version=1)
@dataclass(frozen=True)
class FLDetector(MajorityRule):
    """Clients whose rows contradict, over several rounds, what their last rows let expect are left out of the mean.

        d_i = ‖x_i,t - (x_i,t-1 + H (θ_t - θ_t-1))‖,   s_i = mean of d_i / Σ_j d_j over the last ``window`` rounds

    ``H`` is the L-BFGS Hessian from the server's last steps and the differences of its aggregates. If the gap statistic
    finds more than one cluster of scores, the one of two with the higher mean is left out of this round. Attackers who
    repeat themselves are predicted best of all, and so is anybody while batches are noisy: it is made for large ones.

    Args: ``window`` ≥ 2 rounds (10, the paper's), before which nobody is judged. State: ``"clients" [k]``, ``"rows"
    [k d]``, ``"present" [k]``, ``"scores" [k window]`` (-1: none yet) and ``"aggregates" [window + 1, d]``.

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> rule, state = robustfl.defense("fldetector(window=2)"), None
    >>> for t in range(6):
    ...     X = torch.tensor([[4.0], [4.1], [3.9], [4.05]]) * 0.5**t
    ...     X[3] *= (-1) ** t  # turns around in every round
    ...     vector, state = rule.stateful(X, f=1, state=state, generator=stream(t, "defense"))
    >>> vector
    tensor([0.1250])

    Reference: the algorithms of the paper below. Notes: the server's step is taken for a multiple of its last
    aggregate, always the same (the prediction does not depend on which); with a server that carries a momentum it is
    not. The paper stops, and starts anew without the clients found; here they are left out round by round. Who was
    absent in the last round is not judged and takes part. The authors' code scales scores to [0, 1], draws 10
    references and tries 7 numbers of clusters, and so does this; clusters on a line are found exactly. The gap
    has the logarithm of the references' mean, as there, not Tibshirani's mean of logarithms.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@zhang2022fldetector"
    cost: ClassVar[str] = "(n + window) d for predictions, clusters of n numbers; n·d memory"
    on_host: ClassVar[str] = "clusters scores of past rounds"
    unfit_for_statistics: ClassVar[str] = "no state is kept of statistics, so there is nothing to predict from"

    window: int = param(10, ge=2, doc="rounds that a score looks back on")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        X, n = rows.materialise(), rows.count
        state, clients = context.state, torch.arange(n) if context.clients is None else context.clients.cpu()
        if "rows" in state and state["rows"].shape[1:] != X.shape[1:]:
            raise UsageError(f"fldetector: state 'rows' has {state['rows'].shape[1]} entries, rows have {X.shape[1]}")
        known, before, present, scores = _known(state, clients, X, self.window)
        here = torch.searchsorted(known, clients)
        aggregates = [row.to(X) for row in state["aggregates"]] if "aggregates" in state else []
        judged = torch.zeros(n, dtype=torch.bool)
        if len(aggregates) > 1:
            judged = present[here]
            self._score(scores, X, before[here.to(X.device)] + _expected(aggregates), judged, here)
        full = (scores[here] >= 0).all(1) & judged
        bad = torch.zeros(n, dtype=torch.bool)
        if int(full.sum()) > 2:
            bad[full] = suspicious(scores[here][full].mean(1), generator_of(context, "fldetector"))
        weights = (~bad).double() / int((~bad).sum())
        vector = rows.combine(weights)
        present = torch.zeros_like(present)
        present[here] = True
        before[here.to(X.device)] = X
        kept = {"clients": known, "rows": before, "present": present, "scores": scores}
        history = torch.stack([*aggregates, vector])[-self.window - 1 :]
        facts = {"kept": (~bad).nonzero().flatten().tolist(), "judged": int(full.sum())}
        return Aggregated(vector, state={**kept, "aggregates": history}, facts=facts)

    def _score(self, scores: Tensor, X: Tensor, expected: Tensor, judged: Tensor, here: Tensor) -> None:
        """Put the normalised distances ``d_i`` of the judged clients at the end of ``scores``."""
        away = torch.linalg.vector_norm((X - expected).double(), dim=1).cpu()
        total = float(away[judged].sum())
        new = away[judged] / total if total > 0 else torch.full((int(judged.sum()),), 1 / max(1, int(judged.sum())))
        seats = here[judged]
        scores[seats] = torch.cat([scores[seats, 1:], new.double()[:, None]], dim=1)


def _known(
    state: Mapping[str, Tensor], clients: Tensor, X: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Everybody known now, rising: numbers ``[k]``, last rows ``[k d]``, present last time ``[k]``, scores."""
    before = state["clients"].cpu() if "clients" in state else clients[:0]
    known = torch.unique(torch.cat([before, clients]))
    rows, present = X.new_zeros((len(known), X.shape[1])), torch.zeros(len(known), dtype=torch.bool)
    # -1: not judged so far.
    scores = torch.full((len(known), window), -1.0, dtype=torch.float64)
    if len(before):
        seats = torch.searchsorted(known, before)
        rows[seats.to(X.device)] = state["rows"].detach().to(X)
        present[seats], scores[seats] = state["present"].cpu(), state["scores"].double().cpu()
    return known, rows, present, scores


def _expected(aggregates: list[Tensor]) -> Tensor:
    """``H (θ_t - θ_t-1) [d]``, in units of the server's step, from its aggregates so far."""
    steps = torch.stack(aggregates[:-1]).double()
    changes = torch.stack(aggregates[1:]).double() - steps
    return hessian_product(steps, changes, aggregates[-1].double()).to(aggregates[-1])


def hessian_product(steps: Tensor, changes: Tensor, vector: Tensor) -> Tensor:
    """``H v [d]`` of the L-BFGS approximation from steps ``[k d]`` and what they changed of gradients ``[k d]``."""
    ss, sy = steps @ steps.T, steps @ changes.T
    if not float(ss[-1, -1]) > 0:
        return torch.zeros_like(vector)
    sigma = sy[-1, -1] / ss[-1, -1]
    lower = sy.tril(-1)
    middle = torch.cat([torch.cat([sigma * ss, lower], 1), torch.cat([lower.T, -torch.diag(sy.diagonal())], 1)])
    both = torch.cat([sigma * steps, changes])
    scale = middle.abs().max().clamp(min=1e-300)
    found: Tensor = sigma * vector - both.T @ (torch.linalg.pinv(middle / scale, rtol=1e-10) @ (both @ vector)) / scale
    return found


def suspicious(scores: Tensor, generator: torch.Generator) -> Tensor:
    """Which scores ``[n]`` belong to the upper of two clusters; nobody's if the gap statistic finds one cluster."""
    low, high = float(scores.min()), float(scores.max())
    if not high - low > 1e-9 * high:
        return torch.zeros(len(scores), dtype=torch.bool)
    scaled = ((scores - low) / (high - low)).cpu()
    drawn = torch.rand((_REFERENCES, len(scores)), generator=generator, device=generator.device, dtype=torch.float64)
    most = min(_MOST_CLUSTERS, len(scores) - 1)
    own = _spreads(scaled, most + 1)[0]
    references = torch.stack([_spreads(row, most + 1)[0] for row in drawn.cpu()])
    gap = references.mean(0).log() - own.log()
    error = (1 + 1 / _REFERENCES) ** 0.5 * references.log().std(0, correction=0)
    enough = gap[:-1] >= gap[1:] - error[1:]
    if bool(enough[0]):
        return torch.zeros(len(scores), dtype=torch.bool)
    return scaled >= scaled.sort().values[_spreads(scaled, 2)[1]]


def _spreads(values: Tensor, most: int) -> tuple[Tensor, int]:
    """The least sums of squares ``[most]`` of values on a line in 1, 2, … clusters; where two clusters part.

    Clusters of a line are intervals of its order, so the best ones follow from the best of shorter beginnings.
    """
    ordered = values.double().sort().values
    n = len(ordered)
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    squares = torch.cat([ordered.new_zeros(1), ordered.square().cumsum(0)])
    size = torch.arange(n + 1)
    length = (size[None, :] - size[:, None]).clamp(min=1)
    within = squares[None, :] - squares[:, None] - (sums[None, :] - sums[:, None]).square() / length
    # [i, j]: the values i … j-1 as one cluster; none if it is empty.
    cost = torch.where(size[None, :] > size[:, None], within.clamp(min=0), torch.inf)
    best, found, split = cost[0], [], 0
    for k in range(most):
        found.append(best[n].clamp(min=1e-30))
        ways = best[:, None] + cost
        if k == 0:
            split = int(ways[:, n].argmin())
        best = ways.min(dim=0).values
    return torch.stack(found), split
