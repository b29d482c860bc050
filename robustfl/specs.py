"""Specs of methods: ``"foe(eta=2, mode=own)"`` to a name with values, and values back to text."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from fractions import Fraction
from typing import Any

from robustfl.errors import UsageError
from robustfl.file_io import unsafe

_DEEPEST = 16  # brackets in one spec
_BARE = re.compile(r"[a-z][a-z0-9.\-]*(\(.*\))?", re.DOTALL)


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """``"foe(eta=2, mode=own)"`` to ``("foe", {"eta": 2, "mode": "own"})``. Values: numbers, fractions, words.

    A bare method in the first place, as in ``"opt(alie(z=1), evals=5)"``, is the value of ``""``.
    """
    if not isinstance(spec, str):
        raise UsageError(f"a method is written as a text, 'name' or 'name(a=1)', not as {type(spec).__name__}")
    text = spec.strip()
    if unsafe(text):
        raise UsageError(f"{spec!r}: a method is written in one line without control characters")
    if max(itertools.accumulate(map(_opens, text), initial=0)) > _DEEPEST:
        raise UsageError(f"{spec[:60]!r} …: methods hold each other at most {_DEEPEST} deep")
    if "(" not in text:
        return text, {}
    name, _, rest = text.partition("(")
    if not rest.endswith(")"):
        raise UsageError(f"{spec!r}: a closing parenthesis is missing; write name(parameter=value, ...)")
    params: dict[str, Any] = {}
    for item in filter(str.strip, split_outside(rest[:-1], ",")):
        if not params and _BARE.fullmatch(item.strip()):
            params[""] = item.strip()
            continue
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"{spec!r}: {item!r} is not parameter=value")
        if key.strip() in params:
            raise UsageError(f"{spec!r}: {key.strip()} is given twice")
        params[key.strip()] = read_value(value.strip())
    return name.strip(), params


def _opens(letter: str) -> int:
    """1 for a bracket that opens, -1 for one that closes."""
    return (letter in "([{") - (letter in ")]}")


def split_outside(text: str, sign: str) -> list[str]:
    """The parts of a text between the signs outside brackets and quotes.

    >>> split_outside("nnm+worst(of='a+b')", "+")
    ['nnm', "worst(of='a+b')"]
    """
    parts, depth, start, quote = [], 0, 0, ""
    for i, letter in enumerate(text):
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
            continue
        depth += _opens(letter)
        if letter == sign and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def read_value(text: str) -> Any:
    """A Python literal, a fraction like ``8/255``, ``true``/``false``, or else the word itself."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "inf": float("inf")}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all of them: not a literal
        pass
    if re.fullmatch(r"\d+\s*/\s*\d+", text):
        with contextlib.suppress(ValueError, ArithmeticError):  # thousands of digits, a denominator of zero
            return float(Fraction(text.replace(" ", "")))
    return text


def write_value(value: Any) -> str:
    """Text that ``read_value`` reads back exactly."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    if isinstance(value, str) and read_value(value) == value and re.fullmatch(r"[\w./:~-]+", value):
        return value
    return repr(value)
