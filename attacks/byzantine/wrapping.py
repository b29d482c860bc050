"""The common part of attacks that wrap another one: building it, and taking over its facts."""

from __future__ import annotations

from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.registry import create, describe


def built(spec: str, wrapper: str) -> Attack:
    """The attack ``spec`` inside ``wrapper``; an error in it names both."""
    try:
        inner = create("attack", spec)
    except UsageError as error:
        raise UsageError(f"{wrapper}: attack={spec!r}: {error}") from error
    assert isinstance(inner, Attack)
    return inner


def adopt(wrapper: Attack, inner: Attack, *facts: str) -> None:
    """While ``wrapper`` is constructed: write the wrapped attack in its shortest form and take over its ``facts``."""
    object.__setattr__(wrapper, "attack", describe(inner))
    for fact in facts:
        object.__setattr__(wrapper, fact, getattr(inner, fact))
