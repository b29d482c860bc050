"""The laws of all methods."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import random
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Method
from robustfl.errors import UsageError
from robustfl.parameters import is_plain
from robustfl.randomness import stream
from robustfl.registry import create, describe, lookup
from robustfl.testing.guards import Broken, Differs, same
from robustfl.testing.state import changed, random_state
from robustfl.testing.suite import Law, Trial, held
from robustfl.torch_settings import restored

D = 6


def rows(n: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0) -> Tensor:
    """Rows that scatter by one around (1, 2, …, D)."""
    noise = torch.randn(n, D, generator=stream(seed, "check", n), dtype=torch.float64)
    return (noise + torch.arange(1, D + 1)).to(device, dtype)


def _documented(trial: Trial[Any]) -> str | None:
    doc = (type(trial.method).__doc__ or "").strip()
    if not doc or doc.startswith(f"{type(trial.method).__name__}("):  # what dataclasses write when nobody does
        raise Broken("the class has no docstring; `robustfl show` prints its first line and formula")
    return None


def _declared(trial: Trial[Any]) -> str | None:
    """Refuse what looks like a parameter and is in no key: results with another value would pass for these."""
    cls = type(trial.method)
    fields = {f.name for f in dataclasses.fields(cls)}
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] == "robustfl" and cls.__module__.partition(".")[0] != "robustfl":
            break  # what the contract declares is no business of the plug-in
        for name, value in vars(owner).items():
            known = name in fields or name in inspect.get_annotations(owner) or name in vars(Method)
            if name.startswith("_") or known:
                continue
            if isinstance(value, dataclasses.Field):
                raise Broken(
                    f"{name} = param(...) has no type, so it is no parameter; write {name}: float = param(...)"
                )
            came_later = owner is cls and f"{cls.__qualname__}.{name}" not in trial.kept  # a matter of "no memory"
            if is_plain(value) and value is not None and not came_later:
                raise Broken(
                    f"{name} = {value!r} is no parameter and in no key; write {name}: {type(value).__name__} = "
                    f"param({value!r}), or {name}: ClassVar[{type(value).__name__}] for a constant"
                )
    made = sorted(k for k in vars(trial.method) if k not in fields and not k.startswith("_") and not hasattr(cls, k))
    return f"fact: __post_init__ makes {', '.join(made)} of them" if made else None


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
        raise Differs("two calls with generators in the same state gave different results; draw from generator only")
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
        raise Differs("the result depends on the seeds of global generators; draw from generator only")
    return None


def _no_global_settings(trial: Trial[Any]) -> str | None:
    with restored() as before:
        trial.outcome(trial.fresh())
        changed_by_it = ", ".join(before.settings())
    if changed_by_it:
        raise Broken(f"a call changed {changed_by_it}; put back what you change (with torch.no_grad(): ...)")
    return None


def _no_memory(trial: Trial[Any]) -> str | None:
    first, other = trial.outcome(trial.method), ""
    for i in range(4):
        trial.outcome(trial.fresh(), 1)
        if not other and not same(trial.outcome(trial.fresh()), first):
            other = f"a new instance gave another result on call {2 * i + 3} than on the first"
    moved = changed(trial.kept, held(trial.method))
    if moved:
        raise Broken(f"a call changed {', '.join(moved)}; methods have no memory")
    if other:
        raise Differs(f"{other}: something is kept between calls; state goes in and out by arguments and results")
    return None


_PATIENCE = 5.0  # seconds spent on looking for parameters without effect


def _matter(trial: Trial[Any]) -> str | None:
    """Facts only: a small input may well not show what a parameter does."""
    start, idle = time.perf_counter(), []
    first = [trial.outcome(trial.fresh(), case) for case in (0, 1)]
    for field in dataclasses.fields(trial.method):
        others = list(_other_values(trial.method, field))
        if time.perf_counter() - start > _PATIENCE:
            return "fact: not all looked at, they take long"
        if others and not any(_differs(trial, field.name, value, first) for value in others):
            idle.append(field.name)
    return f"fact: no effect seen of {', '.join(idle)}" if idle else None


def _differs(trial: Trial[Any], name: str, value: Any, first: list[tuple[Tensor, ...]]) -> bool:
    """True if a value changes what comes out; one that is refused says that it is looked at."""
    try:
        other = dataclasses.replace(trial.method, **{name: value})
        facts = [[getattr(m, p) for p in _properties(m)] for m in (trial.method, other)]
        return facts[0] != facts[1] or any(not same(trial.outcome(other, case), first[case]) for case in (0, 1))
    except Exception:
        return True


def _properties(method: Method) -> list[str]:
    return sorted({n for c in type(method).__mro__ for n, v in vars(c).items() if isinstance(v, property)})


def _other_values(method: Any, field: dataclasses.Field[Any]) -> list[Any]:
    """Values of a parameter beside its own, as far as one can be made up."""
    value = getattr(method, field.name)
    choices = [c for c in field.metadata.get("choices") or () if c != value]
    if choices or isinstance(value, bool):
        return choices or [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 3 * value]
    return [value * 0.5, value * 2, value + 0.25] if isinstance(value, float) else []


def _terminates(trial: Trial[Any]) -> str | None:
    start = time.perf_counter()
    trial.outcome(trial.fresh())
    return f"{time.perf_counter() - start:.2g} s"


FIRST = (Law("runs", "one call on small inputs ends in time without an error", _terminates),)
FORM = (
    Law("documented", "the class has a docstring", _documented),
    Law("parameters declared", "every parameter is a field with a type, and so in the key of a result", _declared),
    Law("written as text", "its spec, its pickle and its registry entry give the same method", _written),
)
COMMON = (
    *FORM,
    Law("finite", "finite inputs give finite results", _finite, waivable=True),
    Law("deterministic", "same generator state, same result", _deterministic),
    Law("no global randomness", "neither uses nor seeds a global generator", _no_global_randomness),
    Law("no global settings", "torch's default dtype, grad mode and the like are as before", _no_global_settings),
    Law("no memory", "nothing is kept between calls, in instances, classes or modules", _no_memory),
    Law("parameters matter", "a fact: the parameters that change nothing on these small inputs", _matter),
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
