"""Pickles from outside, of which only plain arrays, numbers, texts, tuples, lists and dicts are admitted.

While a pickle is read nothing of numpy's runs: a damaged one could make its own loaders write past their memory. What
it says about arrays is only noted, and made into arrays, with checks, afterwards.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from robustfl.data.checks import Array
from robustfl.errors import UsageError, reason

_KINDS = re.compile(r"[biufSUO]\d{0,6}")


class _Note:
    """One object of a pickle: the arguments it is made with and the state it is then given."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def made(self, reader: _Made) -> Any:  # noqa: ARG002 - others read their parts with it
        raise ValueError("it holds a name where a value is expected")


class _Dtype(_Note):
    __slots__ = ()

    def made(self, reader: _Made) -> np.dtype[Any]:  # noqa: ARG002 - others read their parts with it
        text = self.arguments[0]
        if not isinstance(text, str) or not _KINDS.fullmatch(text) or any(self.state[2:5]):
            raise ValueError(f"it holds an array of {text!r}; numbers and texts are admitted")
        order = self.state[1] if self.state else "="
        return np.dtype(text if order not in ("<", ">") else f"{order}{text}")


class _Array(_Note):
    """``_reconstruct`` with the state (version, shape, dtype, in Fortran's order, content)."""

    __slots__ = ()

    def made(self, reader: _Made) -> Array:
        shape, dtype, fortran, content = self.state[-4:]
        return _array(reader, content, dtype, shape, "F" if fortran else "C")


class _Buffer(_Note):
    """An array as protocol 5 stores it: content, dtype, shape, order."""

    __slots__ = ()

    def made(self, reader: _Made) -> Array:
        content, dtype, shape, order = self.arguments
        return _array(reader, content, dtype, shape, order)


class _Scalar(_Note):
    __slots__ = ()

    def made(self, reader: _Made) -> Any:
        dtype, content = self.arguments
        return _array(reader, content, dtype, (1,), "C")[0]


class _Encoded(_Note):
    """Bytes as protocols before 3 store them."""

    __slots__ = ()

    def made(self, reader: _Made) -> bytes:  # noqa: ARG002 - others read their parts with it
        text, encoding = self.arguments
        if encoding != "latin1":
            raise ValueError(f"it holds a text in {encoding!r}")
        content: bytes = text.encode("latin1")
        return content


def _array(reader: _Made, content: Any, dtype: Any, shape: Any, order: str) -> Array:
    kind, content = reader(dtype), reader(content)
    reader.spend(len(content))
    if not isinstance(kind, np.dtype) or not isinstance(shape, tuple) or order not in ("C", "F"):
        raise ValueError("it holds an array of an unknown form")
    if kind.hasobject:
        flat = np.empty(len(content), dtype=object)
        for place, value in enumerate(content):
            flat[place] = value
    else:  # a pickle of Python 2 has its bytes in a text
        flat = np.frombuffer(content.encode("latin1") if isinstance(content, str) else bytes(content), dtype=kind)
    return flat.reshape(shape, order="F" if order == "F" else "C").copy()


class _Made:
    """Turns notes into values, every part once however often it is referred to: few bytes may name one part often."""

    def __init__(self, size: int) -> None:
        self._known: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no identity is given twice
        self._left = 2 * size

    def spend(self, count: int) -> None:
        """Arrays may not have more bytes than the file, which names one content once."""
        self._left -= count
        if self._left < 0:
            raise ValueError("its arrays have more bytes than the file")

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, (_Note, list, tuple, dict)):
            return value
        if id(value) not in self._known:
            self._kept.append(value)
            self._known[id(value)] = _UNDER_WAY
            self._known[id(value)] = self._new(value)
        if self._known[id(value)] is _UNDER_WAY:
            raise ValueError("it holds a part that holds itself")
        return self._known[id(value)]

    def _new(self, value: Any) -> Any:
        if isinstance(value, _Note):
            return value.made(self)
        if isinstance(value, dict):
            return {self(k): self(v) for k, v in value.items()}
        return type(value)(self(v) for v in value)


_UNDER_WAY = object()


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


class _ArraysOnly(pickle._Unpickler):
    """In Python, because here keys can be looked at before they are hashed: that of nested tuples may take forever."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        place = re.sub(r"^numpy\._?core\.", "numpy.*.", module)
        if f"{place} {name}" not in _ADMITTED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, and only arrays are admitted")
        return _Name(_ADMITTED[f"{place} {name}"])


def _refused(reader: Any) -> None:  # noqa: ARG001 - the signature of an opcode
    raise pickle.UnpicklingError("it holds a set, and only arrays are admitted")


def _keyed(load: Callable[[Any], None], first: Callable[[Any], list[Any]]) -> Callable[[Any], None]:
    def checked(reader: Any) -> None:
        if not all(isinstance(key, (str, bytes, int, float, _Note)) for key in first(reader)):
            raise pickle.UnpicklingError("it holds a key that is no text or number")
        load(reader)

    return checked


for _code in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
    _ArraysOnly.dispatch[_code[0]] = _refused
_ArraysOnly.dispatch[pickle.SETITEM[0]] = _keyed(
    _ArraysOnly.dispatch[pickle.SETITEM[0]], lambda reader: reader.stack[-2:-1]
)
for _code in (pickle.SETITEMS, pickle.DICT):  # the items since the mark are the whole stack
    _ArraysOnly.dispatch[_code[0]] = _keyed(_ArraysOnly.dispatch[_code[0]], lambda reader: reader.stack[::2])


def read_pickle(path: Path) -> Any:
    """The content of a pickle of arrays. Raises ``UsageError`` for anything else, before any of it runs."""
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            return _Made(about.st_size)(_ArraysOnly(file, encoding="latin1").load())
    except Exception as error:  # a foreign or damaged pickle may raise anything
        raise UsageError(f"{path} is no pickle of arrays: {reason(error)}") from None
