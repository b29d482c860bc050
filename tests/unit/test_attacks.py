"""Byzantine attacks on examples worked by hand, and what they refuse."""

from __future__ import annotations

import dataclasses
import logging
import math

import pytest
import torch

import robustfl
from robustfl.attacks import linear_search, supporters, z_max
from robustfl.contracts import Attack, View
from robustfl.errors import UsageError
from robustfl.randomness import stream

HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]], dtype=torch.float64)  # mean (3, 2), std (2, √12)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.filterwarnings("ignore:forge. foe.eta=0")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sf", [-3.0, -2.0]),
        ("foe(eta=2)", [-3.0, -2.0]),
        ("foe(eta=1.5)", [-1.5, -1.0]),
        ("foe(eta=0)", [3.0, 2.0]),
        ("ipm(tau=0.5)", [-1.5, -1.0]),
        ("ipm", [-0.3, -0.2]),
        ("alie(z=1.5)", [3 - 1.5 * 2, 2 - 1.5 * math.sqrt(12)]),
        ("alie(z=1.5, sign=1)", [3 + 1.5 * 2, 2 + 1.5 * math.sqrt(12)]),
        ("alie(z=1, ddof=0)", [3 - math.sqrt(8 / 3), 2 - math.sqrt(8)]),
        # n = 5, f = 2: one supporter, z = Φ⁻¹(2/3).
        ("alie", [3 - 0.4307272993 * 2, 2 - 0.4307272993 * math.sqrt(12)]),
    ],
)
def test_worked_example(spec: str, expected: list[float]) -> None:
    sent = robustfl.forge(spec, HONEST, f=2)
    assert sent[0].tolist() == pytest.approx(expected, abs=1e-9)
    assert torch.equal(sent[0], sent[1])


def test_forging_looks_at_honest_rows_by_their_sum_and_closely_only_if_need_be(monkeypatch) -> None:
    looked: list[tuple[int, ...]] = []
    close = torch.isfinite

    def noting(rows: torch.Tensor) -> torch.Tensor:
        looked.append(tuple(rows.shape))
        return close(rows)

    monkeypatch.setattr(torch, "isfinite", noting)
    sent = robustfl.forge("sf", torch.ones(4, 50), f=3)
    assert looked == []  # nothing of the size of the stack is made ...
    assert sent.stride()[0] == 0  # ... and one row stands for all
    huge = torch.full((4, 50), 3e38)  # finite, though its sum is not
    assert bool(close(robustfl.forge("ipm(tau=0)", huge[:1], f=1)).all())
    for value in (math.nan, math.inf, -math.inf):
        broken = HONEST.clone()
        broken[1, 1] = value
        with pytest.raises(UsageError, match="must be finite"):
            robustfl.forge("sf", broken, f=1)
    both = HONEST.clone()
    both[0, 0], both[1, 0] = math.inf, -math.inf
    with pytest.raises(UsageError, match="must be finite"):
        robustfl.forge("sf", both, f=1)


def test_sign_flipping_of_the_own_vectors_needs_no_sight_of_the_others() -> None:
    own = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    attack = robustfl.attack("sf", mode="own")
    assert (attack.knowledge, attack.needs_own) == ("blind", True)
    assert attack.forge(View(n=5, f=2, own=own), generator=stream(0)).tolist() == [[-1.0, 2.0], [0.0, -4.0]]
    assert robustfl.attack("sf").knowledge == "omniscient"


@pytest.mark.parametrize(("n", "f", "q"), [(10, 3, 3), (10, 0, 6), (11, 2, 4), (50, 24, 2), (10, 9, 1)])
def test_supporters(n: int, f: int, q: int) -> None:
    assert supporters(n, f) == q


@pytest.mark.parametrize(("n", "f", "z"), [(10, 2, 0.0), (10, 1, -0.1397102989), (10, 3, 0.1800123698)])
def test_largest_shift_of_alie(n: int, f: int, z: float) -> None:
    assert z_max(n, f) == pytest.approx(z, abs=1e-9)


def test_a_negative_largest_shift_counts_as_zero_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    told = pytest.warns(UserWarning, match=r"alie leaves the honest mean where it is \(9 honest rows, f = 1\)")
    with caplog.at_level(logging.INFO, logger="robustfl"), told:
        sent = robustfl.forge("alie", column(*range(9)), f=1)
    assert sent.item() == 4.0
    assert "z_max(n=10, f=1)" in caplog.text


def test_one_honest_row_has_no_spread() -> None:
    assert robustfl.forge("alie", column(5), f=1, z=3).item() == 5.0
    assert robustfl.forge("opt-alie", column(5), f=1, defense=robustfl.defense("mean")).item() == 5.0


def tried(distance, **settings) -> tuple[list[float], tuple[float, float]]:
    proposals: list[float] = []

    def recording(eta: float) -> float:
        proposals.append(eta)
        return distance(eta)

    return proposals, linear_search(recording, **settings)


def test_the_search_doubles_until_it_fails_and_then_shrinks_to_the_right_of_the_best() -> None:
    proposals, (eta, distance) = tried(lambda eta: -abs(eta - 25), evals=7)
    # 10 and 30 are better: steps 10, 20, 40. 70 is not: from 30 by 32, 25.6, 20.48.
    assert proposals == pytest.approx([0, 10, 30, 70, 62, 55.6, 50.48])
    assert (eta, distance) == (30, -5)


def test_a_later_success_moves_the_best_but_never_doubles_the_step_again() -> None:
    proposals, (eta, _) = tried(lambda eta: -abs(eta - 27), evals=8)
    assert proposals == pytest.approx([0, 10, 30, 70, 62, 55.6, 50.48, 46.384])
    assert eta == 30
    proposals, (eta, _) = tried(lambda eta: -abs(eta - 9), start=0.0, delta=16.0, evals=5)
    # 16 is nearer than 0. 48 is not: from 16 by 25.6, 20.48, ...
    assert proposals == pytest.approx([0, 16, 48, 41.6, 36.48])
    proposals, (eta, _) = tried(lambda eta: -abs(eta - 9), delta=20.0, ratio=0.5, evals=5)
    # 20 is farther than 0: 10 is a success, from there by 5 and 2.5.
    assert proposals == pytest.approx([0, 20, 10, 15, 12.5])
    assert eta == 10


def test_the_search_stops_at_its_bound() -> None:
    proposals, found = tried(lambda eta: eta, eta_max=1000)
    assert proposals == [0, 10, 30, 70, 150, 310, 630, 1000]
    assert found == (1000, 1000)
    assert tried(lambda eta: eta, start=50, eta_max=5)[0] == [5]


def test_the_search_takes_all_its_evaluations_otherwise() -> None:
    assert len(tried(lambda eta: -eta)[0]) == 20
    assert tried(lambda eta: -eta, evals=1)[0] == [0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_distance_that_is_not_finite_is_no_success(value: float) -> None:
    assert linear_search(lambda eta: value if eta > 20 else eta) == pytest.approx((19.8, 19.8), abs=0.5)


@pytest.mark.parametrize("name", ["opt-foe", "opt-alie"])
def test_a_searched_attack_asks_the_server_with_its_declared_f_and_the_honest_rows_untouched(name: str) -> None:
    asked: list[torch.Tensor] = []

    def server(stack: torch.Tensor) -> torch.Tensor:
        asked.append(stack.clone())
        return stack.mean(0)

    robustfl.attack(name, evals=5).forge(View(n=5, f=2, honest=HONEST, aggregate=server), generator=stream(0))
    assert len(asked) == 5
    assert all(torch.equal(stack[:3], HONEST) and torch.equal(stack[3], stack[4]) for stack in asked)

    # Declared f = 0 is the mean, which runs to the bound; the median with f = 2 does not.
    rule = robustfl.defense("trimmed-mean")
    far, near = (robustfl.forge(name, HONEST, f=2, defense=rule, f_declared=k) for k in (0, 2))
    assert float(far.norm()) > 10 * float(near.norm())


@pytest.mark.parametrize(("searched", "fixed"), [("opt-foe", "foe(eta=10)"), ("opt-alie", "alie(z=10)")])
@pytest.mark.parametrize("rule", ["median", "nnm+trimmed-mean", "geometric-median"])
def test_a_searched_factor_does_at_least_the_harm_of_the_first_step(searched: str, fixed: str, rule: str) -> None:
    honest = torch.randn(9, 5, generator=stream(0, "honest"), dtype=torch.float64) + 1
    pipeline = robustfl.defense(rule)

    def harm(sent: torch.Tensor) -> float:
        return float((pipeline(torch.cat([honest, sent]), f=4) - honest.mean(0)).norm())

    best = harm(robustfl.forge(searched, honest, f=4, defense=pipeline))
    assert best >= harm(robustfl.forge(fixed, honest, f=4)) - 1e-12
    assert best > harm(honest.mean(0).expand(4, -1))


def test_gaussian_noise_has_its_mean_and_deviation_and_differs_between_attackers() -> None:
    sent = robustfl.forge("gaussian", torch.zeros(3, 20_000), f=2, mu=5, sigma=2)
    assert float(sent.mean()) == pytest.approx(5, abs=0.05)
    assert float(sent.std()) == pytest.approx(2, abs=0.05)
    assert abs(float(torch.corrcoef(sent)[0, 1])) < 0.05


@pytest.mark.parametrize(("name", "value"), [("inf", math.inf), ("nan", math.nan)])
def test_messages_that_are_not_finite(name: str, value: float) -> None:
    assert robustfl.forge(name, HONEST, f=2).flatten().tolist() == pytest.approx([value] * 4, nan_ok=True)


@pytest.mark.parametrize("name", ["none", "label-flip"])
def test_attacks_that_do_not_forge_send_the_own_rows_and_see_no_others(name: str) -> None:
    attack, own = robustfl.attack(name), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (attack.forges, attack.knowledge) == (False, "blind")
    assert torch.equal(attack.forge(View(n=5, f=2, own=own), generator=stream(0)), own)


def test_only_label_flipping_poisons_and_it_keeps_the_images() -> None:
    x, y = torch.rand(3, 2), torch.tensor([0, 1, 4])
    for attack in (robustfl.attack(name) for name in ("none", "sf", "label-flip")):
        same, labels = attack.poison(x, y, classes=5, generator=stream(0))
        assert same is x
        assert labels.tolist() == ([4, 3, 0] if attack.poisons_data else [0, 1, 4])
    assert y.tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sf(mode=median)", "mode='median'"),
        ("foe(eta=-1)", "eta=-1"),
        ("ipm(tau=-0.1)", "tau=-0.1 must be ≥ 0"),
        ("alie(sign=0)", "sign=0 must be -1 or 1"),
        ("alie(sign=2)", "sign=2"),
        ("alie(ddof=2)", "ddof=2"),
        ("alie(z=-1)", "z=-1"),
        ("opt-foe(evals=0)", "evals=0"),
        ("opt-alie(ratio=1)", "ratio=1"),
        ("opt-alie(delta=0)", "delta=0"),
        ("gaussian(sigma=-1)", "sigma=-1"),
        ("alie(tau=1)", "no parameter 'tau'"),
        ("ailie", "did you mean 'alie'"),
    ],
)
def test_wrong_parameters_are_refused(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        robustfl.attack(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize("f", [-1, True, 1.0, "1"])
def test_forge_refuses_a_number_of_attackers_that_is_none(f: object) -> None:
    with pytest.raises(UsageError, match="f="):
        robustfl.forge("sf", HONEST, f=f)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("honest", "words"),
    [
        (HONEST[:0], r"no rows; give a stack \[n d\]"),
        (HONEST[0], r"must be rows \[h d\], one for each honest client"),
        (HONEST.long(), "floating-point rows"),
    ],
)
def test_forge_refuses_rows_that_are_no_stack_of_numbers(honest: torch.Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.forge("sf", honest, f=1)
    with pytest.raises(UsageError, match="needs the honest rows"):
        robustfl.attack("sf").forge(View(n=4, f=1, honest=honest), generator=stream(0))


def test_forge_refuses_honest_rows_that_are_not_finite_and_a_search_without_server() -> None:
    with pytest.raises(UsageError, match="finite"):
        robustfl.forge("sf", column(1, math.nan), f=1)
    with pytest.raises(UsageError, match="give defense="):
        robustfl.forge("opt-foe", HONEST, f=1)
    with pytest.raises(UsageError, match="own rows"):
        robustfl.forge("label-flip", HONEST, f=1)


def test_the_number_of_own_rows_is_that_of_the_attackers() -> None:
    with pytest.raises(UsageError, match="own has 3 rows; there are f=2 attackers"):
        robustfl.forge("none", HONEST, f=2, own=HONEST)


@pytest.mark.parametrize("spec", ["sf", "opt-alie", "gaussian"])
def test_attacks_are_values(spec: str) -> None:
    attack: Attack = robustfl.attack(spec)
    assert attack == robustfl.attack(spec)
    assert hash(attack) == hash(robustfl.attack(spec))
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack.name = "other"  # type: ignore[misc]
