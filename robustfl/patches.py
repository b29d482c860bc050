"""Functions that all methods share, robustfl's own and torch's. Foreign code may call them, and not replace them.

What is put there would count for everybody's methods, and for what measures them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch

_MEMBERS = (FunctionType, property, classmethod, staticmethod)


@contextmanager
def unpatched() -> Iterator[list[str]]:
    """Within, anything may change; afterwards functions are as before, and the names of those that had changed told.

    Modules that nobody has imported before are not looked at.
    """
    before = [(owner, name, vars(owner).get(name)) for owner, name in _places()]
    ran = [_runs(value) for _, _, value in before]
    found: list[str] = []
    try:
        yield found
    finally:
        for (owner, name, value), runs in zip(before, ran, strict=True):
            if vars(owner).get(name) is not value or _runs(value) != runs:
                _put(owner, name, value, runs)
                found.append(f"{_called(owner)}.{name}")


def _places() -> Iterator[tuple[Any, str]]:
    """Modules and classes, each with the names of functions that it has, or inherits and would hide."""
    own = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "robustfl" and m is not None]
    for module in (*own, torch.nn.functional, torch.linalg):
        for name, value in list(vars(module).items()):
            if callable(value) or isinstance(value, ModuleType):
                yield module, name
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield from ((value, member) for member in _members(value))
    for name, value in vars(torch).items():
        if callable(value) and not isinstance(value, FunctionType):  # torch.compile wraps functions of Python's
            yield torch, name
    for cls in (torch.Tensor, torch.nn.Module):
        yield from ((cls, name) for name in dir(cls) if callable(getattr(cls, name)))


def _members(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name, value in vars(base).items() if isinstance(value, _MEMBERS)}


def _runs(value: Any) -> tuple[Any, ...]:
    """What a function runs, which can change while it stays the same object."""
    return (value.__code__, value.__defaults__) if isinstance(value, FunctionType) else ()


def _put(owner: Any, name: str, value: Any, runs: tuple[Any, ...]) -> None:
    if runs:
        value.__code__, value.__defaults__ = runs
    if value is None:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _called(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
