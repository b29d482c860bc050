"""Attacks on normalization statistics: what is attacked, and that variances stay possible."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import robustfl
from robustfl.attacks import forge_statistics
from robustfl.attacks.byzantine.forged_statistics import forged_statistics
from robustfl.contracts import Rehearsal, View
from robustfl.errors import UsageError
from robustfl.randomness import stream

# One channel: a mean and a variance. Averages (3, 2).
HONEST = torch.tensor([[1.0, 1.0], [5.0, 3.0]], dtype=torch.float64)
VIEW = View(n=4, f=2, channel="statistics", honest=HONEST, variance=torch.tensor([False, True]))


def sent(spec: str, view: View = VIEW, **target: str) -> list[list[float]]:
    return forge_statistics(robustfl.attack(spec), view, generator=stream(0), **target).tolist()


@pytest.mark.parametrize(
    ("spec", "target", "expected"),
    [
        ("sf", "mean", [-3, 2]),
        ("sf", "var", [3, 0]),  # -2 would be no variance
        ("sf", "both", [-3, 0]),
        ("foe(eta=0.5)", "both", [1.5, 1]),
        ("alie(z=1)", "both", [3 - math.sqrt(8), 2 - math.sqrt(2)]),
        ("alie(z=2)", "var", [3, 0]),
    ],
)
def test_worked_example(spec: str, target: str, expected: list[float]) -> None:
    assert sent(spec, target=target) == [pytest.approx(expected)] * 2


def test_means_are_the_target_by_default() -> None:
    assert sent("sf") == sent("sf", target="mean")


def test_a_blind_attack_leaves_its_own_values_elsewhere() -> None:
    own = torch.tensor([[7.0, 0.5], [8.0, 0.25]], dtype=torch.float64)
    view = replace(VIEW, honest=None, own=own)
    assert sent("sf(mode=own)", view) == [[-7.0, 0.5], [-8.0, 0.25]]
    assert sent("gaussian(mu=-1, sigma=0)", view, target="both") == [[-1.0, 0.0]] * 2


@pytest.mark.parametrize(("name", "value"), [("inf", math.inf), ("nan", math.nan)])
def test_values_that_are_not_finite_are_sent_as_they_are(name: str, value: float) -> None:
    view = replace(VIEW, honest=None, own=HONEST)
    assert sent(name, view, target="both") == [pytest.approx([value, value], nan_ok=True)] * 2


def test_a_searched_attack_is_judged_by_rows_that_obey_the_same_rules() -> None:
    seen: list[torch.Tensor] = []

    def server(stack: torch.Tensor) -> torch.Tensor:
        seen.append(stack.clone())
        return stack.mean(0)

    (row, _) = sent("opt-foe(evals=4, search=linear)", replace(VIEW, aggregate=server))
    assert row == [3 - 70 * 3, 2]
    assert all(torch.equal(stack[:2], HONEST) for stack in seen)
    assert [stack[2:, 1].tolist() for stack in seen] == [[2.0, 2.0]] * 4
    assert [float(stack[2, 0]) for stack in seen] == [3, 3 - 10 * 3, 3 - 30 * 3, 3 - 70 * 3]


def test_unknown_targets_and_unmarked_variances_are_refused() -> None:
    with pytest.raises(UsageError, match="target='variance'"):
        sent("sf", target="variance")
    with pytest.raises(UsageError, match="mark its variances"):
        sent("sf", replace(VIEW, variance=None))
    with pytest.raises(UsageError, match="attackers' own rows"):
        sent("gaussian", replace(VIEW, honest=None))


def test_honest_statistics_are_not_written_to() -> None:
    before = HONEST.clone()
    sent("sf", target="both")
    assert torch.equal(HONEST, before)


def test_what_an_attack_remembers_is_handed_back_beside_valid_rows() -> None:
    view = replace(VIEW, honest=None, own=HONEST)
    first = forged_statistics(robustfl.attack("lazy"), view, target="both", generator=stream(0))
    later = replace(view, own=HONEST + 1, state=first.state, round=1)
    again = forged_statistics(robustfl.attack("lazy"), later, target="both", generator=stream(0))
    assert torch.equal(again.rows, HONEST)
    assert int(again.state["age"]) == 2


def test_a_general_search_is_judged_by_valid_rows_too() -> None:
    seen: list[torch.Tensor] = []

    def server(stack: torch.Tensor) -> torch.Tensor:
        seen.append(stack.clone())
        return stack.mean(0)

    row, _ = sent("opt(foe, evals=4, search=linear)", replace(VIEW, aggregate=server))
    assert row == [3 - 70 * 3, 2]
    assert all(stack[2:, 1].tolist() == [2.0, 2.0] for stack in seen)


@pytest.mark.parametrize("attack", ["opt-foe(evals=4)", "opt(foe, evals=4)"])
def test_a_search_measures_from_what_the_server_makes_of_honest_rows(attack: str) -> None:
    """A merge that adds 1000 to the mean: seen from the honest mean every lie would look like a step back."""

    def server(stack: torch.Tensor) -> torch.Tensor:
        return stack[2] + torch.tensor([1000.0, 0.0], dtype=torch.float64)

    told = replace(VIEW, aggregate=Rehearsal(server, origin=torch.tensor([1003.0, 2.0], dtype=torch.float64)))
    assert sent(attack, told)[0][0] < -100
