"""The laws of all methods, and the inputs that the laws of several kinds share."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import Method
from robustfl.errors import Refused, UsageError
from robustfl.parameters import is_plain
from robustfl.randomness import stream
from robustfl.registry import create, describe, lookup
from robustfl.testing.suite import DOUBLE, Law, Trial, demand
from robustfl.torch_settings import Snapshot

D = 6
_DEVICES = ["cpu"] + (["cuda:0"] if torch.cuda.is_available() else [])
_FORMS = [torch.empty(0, dtype=t, device=d) for d in _DEVICES for t in (torch.float64, torch.float32)]


def normal(*shape: int, like: Tensor = DOUBLE, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same in every dtype and on every device."""
    return torch.randn(*shape, generator=stream(seed, "check", *shape), dtype=torch.float64).float().to(like)


def uniform(*shape: int, like: Tensor = DOUBLE, seed: int = 0) -> Tensor:
    """Pixels in [0, 1), the same in every dtype and on every device."""
    return torch.rand(*shape, generator=stream(seed, "pixels"), dtype=torch.float64).float().to(like)


def rows(n: int, like: Tensor = DOUBLE, seed: int = 0) -> Tensor:
    """Rows that scatter by one around (1, 2, …, D)."""
    return normal(n, D, like=like, seed=seed) + torch.arange(1, D + 1).to(like)


def network(layers: Callable[[], nn.Sequential], like: Tensor = DOUBLE) -> nn.Sequential:
    """A network with drawn parameters; its constructors draw from the global generator, which is put back."""
    with torch.random.fork_rng(devices=[]):
        made = layers()
    for i, parameter in enumerate(made.parameters()):
        nn.init.normal_(parameter.data, std=0.5, generator=stream(i, "weights"))
    return made.to(like)


def demand_rowwise(function: Callable[[Tensor], Tensor], x: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Raise ``Broken`` with ``what`` and by how much unless a batch's results are those of its rows alone."""
    together, alone = function(x), torch.cat([function(row) for row in torch.split(x, 1)])
    off = float((together - alone).abs().max())
    demand(off <= tolerance * max(1.0, float(alone.abs().max())), f"{what} (it moves by up to {off:.2g})")


def _runs(trial: Trial) -> str:
    """Calls on small inputs end in time without an error."""
    start = time.perf_counter()
    for case in (0, 1):
        trial.outcome(case)
    return f"{time.perf_counter() - start:.2g} s"


def _no_side_effects(trial: Trial) -> None:
    """Global generators, torch's settings, instance, class and module are as before a call."""
    before, python = Snapshot(), random.getstate()
    for case in (0, 1):
        trial.outcome(case, renew=False)
    settings, after = before.settings(), held(trial.method)
    used = ", ".join(sorted({*before.generators()} | ({"random"} if random.getstate() != python else set())))
    demand(not used, f"the global generator of {used} was used or seeded; draw from generator only")
    put_back = f"a call changed {', '.join(settings)}; put back what you change (with torch.no_grad(): ...)"
    demand(not settings, put_back)
    moved = ", ".join(sorted(k for k in trial.before.keys() | after.keys() if trial.before.get(k) != after.get(k)))
    demand(not moved, f"a call changed {moved}; state goes in and out by arguments and results")


_STATES: dict[type, Callable[[Any], Any]] = {
    torch.Generator: lambda generator: generator.get_state().tolist(),
    np.random.Generator: lambda generator: generator.bit_generator.state,
    random.Random: lambda generator: generator.getstate(),
    Tensor: lambda tensor: (tensor._version, tensor),
}
_DATA = (bool, int, float, str, bytes, list, dict, set, tuple, np.ndarray, *_STATES)


def held(method: Method) -> dict[str, str]:
    """The data that the instance, its class and its module hold by name, as text that shows whether it changes."""
    cls = type(method)
    spaces = {"the instance's ": vars(method), f"{cls.__qualname__}.": vars(cls)}
    if cls.__module__ in sys.modules:
        spaces[f"{cls.__module__}."] = vars(sys.modules[cls.__module__])
    found = {space + name: value for space, names in spaces.items() for name, value in names.items()}
    data = {k: v for k, v in found.items() if isinstance(v, _DATA) and not k.rpartition(".")[2].startswith("__")}
    return {k: repr(next((s(v) for c, s in _STATES.items() if isinstance(v, c)), v)) for k, v in data.items()}


def _deterministic(trial: Trial) -> None:
    """The same generator state gives the same result, whatever global generators are at."""
    results = []
    for seed in (1, 2):
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(seed)
        results.append(trial.outcome())
    demand(
        same(*results),
        "two calls with generators in the same state gave different results; draw from generator only, and keep "
        "nothing between calls",
    )


def same(once: tuple[Tensor, ...], again: tuple[Tensor, ...]) -> bool:
    """True if two outcomes are equal bit for bit; NaN equals NaN."""
    return len(once) == len(again) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(nan=7e7), b.nan_to_num(nan=7e7))
        for a, b in zip(once, again, strict=True)
    )


def _form(trial: Trial) -> str:
    """Results have the shape asked for, and the inputs' dtype and device."""
    refused = {name for like in _FORMS for name in _every_case(trial, like=like, form=True)}
    return f"refused: {', '.join(sorted(refused))}" if refused else " and ".join(_DEVICES)


def _inputs(trial: Trial) -> None:
    """What a call is shown is neither written to nor handed back."""
    _every_case(trial, inputs=True)


def _every_case(trial: Trial, **checks: Any) -> list[str]:
    """Look at the results of all cases; the names of those that are refused."""
    refused = []
    for case, (name, may_refuse) in enumerate([("", False), ("", False), *trial.suite.more.items()]):
        try:
            trial.outcome(case, **checks)
        except (Refused, UsageError):
            if not may_refuse:
                raise
            refused.append(name)
    return refused


def _finite(trial: Trial) -> None:
    """Finite inputs give finite results."""
    for part in trial.outcome() + trial.outcome(1):
        kinds = "NaN" if bool(torch.isnan(part).any()) else "infinite entries"
        demand(torch.isfinite(part).all(), f"the result has {kinds} where everything shown was finite")


def _precise(trial: Trial) -> None:
    """float32 agrees with float64."""
    single, exact = (trial.outcome(1, like=like) for like in (DOUBLE.float(), DOUBLE))
    error = max(float((a.double() - b.double()).abs().max()) for a, b in zip(single, exact, strict=True))
    demand(error <= 1e-4, f"float32 and float64 differ by {error:.2g} on the same numbers")


def _documented(trial: Trial) -> None:
    """The class has a docstring."""
    doc, made = (type(trial.method).__doc__ or "").strip(), f"{type(trial.method).__name__}("  # as dataclasses write it
    missing = not doc or doc.startswith(made)
    demand(not missing, "the class has no docstring; `robustfl show` prints its first line and formula")


def _declared(trial: Trial) -> None:
    """Every parameter is a field with a type, and so in the key of a result."""
    cls = type(trial.method)
    fields = {f.name for f in dataclasses.fields(cls)}
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] == "robustfl" and cls.__module__.partition(".")[0] != "robustfl":
            break  # what the contract declares is no business of the plug-in
        declared = {*fields, *inspect.get_annotations(owner), *vars(Method)}
        for name, value in vars(owner).items():
            if name.startswith("_") or name in declared:
                continue
            typed = f"{name} = param(...) has no type, so it is no parameter; write {name}: float = param(...)"
            demand(not isinstance(value, dataclasses.Field), typed)
            kind = type(value).__name__
            demand(
                not is_plain(value) or value is None,
                f"{name} = {value!r} is no parameter and in no key; write {name}: {kind} = param({value!r}), or "
                f"{name}: ClassVar[{kind}] for a constant",
            )


def _written(trial: Trial) -> None:
    """Its spec, its pickle and its registry entry give the same method."""
    method = trial.method
    cls, text = lookup(method.kind, method.name).cls, describe(method)
    demand(cls is type(method), f"{method.kind} {method.name!r} is {cls.__module__}.{cls.__qualname__}")
    again = create(method.kind, text)
    demand(again == method, f"{text!r} does not build the method again")
    sent = pickle.loads(pickle.dumps(method)) == method and hash(method) == hash(again)
    demand(sent, "it comes back from pickle as another method; workers of a grid receive pickles")


TEXTS = (
    Law("documented", _documented), Law("parameters declared", _declared), Law("written as text", _written),
)  # fmt: skip
PRECISION = Law("precision", _precise, waivable=True)
_ALL = (
    Law("runs", _runs, stops=True),
    Law("no side effects", _no_side_effects, stops=True),
    Law("deterministic", _deterministic, stops=True),
    Law("shape, dtype and device", _form),
    Law("inputs untouched", _inputs),
    Law("finite", _finite, waivable=True),
)


def laws_of(*own: Law, without: tuple[str, ...] = ()) -> tuple[Law, ...]:
    """The laws of all methods with those of a kind, but ``without`` some."""
    return tuple(law for law in (*_ALL, *own, *TEXTS) if law.name not in without)


def check_pixels(x: Tensor, what: str) -> None:
    """Raise ``Broken`` unless all pixels lie in [0, 1]."""
    low, high = (float(x.min()), float(x.max())) if x.numel() else (0.0, 1.0)
    demand(low >= 0.0 and high <= 1.0, f"{what} pixels reach from {low:g} to {high:g}, not in [0, 1]")
