"""Hyper-parameters of methods: declared once on the dataclass field, checked at construction, printed by ``show``."""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from robustfl.errors import UsageError, closest, some, told

_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("≥", operator.ge),
    "gt": (">", operator.gt),
    "le": ("≤", operator.le),
    "lt": ("<", operator.lt),
}
_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", type(None): "none"}


def param(
    default: Any = dataclasses.MISSING,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[str, ...] | None = None,
    doc: str = "",
    later: bool = False,
) -> Any:
    """A dataclass field with its range. ``param(0.1, gt=0, le=1, doc="momentum of running statistics")``.

    A parameter that came ``later`` than its method's version is part of a cell's key only where it has another value
    than its default, so that older cells keep their keys.
    """
    bounds = {k: v for k, v in {"ge": ge, "gt": gt, "le": le, "lt": lt}.items() if v is not None}
    metadata = {"bounds": bounds, "choices": choices, "doc": doc, "later": later}
    return dataclasses.field(default=default, metadata=metadata)


def is_plain(value: Any) -> bool:
    """True if a value is one that a method's parameter may have: a number, a text, None, a list or tuple of these."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(v) for v in value)
    return value is None or type(value) in (bool, int, float, str)


def python_numbers(value: Any) -> Any:
    """``value`` with NumPy's scalars as the Python numbers they are, also in lists, tuples and tables."""
    if isinstance(value, Mapping):
        return {name: python_numbers(inner) for name, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(python_numbers, value))
    scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if scalar else value


_TYPES: dict[type, dict[str, Any]] = {}


def types_of(cls: type) -> dict[str, Any]:
    """The types of a class's fields, by name."""
    if cls not in _TYPES:
        try:
            _TYPES[cls] = typing.get_type_hints(cls)
        except Exception as error:  # annotations are code, which may raise anything
            raise UsageError(f"{cls.__name__}: the types of its fields cannot be read: {told(error)}") from None
    return _TYPES[cls]


def remember(cls: type, types: dict[str, Any]) -> None:
    """Take ``types`` for those of a class that came from another process, where its annotations can be read."""
    _TYPES[cls] = types


def allowed(field: dataclasses.Field[Any]) -> str:
    """The range of a field in words: ``> 0, ≤ 1`` or ``one of 'a', 'b'``."""
    if field.metadata.get("choices"):
        return "one of " + ", ".join(repr(c) for c in field.metadata["choices"])
    bounds: dict[str, float] = field.metadata.get("bounds", {})
    return ", ".join("finite" if math.isinf(v) else f"{_BOUNDS[k][0]} {v:g}" for k, v in bounds.items())


def check(method: Any) -> None:
    """Check and normalise every field of a frozen dataclass in its ``__post_init__``.

    Numbers may be given as strings like ``"8/255"``; integers are taken for floats, never the reverse; ``bool`` is
    no number. Raises ``UsageError`` naming class, field, value and what is allowed.
    """
    hints = types_of(type(method))
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        new = python_numbers(value)
        new = _coerce(type(method).__name__, field, hints[field.name], new)
        if new is not value:
            object.__setattr__(method, field.name, new)


def _coerce(owner: str, field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        found, new = _as(option, value)
        if found:
            _check_range(owner, field, new)
            return new
    kinds = " or ".join(_in_words(option) for option in options)
    within = allowed(field)
    if value is None and str in options and not within:  # the name of a method, perhaps
        within = "and the text is written 'none', in quotes"
    raise UsageError(f"{owner}: {field.name}={value!r} must be {kinds}" + (f", {within}" if within else ""))


def _in_words(option: Any) -> str:
    """A type as users write its values."""
    if typing.get_origin(option) is tuple:
        items = typing.get_args(option)
        if items[-1] is ...:
            return f"a list, each {_in_words(items[0])}"
        return f"a list of {len(items)}: {', '.join(map(_in_words, items))}"
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(option))
    return str(_WORDS.get(option, getattr(option, "__name__", option)))


def _as(option: Any, value: Any) -> tuple[bool, Any]:
    """True if ``value`` can be read as ``option``, with the value it becomes."""
    if option is bool or option is str:
        return type(value) is option, value
    if option is int:
        return type(value) is int, value
    if option is float:
        return _as_float(value)
    if typing.get_origin(option) is tuple:
        return _as_tuple(typing.get_args(option), value)
    if typing.get_origin(option) is typing.Literal:
        return any(type(value) is type(arg) and value == arg for arg in typing.get_args(option)), value
    return (isinstance(option, type) and isinstance(value, option)), value


def _as_float(value: Any) -> tuple[bool, Any]:
    try:
        if type(value) in (int, float):
            return True, float(value)
        if isinstance(value, str):
            text = value.replace(" ", "")
            number = float(Fraction(text)) if "/" in text else float(text)  # a Fraction of "1e999999999" takes forever
            return math.isfinite(number), number
    except (ValueError, ArithmeticError):
        pass
    return False, value


def _as_tuple(item_types: tuple[Any, ...], value: Any) -> tuple[bool, Any]:
    if not isinstance(value, (list, tuple)):
        return False, value
    wanted = item_types[:1] * len(value) if item_types[-1] is ... else item_types
    if len(wanted) != len(value):
        return False, value
    items = [_as(inner, v) for inner, v in zip(wanted, value, strict=True)]
    return all(ok for ok, _ in items), tuple(new for _, new in items)


def _check_range(owner: str, field: dataclasses.Field[Any], value: Any) -> None:
    choices = field.metadata.get("choices")
    if choices and value not in choices:
        raise UsageError(f"{owner}: {field.name}={value!r} is not allowed; {closest(str(value), choices)}")
    values = value if isinstance(value, tuple) else (value,)
    for v in values:
        if isinstance(v, float) and math.isnan(v):
            raise UsageError(f"{owner}: {field.name}={value!r} is not a number")
        for kind, bound in field.metadata.get("bounds", {}).items():
            if not _BOUNDS[kind][1](v, bound):
                raise UsageError(f"{owner}: {field.name}={value!r} must be {allowed(field)}")


def check_given(
    owner: str,
    cls: type[Any],
    params: Mapping[str, Any],
    *,
    having: Callable[[str], Sequence[str]] = lambda key: (),
) -> None:
    """Raise ``UsageError`` for a key of ``params`` that is no field of the class, and for one that it lacks.

    Where the class has no parameters at all, the message names those ``having`` that one.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in params:
        if key not in fields:
            others = [] if fields else having(key)
            words = f"{some(others)} {'has' if len(others) == 1 else 'have'} one" if others else closest(key, fields)
            raise UsageError(f"{owner}: no parameter {key!r}; {words}")
    for key, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and key not in params:
            raise UsageError(f"{owner}: parameter {key!r} is required")


def only_where(method: Any, holds: bool, words: str, *names: str, owner: str = "") -> None:
    """Refuse parameters ``names`` that are set although nothing reads them where ``holds`` is false.

    Raises ``UsageError`` naming the first that is not at its default, and the ``owner`` (the method's class).
    """
    if holds:
        return
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name in names and value != field.default:
            who = owner or type(method).__name__
            raise UsageError(f"{who}: {field.name}={value!r} changes nothing unless {words}")
