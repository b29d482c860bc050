"""The laws of all methods."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import random
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Method
from robustfl.errors import Refused, UsageError
from robustfl.parameters import is_plain
from robustfl.randomness import stream
from robustfl.registry import create, describe, lookup
from robustfl.testing.suite import DOUBLE, Broken, Law, Trial
from robustfl.torch_settings import Snapshot

D = 6
_DEVICES = ["cpu"] + (["cuda:0"] if torch.cuda.is_available() else [])
_FORMS = [torch.empty(0, dtype=t, device=d) for d in _DEVICES for t in (torch.float64, torch.float32)]


def rows(n: int, like: Tensor = DOUBLE, seed: int = 0) -> Tensor:
    """Rows that scatter by one around (1, 2, …, D), the same numbers in every dtype."""
    noise = torch.randn(n, D, generator=stream(seed, "check", n), dtype=torch.float64)
    return (noise + torch.arange(1, D + 1)).float().to(like)


def _runs(trial: Trial) -> str | None:
    """Calls on small inputs end in time without an error."""
    start = time.perf_counter()
    for case in (0, 1):
        trial.outcome(case=case)
    return f"{time.perf_counter() - start:.2g} s"


def _no_side_effects(trial: Trial) -> str | None:
    """Global generators, torch's settings, instance, class and module are as before a call."""
    before, python = Snapshot(), random.getstate()
    for case in (0, 1):
        trial.outcome(trial.method, case)
    settings, after = before.settings(), held(trial.method)
    used = {*before.generators()} | ({"random"} if random.getstate() != python else set())
    if used:
        raise Broken(f"the global generator of {', '.join(sorted(used))} was used or seeded; draw from generator only")
    if settings:
        raise Broken(f"a call changed {', '.join(settings)}; put back what you change (with torch.no_grad(): ...)")
    moved = sorted(k for k in trial.before.keys() | after.keys() if trial.before.get(k) != after.get(k))
    if moved:
        raise Broken(f"a call changed {', '.join(moved)}; state goes in and out by arguments and results")
    return None


_DATA = (
    bool, int, float, str, bytes, list, dict, set, tuple, Tensor, np.ndarray, torch.Generator, random.Random,
    np.random.Generator,
)  # fmt: skip


def held(method: Method) -> dict[str, str]:
    """The data that the instance, its class and its module hold by name, as text that shows whether it changes."""
    cls = type(method)
    spaces = {"the instance's ": vars(method), f"{cls.__qualname__}.": vars(cls)}
    if cls.__module__ in sys.modules:
        spaces[f"{cls.__module__}."] = vars(sys.modules[cls.__module__])
    found = {space + name: value for space, names in spaces.items() for name, value in names.items()}
    return {k: _text(v) for k, v in found.items() if isinstance(v, _DATA) and not k.rpartition(".")[2].startswith("__")}


def _text(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return repr(value.getstate())
    return f"{value._version} {value}" if isinstance(value, Tensor) else repr(value)


def _deterministic(trial: Trial) -> str | None:
    """The same generator state gives the same result, whatever global generators are at."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        results.append(trial.outcome())
    if not same(*results):
        raise Broken(
            "two calls with generators in the same state gave different results; draw from generator only, and keep "
            "nothing between calls"
        )
    return None


def same(once: tuple[Tensor, ...], again: tuple[Tensor, ...]) -> bool:
    """True if two outcomes are equal bit for bit; NaN equals NaN."""
    return len(once) == len(again) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(nan=7e7), b.nan_to_num(nan=7e7))
        for a, b in zip(once, again, strict=True)
    )


def _form(trial: Trial) -> str | None:
    """Results have the shape asked for, and the inputs' dtype and device."""
    refused = {name for like in _FORMS for name in _every_case(trial, like=like, form=True)}
    return f"refused: {', '.join(sorted(refused))}" if refused else " and ".join(_DEVICES)


def _inputs(trial: Trial) -> str | None:
    """What a call is shown is neither written to nor handed back."""
    _every_case(trial, inputs=True)
    return None


def _every_case(trial: Trial, **checks: Any) -> list[str]:
    """Look at the results of all cases; the names of those that are refused."""
    refused = []
    for case, (name, may_refuse) in enumerate([("", False), ("", False), *trial.suite.more.items()]):
        try:
            trial.outcome(case=case, **checks)
        except (Refused, UsageError):
            if not may_refuse:
                raise
            refused.append(name)
    return refused


def _documented(trial: Trial) -> str | None:
    """The class has a docstring."""
    doc = (type(trial.method).__doc__ or "").strip()
    if not doc or doc.startswith(f"{type(trial.method).__name__}("):  # what dataclasses write when nobody does
        raise Broken("the class has no docstring; `robustfl show` prints its first line and formula")
    return None


def _declared(trial: Trial) -> str | None:
    """Every parameter is a field with a type, and so in the key of a result."""
    cls = type(trial.method)
    fields = {f.name for f in dataclasses.fields(cls)}
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] == "robustfl" and cls.__module__.partition(".")[0] != "robustfl":
            break  # what the contract declares is no business of the plug-in
        for name, value in vars(owner).items():
            if name.startswith("_") or name in {*fields, *inspect.get_annotations(owner), *vars(Method)}:
                continue
            if isinstance(value, dataclasses.Field):
                raise Broken(
                    f"{name} = param(...) has no type, so it is no parameter; write {name}: float = param(...)"
                )
            if is_plain(value) and value is not None:
                raise Broken(
                    f"{name} = {value!r} is no parameter and in no key; write {name}: {type(value).__name__} = "
                    f"param({value!r}), or {name}: ClassVar[{type(value).__name__}] for a constant"
                )
    return None


def _written(trial: Trial) -> str | None:
    """Its spec, its pickle and its registry entry give the same method."""
    method = trial.method
    found = lookup(method.kind, method.name)
    if found.cls is not type(method):
        raise Broken(f"{method.kind} {method.name!r} is {found.cls.__module__}.{found.cls.__qualname__}")
    text = describe(method)
    if create(method.kind, text) != method:
        raise Broken(f"{text!r} does not build the method again")
    if pickle.loads(pickle.dumps(method)) != method or hash(method) != hash(create(method.kind, text)):
        raise Broken("it comes back from pickle as another method; workers of a grid receive pickles")
    return None


def _finite(trial: Trial) -> str | None:
    """Finite inputs give finite results."""
    for part in trial.outcome() + trial.outcome(case=1):
        if not bool(torch.isfinite(part).all()):
            kinds = "NaN" if bool(torch.isnan(part).any()) else "infinite entries"
            raise Broken(f"the result has {kinds} where everything shown was finite")
    return None


def _precise(trial: Trial) -> str | None:
    """float32 agrees with float64."""
    single, exact = (trial.outcome(case=1, like=like) for like in (DOUBLE.float(), DOUBLE))
    error = max(float((a.double() - b.double()).abs().max()) for a, b in zip(single, exact, strict=True))
    if not error <= 1e-4:
        raise Broken(f"float32 and float64 differ by {error:.2g} on the same numbers")
    return None


TEXTS = (
    Law("documented", _documented), Law("parameters declared", _declared), Law("written as text", _written),
)  # fmt: skip
PRECISION = Law("precision", _precise, waivable=True)


def laws_of(*own: Law, without: tuple[str, ...] = ()) -> tuple[Law, ...]:
    """The laws of all methods with those of a kind, but ``without`` some."""
    found = (
        Law("runs", _runs, stops=True),
        Law("no side effects", _no_side_effects, stops=True),
        Law("deterministic", _deterministic, stops=True),
        Law("shape, dtype and device", _form),
        Law("inputs untouched", _inputs),
        Law("finite", _finite, waivable=True),
        *own,
        *TEXTS,
    )
    return tuple(law for law in found if law.name not in without)


def check_pixels(x: Tensor, what: str) -> None:
    """Raise ``Broken`` unless all pixels lie in [0, 1]."""
    if x.numel() and not (float(x.min()) >= 0.0 and float(x.max()) <= 1.0):
        raise Broken(f"{what} pixels reach from {float(x.min()):g} to {float(x.max()):g}, not in [0, 1]")


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
