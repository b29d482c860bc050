"""The laws of defenses: pre-aggregation steps, aggregation rules and propagations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Aggregator, Context, StatisticsSlices, Step
from robustfl.randomness import stream
from robustfl.testing.common import PRECISION, D, laws_of, normal, rows
from robustfl.testing.suite import Calls, Law, Suite, Trial, demand

_SEARCH, _MANY = 1000, 50


def _size(method: Step | Aggregator, f: int, least: int = 7) -> int:
    """A number of clients that is enough, and at least so many."""
    need = method.min_clients(f)
    demand(type(need) is int, f"min_clients({f}) is {need!r}, not an int")
    return max(need, least)


def _context(X: Tensor, **more: Any) -> Context:
    model = torch.linspace(-1, 1, X.shape[1], dtype=X.dtype, device=X.device)
    return Context(generator=stream(1, "rule", device=X.device), reference=X.mean(0), model=model, **more)


def _aggregate(calls: Calls, X: Tensor, f: int, **context: Any) -> Aggregated:
    made = calls(calls.method.aggregate, X, f=f, context=_context(X, **context), wanted=[X[0]], own=True)
    return made if isinstance(made, Aggregated) else Aggregated(made)


def _aggregating(calls: Calls) -> None:
    """Aggregate once, and a second time where the rule keeps a state."""
    f, d = ((1, D), (2, D), (0, D), (1, 1))[calls.case]
    now, later = (rows(_size(calls.method, f), calls.like, seed)[:, :d] for seed in (0, 1))
    if state := _aggregate(calls, now, f).state:
        _aggregate(calls, later, f, state=state, round=1)


def _mixing(calls: Calls) -> None:
    f = (1, 2, 0)[calls.case]
    _mix(calls, rows(_size(calls.method, f), calls.like), f)


def _mix(calls: Calls, X: Tensor, f: int) -> Tensor:
    method, context = calls.method, Context(generator=stream(1, "rule", device=X.device))

    def mix(gram: Tensor) -> Any:
        made: Any = method.mix(gram, f=f, context=context)
        return made.to(X) if isinstance(made, Tensor) else made  # as pipelines do

    made: Tensor = calls(mix, X @ X.T, wanted=[X.new_empty(method.rows_after(len(X), f), len(X))])
    return made


def _vector(method: Step | Aggregator, X: Tensor, f: int = 2) -> Tensor:
    """What a rule makes of rows, or the mean of what a step makes of them."""
    calls = Calls(method)
    return _aggregate(calls, X, f).vector if isinstance(method, Aggregator) else (_mix(calls, X, f) @ X).mean(0)


def _clients(trial: Trial) -> str:
    """min_clients(f) clients are enough, and no fewer for more Byzantine ones."""
    needs = [_size(trial.method, f, least=0) for f in range(4)]
    demand(sorted(needs) == needs, f"min_clients falls as f rises: {needs} for f = 0..3")
    for f, need in enumerate(needs[:3]):
        if 0 < need <= _SEARCH:
            _vector(trial.method, rows(need), f)
    return f"{', '.join(map(str, needs))} for f = 0..3"


def _behaviour(trial: Trial) -> str | None:
    """Facts: whether f matters, and what order, shift, scale and rotation of the rows do. Rules may differ in them."""
    method, n = trial.method, _size(trial.method, 2) + 2
    if method.refuses(n, 2):
        return None
    stacks = [rows(n, seed=seed) for seed in range(_MANY)]
    for X in stacks[::2]:
        X[:2] += 20
    turn, shift = torch.linalg.qr(normal(D, D, seed=3))[0], torch.arange(D, dtype=torch.float64) - 2
    order = torch.randperm(n, generator=stream(0, "order"))
    changes: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
        "depends on the order of the rows": (lambda X: X[order], lambda vector: vector),
        "does not follow a shift of all rows": (lambda X: X + shift, lambda vector: vector + shift),
        "does not follow their scale": (lambda X: 3 * X, lambda vector: 3 * vector),
        "does not follow a rotation": (lambda X: X @ turn, lambda vector: vector @ turn),
    }
    seen = [
        name
        for name, (of_rows, of_vector) in changes.items()
        if any(_far(_vector(method, of_rows(X)), of_vector(_vector(method, X))) for X in stacks[:6:2])
    ]
    if all(torch.equal(_vector(method, X, f), _vector(method, X, 0)) for X in stacks for f in (1, 2)):
        seen.insert(0, f"ignores f (it changes nothing on {_MANY} random stacks)")
    return f"fact: {'; '.join(seen)}" if seen else None


def _reference(trial: Trial) -> str | None:
    """It does what its reference says, up to rounding."""
    method = trial.method
    for f, seed in ((2, 0), (1, 1), (0, 2), (2, 3)):
        n = _size(method, f, least=9)
        if method.refuses(n, f):
            continue
        known: dict[str, Any] = {"weights": torch.arange(1, n + 1, dtype=torch.float64)}
        for X in (rows(n, seed=seed) + 1.0, rows(n, seed=seed + 10) + 1.0):
            wanted = method.reference(X, f=f, context=_context(X, **known))
            if wanted is None:
                return "it has none: the method itself reads like the paper"
            if isinstance(method, Step):
                made = _mix(Calls(method), X, f) @ X
            else:
                done = _aggregate(Calls(method), X, f, **known)
                made, known = done.vector, {**known, "state": done.state, "round": 1}
            away = float((made - wanted).abs().max()) if made.shape == wanted.shape else math.inf
            demand(away <= 1e-6 * float(X.abs().max()), f"f={f}: it is {away:.3g} away from its reference")
    return None


def _far(made: Tensor, expected: Tensor) -> bool:
    return not torch.allclose(made, expected, rtol=1e-5, atol=1e-5)


# --- rules -----------------------------------------------------------------------------------------------------------


class _Asked(dict[str, Tensor]):
    """An empty state that notices what it is asked for."""

    name = ""

    def get(self, key: str, default: Any = None) -> Any:
        self.name = key
        return default

    def __contains__(self, key: object) -> bool:
        self.name = str(key)
        return False


def _state(trial: Trial) -> str:
    """What it remembers has the same names in every round."""
    X, asked = rows(_size(trial.method, 1)), _Asked()
    first = _aggregate(Calls(trial.method), X, 1, state=asked).state
    if not first:
        lost = f"fact: it asks for the state {asked.name!r}, which it never hands back in Aggregated(vector, state=...)"
        return lost if asked.name else "it keeps no state"
    second = _aggregate(Calls(trial.method), X, 1, state=first, round=1).state
    demand(second.keys() == first.keys(), f"state was {sorted(first)} and is {sorted(second)} a round later")
    return ", ".join(sorted(first))


def _by_client(trial: Trial) -> str | None:
    """What it remembers goes by a client's number, not by its row's place."""
    n, calls = _size(trial.method, 1), Calls(trial.method)
    (before, now), ids, order = (rows(n), rows(n, seed=1)), torch.arange(n), torch.arange(n).roll(n // 2)
    first, moved = (_aggregate(calls, before[o], 1, clients=ids[o]) for o in (ids, order))
    if not first.state:
        return "it keeps no state"
    if _far(moved.vector, first.vector):
        return "without a memory, too, it depends on the order of the rows"
    one, other = (_aggregate(calls, now[o], 1, clients=ids[o], state=first.state, round=1) for o in (ids, order))
    demand(
        not _far(other.vector, one.vector),
        "in the next round the same rows of the same clients, in another order, give another result: it remembers "
        "rows by their place; context.clients says whose they are",
    )
    return None


def _calm(trial: Trial) -> None:
    """Rows that lie close together give something close to them."""
    X = 5 + 0.01 * normal(max(_size(trial.method, 2), 9), D)
    error, reach = (float((values - 5).abs().max()) for values in (_vector(trial.method, X), X))
    demand(error < 0.05, f"rows that all lie within {reach:.2g} of 5 give a vector {error:.3g} from 5")


def _lacks(_: Aggregator) -> str:
    context = _context(rows(7))
    gone = [f.name for f in dataclasses.fields(context) if getattr(context, f.name) is None]
    return f"; the context has no {', no '.join(gone)} here, as in many cells"


_BOTH = (Law("clients", _clients), Law("reference", _reference), Law("behaviour", _behaviour))
AGGREGATOR = Suite(
    laws_of(
        *_BOTH,
        Law("state", _state),
        Law("clients remembered", _by_client),
        Law("no harm", _calm, waivable=True),
        PRECISION,
    ),
    _aggregating, more={"f=0": False, "d=1": False}, lacks=_lacks,
)  # fmt: skip
STEP = Suite(laws_of(*_BOTH, PRECISION), _mixing, more={"f=0": False})


# --- propagations ----------------------------------------------------------------------------------------------------


def _weighing(calls: Calls, seed: int = 0) -> Tensor:
    layers = [StatisticsSlices("a", slice(0, 2), slice(2, 4)), StatisticsSlices("b", slice(4, 5), slice(5, 6))]
    sources, target = rows(3 + calls.case, calls.like, seed).abs(), rows(1, calls.like, 5).abs()[0]
    made: Tensor = calls(calls.method.weights, sources, target, layers, wanted=[sources[:, 0]])
    return made


def _sum(trial: Trial) -> None:
    """They sum to one, and depend on statistics only if compares says so."""
    weights, other = (_weighing(Calls(trial.method), seed) for seed in (0, 1))
    demand(abs(float(weights.sum()) - 1) < 1e-6, f"the weights sum to {float(weights.sum()):g}, not 1")
    declared = trial.method.compares or torch.equal(other, weights)
    demand(declared, "compares is False, but the weights depend on the statistics of the clean branch")


PROPAGATION = Suite(laws_of(Law("weights", _sum)), _weighing)
