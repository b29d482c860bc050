"""Classes written in a notebook, at a prompt or in a script: where their text is, or what they contain without one."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from robustfl.beside import digests_of

MAIN = "__main__"
_PLAIN = (str, bytes, int, float, complex, type(None), type(Ellipsis))
# Written by Python, dataclasses and @register; fields and bases are told apart from them.
_SKIPPED = {
    "__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__firstlineno__", "__static_attributes__",
    "name", "version",
}  # fmt: skip


class _Seen(set[int]):
    """The objects that were taken apart, and the digests of the modules of no installed package that they use."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: dict[str, str] = {}


def written_here(cls: type) -> bool:
    """True if a class belongs to the main program: a script, a notebook or a prompt."""
    return cls.__module__ == MAIN


def script_of(cls: type) -> Path | None:
    """The file that a class of the main program was written in; ``None`` for a notebook or a prompt."""
    names = {f.__code__.co_filename for f in map(_function, vars(cls).values()) if f and f.__module__ == MAIN}
    files = [Path(name) for name in names - {"<string>"} if Path(name).is_file()]
    return files[0] if len(files) == 1 and len(names - {"<string>"}) == 1 else None


def content(cls: type) -> str:
    """A digest of a class: its fields, methods and bases, with every function, class and value of the main program
    that these use. The same text gives the same digest in every session of one version of Python."""
    digest, seen = hashlib.sha256(), _Seen()
    for word in _words(cls, seen):
        digest.update(word.encode("utf-8", "surrogatepass") + b"\0")
    for module, code in sorted(seen.beside.items()):
        digest.update(f"{module} {code}\0".encode())
    return digest.hexdigest()


def beside_of(cls: type) -> dict[str, str]:
    """By name the digests of the modules of no installed package that a class of the main program uses."""
    seen = _Seen()
    list(_words(cls, seen))
    return seen.beside


def _function(value: Any) -> FunctionType | None:
    """The function behind a method, a property or a decorated function."""
    for attribute in ("__func__", "fget", "func", "__wrapped__"):
        value = getattr(value, attribute, None) or value
    return value if isinstance(value, FunctionType) else None


def _words(value: Any, seen: _Seen) -> Iterator[str]:
    """The parts that make up a value, in an order that does not depend on the session."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
        seen.beside |= digests_of(value.__name__)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} of {len(value)}"
        for item in value:
            yield from _words(item, seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(" ".join(_words(item, seen)) for item in value)
    elif isinstance(value, Mapping):
        yield from sorted(f"{key!r}: {' '.join(_words(item, seen))}" for key, item in value.items())
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"tensor {value.dtype} {tuple(value.shape)}"
        yield from _words(flat.view(torch.uint8).numpy(), seen)
    elif id(value) not in seen:
        seen.add(id(value))
        yield from _of_code(value, seen)


def _of_code(value: Any, seen: _Seen) -> Iterator[str]:
    if isinstance(value, CodeType):
        yield f"code {value.co_code.hex()} {value.co_exceptiontable.hex()}"
        yield f"{value.co_names} {value.co_varnames} {value.co_freevars} {value.co_flags}"
        yield from _words(value.co_consts, seen)
    elif isinstance(value, type):
        yield from _of_class(value, seen)
    elif isinstance(value, (property, classmethod, staticmethod, cached_property, partial)):
        yield type(value).__name__
        parts = ("fget", "fset", "__func__", "func", "args", "keywords")
        yield from _words([getattr(value, part, None) for part in parts], seen)
    elif isinstance(value, FunctionType):
        yield from _of_function(value, seen)
    elif hasattr(value, "__wrapped__"):
        yield from _words(value.__wrapped__, seen)
    elif isinstance(value, torch.nn.Module):
        yield repr(value)
        yield from _words([type(value), value.state_dict()], seen)
    elif dataclasses.is_dataclass(value):
        yield from _words(type(value), seen)
        yield from _words({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, seen)
    else:
        yield from _words(type(value), seen)
        yield _pickled(value)


def _of_class(cls: type, seen: _Seen) -> Iterator[str]:
    yield f"class {cls.__module__}.{cls.__qualname__}"
    if not written_here(cls):
        seen.beside |= digests_of(cls.__module__)
        return
    yield from _words(cls.__bases__, seen)
    for field in vars(cls).get("__dataclass_fields__", {}).values():
        yield f"field {field.name}: {field.type}"
        yield from _words([field.default, field.default_factory, field.metadata], seen)
    yield from _words({key: item for key, item in vars(cls).items() if key not in _SKIPPED}, seen)


def _of_function(function: FunctionType, seen: _Seen) -> Iterator[str]:
    yield f"function {function.__module__}.{function.__qualname__}"
    if function.__module__ != MAIN:
        seen.beside |= digests_of(function.__module__ or "")
        return
    yield from _words([function.__code__, function.__defaults__, function.__kwdefaults__], seen)
    yield from _words([_inside(cell) for cell in function.__closure__ or ()], seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield f"global {name}"
            yield from _words(function.__globals__[name], seen)


def _names(code: CodeType) -> set[str]:
    """The names that a function and those inside it look up."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _pickled(value: Any) -> str:
    """A digest of any other object; what cannot be pickled counts by its type alone."""
    try:
        return hashlib.sha256(pickle.dumps(value, protocol=5)).hexdigest()
    except Exception:  # whatever an object's own pickling raises
        return ""
