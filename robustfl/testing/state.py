"""Global randomness, and what classes and modules could remember: digests of both, to be compared around a call."""

from __future__ import annotations

import gc
import hashlib
import io
import itertools
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PLAIN = (
    bool, int, float, str, bytes, list, dict, set, tuple, deque, itertools.count, Tensor, np.ndarray,
    torch.Generator, random.Random, np.random.Generator, np.random.RandomState,
)  # fmt: skip


_CACHE = type(cache(len))
_CACHED = ", cached at "


def random_state() -> dict[str, str]:
    """A digest of every global generator, in any thread: torch's (also CUDA's, once in use), numpy's and Python's."""
    state = {
        "torch": _digest(torch.get_rng_state()),
        "numpy": _digest(np.random.get_state()),
        "random": _digest(random.getstate()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["torch.cuda"] = _digest([torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())])
    return state


def kept_state(cls: type) -> dict[str, str]:
    """A digest of each piece of data that the class or its module could remember something in.

    Also what their functions hold in closures and defaults, and what objects of the module's own classes hold.
    """
    module = sys.modules.get(cls.__module__)
    spaces = {cls.__qualname__: vars(cls)} | ({} if module is None else {cls.__module__: vars(module)})
    found: dict[str, str] = {}
    for space, names in spaces.items():
        for name, value in list(names.items()):
            if not name.startswith("__"):
                for place, held in _held(f"{space}.{name}", value, cls.__module__, set()):
                    found[place] = _digest(held)
    return found


def _held(place: str, value: Any, module: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The data that a name of ``module`` leads to, by where it is held."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, _PLAIN):
        yield place, value
    elif isinstance(value, (FunctionType, _CACHE)):
        attributes = {k: v for k, v in vars(value).items() if not k.startswith("__")}
        if isinstance(value, _CACHE):
            attributes.pop("cache_parameters", None)  # functools' own
        yield place, attributes
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, _CACHE):
            yield from _kept_by_cache(place, value)
            value = value.__wrapped__
        if isinstance(value, FunctionType) and value.__module__ == module:
            for name, inner in _inside(value):
                yield from _held(f"{place}({name})", inner, module, seen)
    elif isinstance(value, type) and value.__module__ == module and id(value) not in seen:
        seen.add(id(value))
        for name, inner in list(vars(value).items()):
            if not name.startswith("__"):
                yield from _held(f"{place}.{name}", inner, module, seen)
    elif _keeps(value, module) and id(value) not in seen:
        seen.add(id(value))
        for name, inner in list(vars(value).items()):
            yield from _held(f"{place}.{name}", inner, module, seen)


def _kept_by_cache(place: str, cached: Any) -> Iterator[tuple[str, Any]]:
    """What a cached function holds that can be written to. Results that stay as they are make no memory."""
    found = gc.get_referents(cached)
    table = next((held for held, after in itertools.pairwise(found) if after is cached.__wrapped__), None)
    if cached.cache_info().maxsize is None:
        found = list(table.values()) if type(table) is dict else []
    for held in found:
        if held is not table and held is not vars(cached) and isinstance(held, _PLAIN):
            yield f"{place}{_CACHED}{id(held):#x}", held


def _keeps(value: Any, module: str) -> bool:
    """True for an object that keeps what it likes: of a class of ``module``, or a bare namespace."""
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__ == module or isinstance(value, SimpleNamespace)


def _inside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function holds by name: defaults, and the variables around it."""
    names, defaults = function.__code__.co_varnames, function.__defaults__ or ()
    yield from zip(names[function.__code__.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield name, cell.cell_contents


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The names whose digest differs, or that are in one of the two only; but a cache may hold more than before."""
    return sorted(
        k
        for k in before.keys() | after.keys()
        if before.get(k) != after.get(k) and (_CACHED not in k or (k in before and k in after))
    )


class _Pickler(pickle.Pickler):
    """Tensors by their content: torch's own pickles of equal tensors differ."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            value = value.get_state()
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
            return bytes, (flat.numpy().tobytes() + repr((value.dtype, tuple(value.shape))).encode(),)
        return NotImplemented


def _digest(value: Any) -> str:
    if isinstance(value, itertools.count):  # newer versions of Python warn when one is pickled
        return repr(value)
    sink = io.BytesIO()
    try:
        _Pickler(sink).dump(value)
        data = sink.getvalue()
    except Exception:  # what cannot be pickled still shows what it is
        data = repr(value).encode()
    return hashlib.sha256(data).hexdigest()
