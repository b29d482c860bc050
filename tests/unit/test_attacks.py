"""Byzantine attacks: hand-computed messages, the line search, the statistics channel, refusals."""

from __future__ import annotations

import dataclasses
import logging
import math

import pytest
import torch

import robustfl
from robustfl.attacks import forge_statistics, linear_search, supporters, z_max
from robustfl.contracts import View
from robustfl.errors import UsageError
from robustfl.randomness import stream

HONEST = torch.tensor([[1.0, -2.0], [2.0, 0.0], [6.0, 2.0]])  # mean (3, 0); deviations √7 and 2 (ddof 1)
OWN = torch.tensor([[1.0, 5.0], [-2.0, 0.0]])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sf", [-3.0, 0.0]),
        ("foe", [-6.0, 0.0]),
        ("foe(eta=0)", [3.0, 0.0]),
        ("foe(eta=2)", [-3.0, 0.0]),
        ("ipm", [-0.3, 0.0]),
        ("ipm(tau=2)", [-6.0, 0.0]),
        ("alie(z=2)", [3 - 2 * math.sqrt(7), -4.0]),
        ("alie(z=2, sign=1)", [3 + 2 * math.sqrt(7), 4.0]),
        ("alie(z=3, ddof=0)", [3 - 3 * math.sqrt(14 / 3), -3 * math.sqrt(8 / 3)]),
    ],
)
def test_all_attackers_send_the_vector_of_the_formula(spec: str, expected: list[float]) -> None:
    torch.testing.assert_close(robustfl.forge(spec, HONEST, f=2), torch.tensor([expected, expected]))


def test_sign_flipping_of_the_own_vector_sees_nobody_else() -> None:
    attack = robustfl.attack("sf", mode="own")
    assert (attack.knowledge, attack.needs_own) == ("blind", True)
    assert torch.equal(attack.forge(View(n=5, f=2, own=OWN), generator=stream(0)), -OWN)
    mean = robustfl.attack("sf")
    assert (mean.knowledge, mean.needs_own) == ("omniscient", False)


def test_gaussian_attackers_draw_independently_with_the_right_moments() -> None:
    rows = robustfl.forge("gaussian", torch.zeros(3, 20_000), f=2, mu=1, sigma=200)
    assert rows.mean().item() == pytest.approx(1, abs=5)
    assert rows.std().item() == pytest.approx(200, rel=0.02)
    assert abs(torch.corrcoef(rows)[0, 1].item()) < 0.05


def test_own_rows_default_to_the_honest_mean_in_the_convenience_call() -> None:
    assert torch.equal(robustfl.forge("none", HONEST, f=2), HONEST.mean(0).expand(2, -1))
    assert torch.equal(robustfl.forge("none", HONEST, f=2, own=OWN), OWN)


# --- a little is enough ----------------------------------------------------------------------------------------------


def test_the_factor_wins_just_enough_supporters() -> None:
    """n = 50, f = 24: two honest clients are needed; 24 of 26 lie below the shift, Φ(1.4261) = 24/26."""
    assert supporters(50, 24) == 2
    assert z_max(50, 24) == pytest.approx(1.4261, abs=1e-4)
    assert 0.5 * (1 + math.erf(z_max(50, 24) / math.sqrt(2))) == pytest.approx(24 / 26)


def test_a_negative_factor_counts_as_zero_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert z_max(10, 1) < 0
    rows = torch.randn(9, 4, generator=stream(0), dtype=torch.float64)
    with caplog.at_level(logging.INFO, logger="robustfl.attacks"):
        torch.testing.assert_close(robustfl.forge("alie", rows, f=1), rows.mean(0, keepdim=True))
    assert "z_max(n=10, f=1)=-0.1397" in caplog.text


def test_a_majority_of_attackers_still_gets_a_finite_factor() -> None:
    assert supporters(10, 8) == 1
    assert math.isfinite(z_max(10, 8))
    assert bool(torch.isfinite(robustfl.forge("alie", HONEST[:2], f=8)).all())


def test_one_honest_row_has_no_spread() -> None:
    assert torch.equal(robustfl.forge("alie", HONEST[:1], f=1, z=3), HONEST[:1])


# --- the line search -------------------------------------------------------------------------------------------------


def visited(distance, **settings: float) -> list[float]:
    path: list[float] = []

    def watched(eta: float) -> float:
        path.append(eta)
        return distance(eta)

    linear_search(watched, **settings)
    return path


def test_steps_double_until_the_first_failure_and_then_shrink_to_the_right_of_the_best() -> None:
    path = visited(lambda eta: -abs(eta - 35), evals=7)
    assert path == pytest.approx([0, 10, 30, 70, 30 + 32, 30 + 25.6, 30 + 20.48])


def test_a_success_while_contracting_moves_the_origin_but_the_step_keeps_shrinking() -> None:
    path = visited(lambda eta: min(eta, 8.5) if eta < 9 else 0.0, evals=5)
    assert path == pytest.approx([0, 10, 8, 8 + 6.4, 8 + 5.12])


def test_an_unbounded_distance_stops_at_the_cap_without_wasting_evaluations() -> None:
    path = visited(lambda eta: eta, eta_max=100)
    assert path == [0, 10, 30, 70, 100]
    assert linear_search(lambda eta: eta, eta_max=100) == (100, 100)


@pytest.mark.parametrize("worse", [math.nan, math.inf])
def test_a_non_finite_distance_is_no_success(worse: float) -> None:
    eta, reach = linear_search(lambda eta: worse if eta > 5 else eta)
    assert eta <= 5
    assert reach == eta


def test_the_number_of_evaluations_is_the_budget() -> None:
    assert len(visited(lambda eta: -eta, evals=20)) == 20
    assert len(visited(lambda eta: eta, evals=1)) == 1


def test_the_search_keeps_its_stack_and_rewrites_only_the_forged_rows() -> None:
    stacks: list[torch.Tensor] = []

    def aggregate(stack: torch.Tensor) -> torch.Tensor:
        assert torch.equal(stack[:3], HONEST)
        assert torch.equal(stack[3], stack[4])
        stacks.append(stack)
        return stack.mean(0)

    view = View(n=5, f=2, honest=HONEST, aggregate=aggregate)
    rows = robustfl.attack("opt-foe", eta_max=4).forge(view, generator=stream(0))
    assert len({stack.data_ptr() for stack in stacks}) == 1
    torch.testing.assert_close(rows, (1 - 4) * HONEST.mean(0).expand(2, -1))


@pytest.mark.parametrize("name", ["opt-foe", "opt-alie"])
@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "nnm+median"])
def test_the_searched_factor_hurts_the_rule_it_knows(name: str, rule: str) -> None:
    honest = 1 + torch.randn(8, 6, generator=stream(3), dtype=torch.float64)
    defense = robustfl.defense(rule)

    def damage(rows: torch.Tensor) -> float:
        return float((defense(torch.cat([honest, rows]), f=2) - honest.mean(0)).norm())

    searched = damage(robustfl.forge(name, honest, f=2, defense=defense))
    none = damage(honest.mean(0).expand(2, -1))
    assert searched > none
    if name == "opt-alie":
        assert searched >= damage(robustfl.forge("alie", honest, f=2))


# --- the statistics channel ------------------------------------------------------------------------------------------

VARIANCE = torch.tensor([False, True])
STATISTICS = View(n=3, f=1, channel="statistics", honest=torch.tensor([[2.0, 0.5], [4.0, 1.5]]), variance=VARIANCE)


@pytest.mark.parametrize(
    ("spec", "target", "expected"),
    [
        ("sf", "mean", [-3.0, 1.0]),
        ("sf", "both", [-3.0, 0.0]),
        ("sf", "var", [3.0, 0.0]),
        ("foe(eta=0.5)", "both", [1.5, 0.5]),
        ("alie(z=1)", "mean", [3 - math.sqrt(2), 1.0]),
        ("alie(z=1)", "both", [3 - math.sqrt(2), 1 - math.sqrt(0.5)]),
        ("alie(z=2)", "var", [3.0, 0.0]),
    ],
)
def test_statistics_outside_the_target_are_the_honest_average(spec: str, target: str, expected: list[float]) -> None:
    rows = forge_statistics(robustfl.attack(spec), STATISTICS, target=target, generator=stream(0))
    torch.testing.assert_close(rows, torch.tensor([expected]))


def test_non_finite_statistics_are_sent_as_they_are() -> None:
    view = dataclasses.replace(STATISTICS, honest=None, own=torch.tensor([[2.0, 0.5]]))
    both = forge_statistics(robustfl.attack("nan"), view, target="both", generator=stream(0))
    assert bool(torch.isnan(both).all())
    mean = forge_statistics(robustfl.attack("inf"), view, target="mean", generator=stream(0))
    assert mean.tolist() == [[math.inf, 0.5]]


def test_the_search_on_statistics_judges_rows_as_they_will_be_sent() -> None:
    seen: list[torch.Tensor] = []

    def aggregate(stack: torch.Tensor) -> torch.Tensor:
        seen.append(stack.clone())
        return stack.mean(0)

    view = dataclasses.replace(STATISTICS, aggregate=aggregate)
    rows = forge_statistics(robustfl.attack("opt-foe", eta_max=50), view, target="mean", generator=stream(0))
    assert all(float(stack[2, 1]) == 1.0 for stack in seen)
    assert all(torch.equal(stack[:2], STATISTICS.honest) for stack in seen)
    torch.testing.assert_close(rows, torch.tensor([[(1 - 50) * 3.0, 1.0]]))


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sf(mode=men)", "did you mean 'mean'"),
        ("foe(eta=-1)", "eta=-1.0 must be ≥ 0"),
        ("ipm(tu=1)", "did you mean 'tau'"),
        ("alie(z=-1)", "z=-1.0 must be ≥ 0"),
        ("alie(sign=0)", "sign=0 must be -1 or 1"),
        ("alie(sign=2)", "sign=2 must be"),
        ("alie(ddof=2)", "ddof=2 must be"),
        ("opt-foe(evals=0)", "evals=0 must be ≥ 1"),
        ("opt-alie(ratio=1)", "ratio=1.0 must be > 0, < 1"),
        ("gaussian(sigma=-1)", "sigma=-1.0 must be ≥ 0"),
        ("ali", "did you mean 'alie'"),
    ],
)
def test_wrong_parameters_are_refused(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        robustfl.attack(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("honest", "words"),
    [
        (torch.tensor([[1.0], [math.nan]]), "finite"),
        (torch.ones(0, 3), "at least one row"),
        (torch.ones(3), "[h d]"),
        (torch.ones(3, 2, dtype=torch.int64), "int64"),
    ],
)
@pytest.mark.parametrize("name", ["sf", "gaussian"])
def test_malformed_honest_rows_are_refused(name: str, honest: torch.Tensor, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        robustfl.forge(name, honest, f=1)
    assert words in str(caught.value)


def test_an_attack_on_the_server_needs_the_server() -> None:
    with pytest.raises(UsageError, match="defense"):
        robustfl.forge("opt-foe", HONEST, f=1)
    with pytest.raises(UsageError, match="aggregate"):
        robustfl.attack("opt-alie").forge(View(n=4, f=1, honest=HONEST), generator=stream(0))


def test_own_rows_must_be_one_per_attacker() -> None:
    with pytest.raises(UsageError, match="2 rows; there are f=3"):
        robustfl.attack("none").forge(View(n=6, f=3, own=OWN), generator=stream(0))


def test_statistics_need_the_variances_marked_and_a_known_target() -> None:
    with pytest.raises(UsageError, match="variance"):
        forge_statistics(robustfl.attack("sf"), View(n=4, f=1, honest=HONEST), generator=stream(0))
    with pytest.raises(UsageError, match="'mean', 'var' or 'both'"):
        forge_statistics(robustfl.attack("sf"), STATISTICS, target="means", generator=stream(0))


def test_malformed_rows_in_a_view_are_refused() -> None:
    for honest in (HONEST[:0], HONEST[0], HONEST.long()):
        with pytest.raises(UsageError, match="h ≥ 1"):
            robustfl.attack("sf").forge(View(n=4, f=1, honest=honest), generator=stream(0))
