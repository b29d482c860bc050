"""The laws of all methods."""

from __future__ import annotations

import dataclasses
import pickle
import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Method
from robustfl.errors import UsageError
from robustfl.registry import create, describe, lookup
from robustfl.surroundings import Surroundings
from robustfl.testing.guards import Broken, same
from robustfl.testing.suite import LIMIT, Check, Law, Trial, held, run
from robustfl.watch import changed, random_state


def _documented(trial: Trial[Any]) -> str | None:
    doc = (type(trial.method).__doc__ or "").strip()
    if not doc or doc.startswith(f"{type(trial.method).__name__}("):  # what dataclasses write when nobody does
        raise Broken("the class has no docstring; `robustfl show` prints its first line and formula")
    return None


def _written(trial: Trial[Any]) -> str | None:
    method = trial.method
    found = lookup(method.kind, method.name)
    if found.cls is not type(method):
        raise Broken(f"{method.kind} {method.name!r} is {found.cls.__module__}.{found.cls.__qualname__}")
    text = describe(method)
    if create(method.kind, text) != method:
        raise Broken(f"{text!r} does not build the method again")
    hash(method)
    if pickle.loads(pickle.dumps(method)) != method:
        raise Broken("it comes back from pickle as another method; workers of a grid receive pickles")
    return None


def _finite(trial: Trial[Any]) -> str | None:
    for case in (0, 1):
        for part in trial.outcome(trial.fresh(), case):
            if not bool(torch.isfinite(part).all()):
                kinds = "NaN" if bool(torch.isnan(part).any()) else "infinite entries"
                raise Broken(f"the result has {kinds} where everything shown was finite")
    return None


def _deterministic(trial: Trial[Any]) -> str | None:
    method = trial.fresh()
    if not same(trial.outcome(method), trial.outcome(method)):
        raise Broken("two calls with generators in the same state gave different results; draw from generator only")
    return None


def _no_global_randomness(trial: Trial[Any]) -> str | None:
    trial.outcome(trial.fresh())  # the first call may import
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = random_state()
        results.append(trial.outcome(trial.fresh()))
        moved = changed(before, random_state())
        if moved:
            raise Broken(f"the global generator of {', '.join(moved)} was used or seeded; draw from generator only")
    if not same(*results):
        raise Broken("the result depends on the seeds of global generators; draw from generator only")
    return None


def _no_global_settings(trial: Trial[Any]) -> str | None:
    now = Surroundings()
    trial.outcome(trial.fresh())
    moved = now.settings()
    if moved:
        raise Broken(f"a call changed {', '.join(moved)}; put back what you change (with torch.no_grad(): ...)")
    return None


def _no_memory(trial: Trial[Any]) -> str | None:
    first = trial.outcome(trial.method)
    for i in range(4):
        trial.outcome(trial.fresh(), 1)
        if not same(trial.outcome(trial.fresh()), first):
            raise Broken(
                f"a new instance gave another result on call {2 * i + 3} than on the first: something is kept between "
                "calls; state goes in and out by arguments and results"
            )
    moved = changed(trial.kept, held(trial.method))
    if moved:
        raise Broken(f"a call changed {', '.join(moved)}; methods have no memory")
    return None


def _terminates(trial: Trial[Any]) -> str | None:
    start = time.perf_counter()
    trial.outcome(trial.fresh())
    return f"{time.perf_counter() - start:.2g} s"


FIRST = (Law("runs", "one call on small inputs ends in time without an error", _terminates),)
FORM = (
    Law("documented", "the class has a docstring", _documented),
    Law("written as text", "its spec, its pickle and its registry entry give the same method", _written),
)
COMMON = (
    *FORM,
    Law("finite", "finite inputs give finite results", _finite, waivable=True),
    Law("deterministic", "same generator state, same result", _deterministic),
    Law("no global randomness", "neither uses nor seeds a global generator", _no_global_randomness),
    Law("no global settings", "torch's default dtype, grad mode and the like are as before", _no_global_settings),
    Law("no memory", "nothing is kept between calls, in instances, classes or modules", _no_memory),
)


def built(kind: str, method: Any, params: dict[str, Any]) -> Any:
    """The method under test: an instance, a class, or a spec such as ``"foe(eta=2)"`` with parameters."""
    if isinstance(method, type):
        method = method(**params)
    elif isinstance(method, str):
        method = create(kind, method, **params)
    elif params:
        method = dataclasses.replace(method, **params)
    if getattr(method, "kind", None) != kind:
        raise UsageError(f"{type(method).__name__} is no {kind}")
    return method


@dataclass(frozen=True)
class _Form(Trial[Method]):
    def outcome(self, method: Method, case: int = 0) -> tuple[Tensor, ...]:
        del method, case
        return ()


def check_form(method: Method, *, limit: float = LIMIT) -> list[Check]:
    """What is asked of every method, whatever it does."""
    return run(FORM, _Form(method), limit=limit)
