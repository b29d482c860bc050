"""What methods are given to call shows nothing of the engine behind it."""

from __future__ import annotations

from typing import Any

import pytest

from robustfl.sealed import Sealed


def within(value: Any) -> list[Any]:
    """Everything that attributes lead to from a value, without asking for frames."""
    found: list[Any] = []
    places = [value]
    while places:
        at = places.pop()
        if any(at is one for one in found) or isinstance(at, (str, int, float, type(None))):
            continue
        found.append(at)
        for name in (
            "__closure__",
            "__dict__",
            "__self__",
            "__func__",
            "__wrapped__",
            "args",
            "func",
            "keywords",
            "_send",
        ):
            inner = getattr(at, name, None)
            places += (
                list(inner.values())
                if isinstance(inner, dict)
                else list(inner)
                if isinstance(inner, tuple)
                else [inner]
            )
        if type(at).__name__ == "cell":
            places.append(at.cell_contents)
    return found


class Secret:
    """Something that methods must not get hold of."""


def test_nothing_leads_to_what_a_sealed_function_holds() -> None:
    secret = Secret()
    bare = lambda x: (secret, x)[1]  # noqa: E731
    assert any(one is secret for one in within(bare))
    sealed = Sealed(bare)
    assert sealed(3) == 3
    assert not any(isinstance(one, Secret) for one in within(sealed))


def test_it_answers_again_after_an_error_and_in_the_middle_of_another() -> None:
    def root(x: float, *, sign: int = 1) -> float:
        if x < 0:
            raise ValueError("negative")
        return sign * x**0.5

    sealed, outer = Sealed(root), Sealed(lambda x: sealed(x) + 1)
    with pytest.raises(ValueError, match="negative"):
        sealed(-1.0)
    assert (sealed(4.0), sealed(4.0, sign=-1), outer(9.0)) == (2.0, -2.0, 4.0)
