"""What methods are given to call shows nothing of the engine behind it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from robustfl.contracts import Context
from robustfl.contracts.attack import Rehearsal
from robustfl.randomness import stream
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


def test_it_keeps_nothing_of_a_call() -> None:
    sealed = Sealed(lambda x: x + 1)
    given, made = torch.zeros(3), None
    made = sealed(given)
    alive = [weakref.ref(given), weakref.ref(made)]
    del given, made
    gc.collect()
    assert [one() for one in alive] == [None, None]


def test_an_attacker_who_knows_the_defense_knows_no_more() -> None:
    secret = Secret()

    def run(rows: torch.Tensor, context: Context) -> torch.Tensor:
        assert secret is not None
        return rows.mean(0) + torch.rand(2, generator=context.generator)

    for generator in (None, stream(0, "defense")):
        if generator is None:
            rehearsal = Rehearsal.of(lambda rows, context: (secret, rows.mean(0))[1], Context())
        else:
            rehearsal = Rehearsal.of(run, Context(generator=generator))
            assert torch.equal(rehearsal(torch.ones(3, 2)), rehearsal(torch.ones(3, 2)))
        assert not any(isinstance(one, Secret) for one in within(rehearsal))
