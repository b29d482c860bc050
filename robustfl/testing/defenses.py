"""The laws of defenses: pre-aggregation steps, aggregation rules and propagations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Aggregator, Context, Propagation, StatisticsSlices, Step
from robustfl.randomness import stream
from robustfl.testing.common import PRECISION, D, laws_of, rows
from robustfl.testing.suite import DOUBLE, Broken, Law, Suite, Trial, just

_SEARCH, _MANY = 1000, 50


def _size(method: Step | Aggregator, f: int, least: int = 7) -> int:
    """A number of clients that is enough, and at least so many."""
    need: Any = method.min_clients(f)
    if type(need) is not int:
        raise Broken(f"min_clients({f}) is {need!r}, not an int")
    return max(need, least)


def _context(X: Tensor, **more: Any) -> Context:
    model = torch.linspace(-1, 1, X.shape[1], dtype=X.dtype, device=X.device)
    return Context(generator=stream(1, "rule", device=X.device), reference=X.mean(0), model=model, **more)


def _aggregate(
    method: Aggregator, X: Tensor, f: int, ask: Callable[..., Any] = just, *, context: Context | None = None
) -> Aggregated:
    context = _context(X) if context is None else context
    shown = {"X": X, "context.model": context.model, "context.reference": context.reference}
    shown |= {f"context.state[{name!r}]": value for name, value in context.state.items()}
    made = ask("aggregate", lambda: method.aggregate(X, f=f, context=context), [X[0]], shown, own=True)
    return made if isinstance(made, Aggregated) else Aggregated(made)


def _aggregating(method: Aggregator, ask: Callable[..., Any], case: int, like: Tensor) -> None:
    f = (1, 2, 0, 1)[case]
    X = rows(_size(method, f), like)[:, : 1 if case == 3 else D]
    if state := _aggregate(method, X, f, ask).state:
        later = rows(len(X), like, seed=1)[:, : X.shape[1]]
        _aggregate(method, later, f, ask, context=_context(later, state=state, round=1))


def _mixing(method: Step, ask: Callable[..., Any], case: int, like: Tensor) -> None:
    _mix(method, rows(_size(method, (1, 2, 0)[case]), like), (1, 2, 0)[case], ask)


def _mix(method: Step, X: Tensor, f: int, ask: Callable[..., Any] = just) -> Tensor:
    gram, context = X @ X.T, Context(generator=stream(1, "rule", device=X.device))

    def mixed() -> Any:
        made: Any = method.mix(gram, f=f, context=context)
        return made.to(X) if isinstance(made, Tensor) else made  # as pipelines do

    wanted = X.new_empty(method.rows_after(len(X), f), len(X))
    made: Tensor = ask("mix", mixed, [wanted], {"gram": gram})
    return made


def _vector(method: Step | Aggregator, X: Tensor, f: int) -> Tensor:
    """What a rule makes of rows, or the mean of what a step makes of them."""
    return _aggregate(method, X, f).vector if isinstance(method, Aggregator) else (_mix(method, X, f) @ X).mean(0)


def _clients(trial: Trial) -> str | None:
    """min_clients(f) clients are enough, and no fewer for more Byzantine ones."""
    needs = [_size(trial.method, f, least=0) for f in range(4)]
    if sorted(needs) != needs:
        raise Broken(f"min_clients falls as f rises: {needs} for f = 0..3")
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
    turn, _ = torch.linalg.qr(torch.randn(D, D, generator=stream(0, "turn"), dtype=torch.float64))
    shift = torch.arange(D, dtype=torch.float64) - 2
    order = torch.randperm(n, generator=stream(0, "order"))

    def made(X: Tensor, f: int = 2) -> Tensor:
        return _vector(method, X, f)

    def off(found: Callable[[Tensor], Tensor], wanted: Callable[[Tensor], Tensor]) -> bool:
        return any(_far(found(X), wanted(X)) for X in stacks[:6:2])

    found = {
        f"ignores f (it changes nothing on {_MANY} random stacks)": all(
            torch.equal(made(X, f), made(X, 0)) for X in stacks for f in (1, 2)
        ),
        "depends on the order of the rows": off(lambda X: made(X[order]), made),
        "does not follow a shift of all rows": off(lambda X: made(X + shift), lambda X: made(X) + shift),
        "does not follow their scale": off(lambda X: made(3 * X), lambda X: 3 * made(X)),
        "does not follow a rotation": off(lambda X: made(X @ turn), lambda X: made(X) @ turn),
    }
    seen = [name for name, holds in found.items() if holds]
    return f"fact: {'; '.join(seen)}" if seen else None


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


def _state(trial: Trial) -> str | None:
    """What it remembers has the same names in every round."""
    X, asked = rows(_size(trial.method, 1)), _Asked()
    first = _aggregate(trial.method, X, 1, context=_context(X, state=asked))
    if not first.state:
        lost = f"fact: it asks for the state {asked.name!r}, which it never hands back in Aggregated(vector, state=...)"
        return lost if asked.name else "it keeps no state"
    second = _aggregate(trial.method, X, 1, context=_context(X, state=first.state, round=1))
    if second.state.keys() != first.state.keys():
        raise Broken(f"state was {sorted(first.state)} and is {sorted(second.state)} a round later")
    return ", ".join(sorted(first.state))


def _by_client(trial: Trial) -> str | None:
    """What it remembers goes by a client's number, not by its row's place."""
    n = _size(trial.method, 1)
    ids, order = torch.arange(n), torch.arange(n).roll(n // 2)

    def made(X: Tensor, clients: Tensor, state: Mapping[str, Tensor]) -> Aggregated:
        context = _context(X, state=state, clients=clients, round=len(state) and 1)
        return _aggregate(trial.method, X, 1, context=context)

    before, now = rows(n), rows(n, seed=1)
    first = made(before, ids, {})
    if not first.state:
        return "it keeps no state"
    if _far(made(before[order], ids[order], {}).vector, first.vector):
        return "without a memory, too, it depends on the order of the rows"
    if _far(made(now[order], ids[order], first.state).vector, made(now, ids, first.state).vector):
        raise Broken(
            "in the next round the same rows of the same clients, in another order, give another result: it remembers "
            "rows by their place; context.clients says whose they are"
        )
    return None


def _calm(trial: Trial) -> str | None:
    """Rows that lie close together give something close to them."""
    n = max(_size(trial.method, 2), 9)
    X = 5 + 0.01 * torch.randn(n, D, generator=stream(0, "calm"), dtype=torch.float64)
    error = float((_vector(trial.method, X, 2) - 5).abs().max())
    if not error < 0.05:
        raise Broken(f"rows that all lie within {float((X - 5).abs().max()):.2g} of 5 give a vector {error:.3g} from 5")
    return None


def _lacks(_: Aggregator) -> str:
    context = _context(rows(7))
    gone = [f.name for f in dataclasses.fields(context) if getattr(context, f.name) is None]
    return f"; the context has no {', no '.join(gone)} here, as in many cells"


_BOTH = (
    Law("clients", _clients),
    Law("behaviour", _behaviour),
)
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
STEP = Suite(laws_of(*_BOTH), _mixing, more={"f=0": False})


# --- propagations ----------------------------------------------------------------------------------------------------


def _weighing(method: Propagation, ask: Callable[..., Any], case: int, like: Tensor, seed: int = 0) -> Tensor:
    """The weights of users with two layers."""
    layers = [StatisticsSlices("a", slice(0, 2), slice(2, 4)), StatisticsSlices("b", slice(4, 5), slice(5, 6))]
    sources, target = rows(3 + case, like, seed).abs(), rows(1, like, 5).abs()[0]
    shown = {"sources": sources, "target": target}
    made: Tensor = ask("weights", lambda: method.weights(sources, target, layers), [sources[:, 0]], shown)
    return made


def _sum(trial: Trial) -> str | None:
    """They sum to one, and depend on statistics only if compares says so."""
    weights, other = (_weighing(trial.method, just, 0, DOUBLE, seed) for seed in (0, 1))
    if not abs(float(weights.sum()) - 1) < 1e-6:
        raise Broken(f"the weights sum to {float(weights.sum()):g}, not 1")
    if not (trial.method.compares or torch.equal(other, weights)):
        raise Broken("compares is False, but the weights depend on the statistics of the clean branch")
    return None


PROPAGATION = Suite(laws_of(Law("weights", _sum)), _weighing)
