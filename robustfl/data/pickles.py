"""Pickles from outside, of which only plain arrays, numbers, texts, tuples, lists and dicts are admitted.

While a pickle is read nothing of numpy's runs: a damaged one could make its own loaders write past their memory. What
it says about arrays is only noted, and made into arrays, with checks, afterwards.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.data.checks import Array
from robustfl.errors import UsageError

_KINDS = re.compile(r"[biufSUO]\d{0,6}")


class _Note:
    """What a pickle says about one thing: the arguments it is made with and the state it is then given."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def made(self) -> Any:
        raise ValueError("it holds a name where a value is expected")


class _Dtype(_Note):
    __slots__ = ()

    def made(self) -> np.dtype[Any]:
        text = self.arguments[0]
        if not isinstance(text, str) or not _KINDS.fullmatch(text) or any(self.state[2:5]):
            raise ValueError(f"it holds an array of {text!r}; numbers and texts are admitted")
        order = self.state[1] if self.state else "="
        return np.dtype(text if order not in ("<", ">") else f"{order}{text}")


class _Array(_Note):
    """``_reconstruct`` with the state (version, shape, dtype, in Fortran's order, content)."""

    __slots__ = ()

    def made(self) -> Array:
        shape, dtype, fortran, content = self.state[-4:]
        return _array(content, dtype, shape, "F" if fortran else "C")


class _Buffer(_Note):
    """An array as protocol 5 stores it: content, dtype, shape, order."""

    __slots__ = ()

    def made(self) -> Array:
        return _array(*self.arguments)


class _Scalar(_Note):
    __slots__ = ()

    def made(self) -> Any:
        dtype, content = self.arguments
        return _array(content, dtype, (1,), "C")[0]


class _Encoded(_Note):
    """Bytes as protocols before 3 store them."""

    __slots__ = ()

    def made(self) -> bytes:
        text, encoding = self.arguments
        if encoding != "latin1":
            raise ValueError(f"it holds a text in {encoding!r}")
        content: bytes = text.encode("latin1")
        return content


def _array(content: Any, dtype: Any, shape: Any, order: str) -> Array:
    kind, content = _made(dtype), _made(content)
    if not isinstance(kind, np.dtype) or not isinstance(shape, tuple) or order not in ("C", "F"):
        raise ValueError("it holds an array of an unknown form")
    if kind.hasobject:
        flat = np.empty(len(content), dtype=object)
        for place, value in enumerate(content):
            flat[place] = value
    else:  # a pickle of Python 2 has its bytes in a text
        flat = np.frombuffer(content.encode("latin1") if isinstance(content, str) else bytes(content), dtype=kind)
    return flat.reshape(shape, order="F" if order == "F" else "C").copy()


def _made(value: Any) -> Any:
    if isinstance(value, _Note):
        return value.made()
    if isinstance(value, (list, tuple)):
        return type(value)(_made(v) for v in value)
    if isinstance(value, dict):
        return {_made(k): _made(v) for k, v in value.items()}
    return value


_ADMITTED: dict[str, Callable[..., _Note]] = {
    "numpy ndarray": _Note,
    "numpy dtype": _Dtype,
    "numpy.*.multiarray _reconstruct": _Array,
    "numpy.*.multiarray scalar": _Scalar,
    "numpy.*.numeric _frombuffer": _Buffer,
    "_codecs encode": _Encoded,
}


class _Name:
    """A name in a pickle; an object without attributes, so that nothing can be hung on what it stands for."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[..., _Note]) -> None:
        self._note = note

    def __call__(self, *arguments: Any) -> _Note:
        return self._note(*arguments)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        place = re.sub(r"^numpy\._?core\.", "numpy.*.", module)
        if f"{place} {name}" not in _ADMITTED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, and only arrays are admitted")
        return _Name(_ADMITTED[f"{place} {name}"])


def read_pickle(path: Path) -> Any:
    """The content of a pickle of arrays. Raises ``UsageError`` for anything else, before any of it runs."""
    try:
        with open(path, "rb") as file:
            return _made(_ArraysOnly(file, encoding="latin1").load())
    except Exception as error:  # a foreign or damaged pickle may raise anything
        raise UsageError(f"{path} is no pickle of arrays: {error or type(error).__name__}") from None
