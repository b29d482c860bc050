"""The laws of defenses: pre-aggregation steps, aggregation rules and propagations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Aggregator, Context, Propagation, StatisticsSlices, Step
from robustfl.defenses import Pipeline, parse_pipeline
from robustfl.randomness import stream
from robustfl.testing.common import COMMON, FIRST, D, built, rows
from robustfl.testing.guards import (
    Broken,
    Differs,
    attempt,
    check_state,
    devices,
    expect,
    hinted,
    own_memory,
    same,
    tensor,
    untouched,
)
from robustfl.testing.suite import LIMIT, Check, Law, Trial, run

SEARCH = 1000
MANY = 50


@dataclass(frozen=True)
class AggregatorTrial(Trial[Aggregator]):
    """An aggregation rule and stacks of rows."""

    def context(self, X: Tensor, state: Mapping[str, Tensor] | None = None) -> Context:
        model = torch.linspace(-1, 1, X.shape[1], dtype=X.dtype, device=X.device)
        draws = stream(1, "rule", device=X.device)
        return Context(generator=draws, state={} if state is None else state, reference=X.mean(0), model=model)

    def size(self, f: int) -> int:
        """A number of clients that is enough, and at least seven."""
        return max(least(self.method, f), 7)

    def aggregate(
        self, X: Tensor, f: int, method: Aggregator | None = None, state: Mapping[str, Tensor] | None = None
    ) -> Aggregated:
        chosen = self.method if method is None else method
        context = self.context(X, state)
        with hinted(chosen, context, ", as in many cells"):
            made: Any = chosen.aggregate(X, f=f, context=context)
        result = made if isinstance(made, Aggregated) else Aggregated(made)
        tensor(result.vector, "what aggregate returns")
        return result

    def outcome(self, method: Aggregator, case: int = 0) -> tuple[Tensor, ...]:
        f = 1 + case
        result = self.aggregate(rows(self.size(f)), f, method)
        return (result.vector, *(result.state[k] for k in sorted(result.state)))


@dataclass(frozen=True)
class StepTrial(Trial[Step]):
    """A pre-aggregation step and inner products of rows."""

    def size(self, f: int) -> int:
        return max(least(self.method, f), 7)

    def mix(self, X: Tensor, f: int, method: Step | None = None) -> Any:
        chosen = self.method if method is None else method
        return chosen.mix(X @ X.T, f=f, context=Context(generator=stream(1, "rule", device=X.device)))

    def outcome(self, method: Step, case: int = 0) -> tuple[Tensor, ...]:
        f = 1 + case
        return (tensor(self.mix(rows(self.size(f)), f, method), "what mix returns"),)


def least(method: Step | Aggregator, f: int) -> int:
    """``min_clients(f)`` if it is a number of clients."""
    need: Any = method.min_clients(f)
    if type(need) is not int:
        raise Broken(f"min_clients({f}) is {need!r}, not an int")
    return need


def _pipeline(method: Step | Aggregator) -> Pipeline:
    return Pipeline((method,), parse_pipeline("mean").aggregator) if isinstance(method, Step) else Pipeline((), method)


def _clients(trial: AggregatorTrial | StepTrial) -> str | None:
    needs = [least(trial.method, f) for f in range(4)]
    if sorted(needs) != needs:
        raise Broken(f"min_clients falls as f rises: {needs} for f = 0..3")
    pipeline = _pipeline(trial.method)
    for f in (0, 1, 2):
        need = pipeline.min_clients(f)
        if need > 1 and attempt(pipeline, rows(need - 1), f)[1] is None:
            raise Broken(f"{need - 1} clients are not refused with f={f}, though min_clients is {need}")
        if need <= SEARCH and isinstance(trial, AggregatorTrial):
            expect(trial.aggregate(rows(need), f).vector, rows(1), (D,), f"the aggregate of {need} rows with f={f}")
    return f"{', '.join(map(str, needs))} for f = 0..3"


# --- rules -----------------------------------------------------------------------------------------------------------


def _vector(trial: AggregatorTrial) -> str | None:
    for device in devices():
        for dtype in (torch.float32, torch.float64):
            for f in (0, 1, 2):
                X = rows(trial.size(f), dtype, device)
                expect(trial.aggregate(X, f).vector, X, (D,), f"the aggregate for {dtype} rows and f={f}")
    X = rows(trial.size(1))[:, :1]
    expect(trial.aggregate(X, 1).vector, X, (1,), "the aggregate for d=1")
    return " and ".join(devices())


def _rows_untouched(trial: AggregatorTrial) -> str | None:
    X = rows(trial.size(1))
    with untouched(X=X):
        result = trial.aggregate(X, 1)
    own_memory(result.vector, "the aggregate", X)
    return None


class _Asked(dict[str, Tensor]):
    """An empty state that notices what it is asked for."""

    name = ""

    def get(self, key: str, default: Any = None) -> Any:
        self.name = key
        return default

    def __contains__(self, key: object) -> bool:
        self.name = str(key)
        return False


def _state(trial: AggregatorTrial) -> str | None:
    X = rows(trial.size(1))
    first = trial.aggregate(X, 1)
    if not first.state:
        asked = _Asked()
        trial.aggregate(X, 1, state=asked)
        lost = f"fact: it asks for the state {asked.name!r}, which it never hands back in Aggregated(vector, state=...)"
        return lost if asked.name else "it keeps no state"
    check_state(first.state)
    with untouched(**{f"context.state[{k!r}]": v for k, v in first.state.items()}):
        second = trial.aggregate(rows(trial.size(1), seed=1), 1, state=first.state)
    if second.state.keys() != first.state.keys():
        raise Broken(f"state was {sorted(first.state)} and is {sorted(second.state)} a round later")
    return ", ".join(sorted(first.state))


def _by_client(trial: AggregatorTrial) -> str | None:
    """What is remembered belongs to a client, whose row may come at another place in the next round."""
    n, ids = trial.size(1), torch.arange(trial.size(1))
    order = torch.arange(n).roll(n // 2)

    def made(X: Tensor, clients: Tensor, state: Mapping[str, Tensor]) -> Aggregated:
        context = replace(trial.context(X, state), clients=clients, round=len(state) and 1)
        result: Any = trial.method.aggregate(X, f=1, context=context)
        return result if isinstance(result, Aggregated) else Aggregated(result)

    before, now = rows(n), rows(n, seed=1)
    first = made(before, ids, {})
    if not first.state:
        return "it keeps no state"
    if _off(made(before[order], ids[order], {}).vector, first.vector):
        return "without a memory, too, it depends on the order of the rows"
    if _off(made(now[order], ids[order], first.state).vector, made(now, ids, first.state).vector):
        raise Broken(
            "in the next round the same rows of the same clients, in another order, give another result: it remembers "
            "rows by their place; context.clients says whose they are"
        )
    return None


def _calm(trial: AggregatorTrial) -> str | None:
    n = max(trial.size(2), 9)
    X = 5 + 0.01 * torch.randn(n, D, generator=stream(0, "calm"), dtype=torch.float64)
    error = float((trial.aggregate(X, 2).vector - 5).abs().max())
    if not error < 0.05:
        raise Broken(f"rows that all lie within {float((X - 5).abs().max()):.2g} of 5 give a vector {error:.3g} from 5")
    return None


def _precision(trial: AggregatorTrial) -> str | None:
    X = rows(trial.size(2), torch.float32)
    single, exact = trial.aggregate(X, 2).vector.double(), trial.aggregate(X.double(), 2).vector
    error = float((single - exact).abs().max())
    if not error <= 1e-4:
        raise Differs(f"float32 and float64 differ by {error:.2g} on the same rows")
    return None


def _behaviour(trial: AggregatorTrial) -> str | None:
    """Facts that rules may differ in: none is wrong, and each is worth knowing before a grid."""
    n = trial.size(2) + 2
    if trial.method.refuses(n, 2):
        return None
    stacks = [rows(n, seed=seed) for seed in range(3)]
    for X in stacks:
        X[:2] += 20
    turn, _ = torch.linalg.qr(torch.randn(D, D, generator=stream(0, "turn"), dtype=torch.float64))
    shift = torch.arange(D, dtype=torch.float64) - 2
    order = torch.randperm(n, generator=stream(0, "order"))

    def made(X: Tensor, f: int = 2) -> Tensor:
        return trial.aggregate(X, f).vector

    found = {
        f"ignores f (it changes nothing on {MANY} random stacks)": _ignores_f(made, n),
        "depends on the order of the rows": any(_off(made(X[order]), made(X)) for X in stacks),
        "does not follow a shift of all rows": any(_off(made(X + shift), made(X) + shift) for X in stacks),
        "does not follow their scale": any(_off(made(3 * X), 3 * made(X)) for X in stacks),
        "does not follow a rotation": any(_off(made(X @ turn), made(X) @ turn) for X in stacks),
    }
    return _fact(found)


def _fact(found: Mapping[str, bool]) -> str | None:
    seen = [name for name, holds in found.items() if holds]
    return f"fact: {'; '.join(seen)}" if seen else None


def _ignores_f(made: Callable[[Tensor, int], Tensor], n: int) -> bool:
    """True if f changes nothing on many stacks, with far rows in every other one."""
    for seed in range(MANY):
        X = rows(n, seed=seed)
        X[:2] += 20 * (seed % 2)
        if not all(torch.equal(made(X, f), made(X, 0)) for f in (1, 2)):
            return False
    return True


def _off(made: Tensor, expected: Tensor) -> bool:
    return not torch.allclose(made, expected, rtol=1e-5, atol=1e-5)


AGGREGATOR_LAWS = (
    *FIRST,
    Law("shape, dtype and device", "the aggregate is [d], of the rows' dtype and on their device", _vector),
    Law("clients", "min_clients(f) clients are enough, fewer are refused", _clients),
    Law("inputs untouched", "the rows are neither written to nor handed back", _rows_untouched),
    *COMMON,
    Law("state", "state goes in by the context and out by the result", _state),
    Law("clients remembered", "what it remembers goes by a client's number, not by its row's place", _by_client),
    Law("no harm", "rows that lie close together give something close to them", _calm, waivable=True),
    Law("precision", "float32 agrees with float64", _precision, waivable=True),
    Law("behaviour", "facts: whether f matters, and what order, shift, scale and rotation of the rows do", _behaviour),
)


# --- steps -----------------------------------------------------------------------------------------------------------


def _coefficients(trial: StepTrial) -> str | None:
    for f in (0, 1, 2):
        n = trial.size(f)
        m = trial.method.rows_after(n, f)
        made = tensor(trial.mix(rows(n), f), "what mix returns")
        if tuple(made.shape) != (m, n):
            raise Broken(f"coefficients for n={n}, f={f} have shape {tuple(made.shape)}, not {(m, n)} (rows_after, n)")
    return None


def _gram_untouched(trial: StepTrial) -> str | None:
    X = rows(trial.size(1))
    gram = X @ X.T
    with untouched(gram=gram):
        trial.method.mix(gram, f=1, context=Context(generator=stream(1, "rule")))
    return None


def _step_in_pipeline(trial: StepTrial) -> str | None:
    pipeline = _pipeline(trial.method)
    for device in devices():
        for dtype in (torch.float32, torch.float64):
            X = rows(max(pipeline.min_clients(1), 7), dtype, device)
            made = pipeline(X, f=1, generator=stream(1, "rule", device=device))
            expect(made, X, (D,), "the mean of the mixed rows")
    return " and ".join(devices())


def _step_behaviour(trial: StepTrial) -> str | None:
    n = trial.size(2) + 2
    if trial.method.refuses(n, 2):
        return None
    stacks = [rows(n, seed=seed) for seed in range(3)]
    order = torch.randperm(n, generator=stream(0, "order"))

    def made(X: Tensor, f: int = 2) -> Tensor:
        return torch.as_tensor(trial.mix(X, f)).double() @ X

    found = {
        f"ignores f (it changes nothing on {MANY} random stacks)": _ignores_f(made, n),
        "depends on the order of the rows": trial.method.rows_after(n, 2) == n
        and any(_off(made(X[order]), made(X)[order]) for X in stacks),
    }
    return _fact(found)


STEP_LAWS = (
    *FIRST,
    Law("shape", "the coefficients are [rows_after(n, f), n]", _coefficients),
    Law("pipeline", "in a pipeline dtype and device of the rows are kept", _step_in_pipeline),
    Law("clients", "fewer than min_clients(f) clients are refused", _clients),
    Law("inputs untouched", "the inner products are not written to", _gram_untouched),
    *COMMON,
    Law("behaviour", "facts: whether f matters, and the order of the rows", _step_behaviour),
)


# --- propagations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PropagationTrial(Trial[Propagation]):
    """A propagation and the clean statistics of users with two layers."""

    def outcome(self, method: Propagation, case: int = 0, *, seed: int = 0) -> tuple[Tensor, ...]:
        layers = [StatisticsSlices("a", slice(0, 2), slice(2, 4)), StatisticsSlices("b", slice(4, 5), slice(5, 6))]
        sources, target = rows(3 + case, seed=seed).abs(), rows(1, seed=5).abs()[0]
        with untouched(sources=sources, target=target):
            made = method.weights(sources, target, layers)
        return (expect(made, sources, (3 + case,), "the weights"),)


def _weights(trial: PropagationTrial) -> str | None:
    (weights,) = trial.outcome(trial.method)
    if not abs(float(weights.sum()) - 1) < 1e-6:
        raise Broken(f"the weights sum to {float(weights.sum()):g}, not 1")
    if not same(trial.outcome(trial.method), (weights,)):
        raise Differs("two calls give different weights")
    if not (trial.method.compares or same(trial.outcome(trial.method, seed=1), (weights,))):
        raise Broken("compares is False, but the weights depend on the statistics of the clean branch")
    return None


PROPAGATION_LAWS = (*FIRST, Law("weights", "one weight per source; they sum to one", _weights), *COMMON)


def check_defense(
    method: str | Step | Aggregator | Propagation | type[Step] | type[Aggregator] | type[Propagation],
    *,
    limit: float = LIMIT,
    **params: Any,
) -> list[Check]:
    """The contract of one part of a defense, law by law: a step, an aggregator or a propagation.

    >>> all(check.passed for check in check_defense("nnm") + check_defense("median"))
    True
    """
    found = built("defense", method, params)
    if isinstance(found, Step):
        return run(STEP_LAWS, StepTrial(found), limit=limit)
    if isinstance(found, Propagation):
        return run(PROPAGATION_LAWS, PropagationTrial(found), limit=limit)
    return run(AGGREGATOR_LAWS, AggregatorTrial(found), limit=limit)
