"""FLDetector."""

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

from ..draws import generator_of
from ..rows import MajorityRule, Mixed

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
        del f
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
