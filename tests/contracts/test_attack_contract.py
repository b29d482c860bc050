"""Every registered Byzantine attack keeps the common promises (STYLE 17)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import robustfl
import robustfl.attacks
from robustfl.contracts import Attack, View
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.registry import create, describe, entries

ENTRIES = [e for e in entries("attack") if not e.origin]
NAMES = [e.name for e in ENTRIES]
VARIANTS = [*NAMES, "sf(mode=own)", "alie(z=1.5, sign=1, ddof=0)", "opt-foe(evals=3)", "gaussian(mu=1, sigma=0.5)"]
NON_FINITE = {"inf", "nan"}
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def full_view(h: int = 6, f: int = 4, *, dtype: torch.dtype = torch.float64, device: str = "cpu") -> View:
    """Everything a view can hold; honest rows scatter around a mean far from 0."""
    rows = (3 + torch.randn(h + f, 5, generator=stream(0, "rows"), dtype=torch.float64)).to(device, dtype)
    return View(
        n=h + f,
        f=f,
        honest=rows[:h],
        own=rows[h:],
        aggregate=lambda stack: robustfl.defense("trimmed-mean")(stack, min(f, (h + f - 1) // 2)),
    )


def redacted(view: View, attack: Attack) -> View:
    """What the attack's declared knowledge leaves of ``view``."""
    sees_honest = attack.knowledge in ("omniscient", "defense")
    return dataclasses.replace(
        view,
        honest=view.honest if sees_honest else None,
        own=view.own if attack.needs_own or attack.knowledge == "partial" else None,
        aggregate=view.aggregate if attack.knowledge == "defense" else None,
    )


def sent(attack: Attack, view: View) -> torch.Tensor:
    rows = view.own if view.honest is None else view.honest
    assert rows is not None
    return attack.forge(view, generator=stream(1, "forge", device=rows.device))


@pytest.fixture(params=VARIANTS)
def attack(request: pytest.FixtureRequest) -> Attack:
    return create("attack", request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("h", "f"), [(6, 4), (7, 1), (1, 1), (2, 5)])
def test_rows_of_all_attackers_in_the_views_kind(
    attack: Attack, h: int, f: int, dtype: torch.dtype, device: str
) -> None:
    view = full_view(h, f, dtype=dtype, device=device)
    rows = sent(attack, redacted(view, attack))
    assert (rows.shape, rows.dtype, rows.device) == ((f, 5), dtype, view.honest.device)
    assert bool(torch.isfinite(rows).all()) == (attack.name not in NON_FINITE)


def test_the_declared_knowledge_is_all_it_uses(attack: Attack) -> None:
    view = full_view()
    seen = redacted(view, attack)
    spoiled = View(
        n=view.n,
        f=view.f,
        honest=torch.full_like(view.honest, math.nan) if seen.honest is None else seen.honest,
        own=torch.full_like(view.own, math.nan) if seen.own is None else seen.own,
        aggregate=None if attack.knowledge == "defense" else lambda rows: 1 / 0,
    )
    spoiled = dataclasses.replace(spoiled, aggregate=seen.aggregate or spoiled.aggregate)
    torch.testing.assert_close(sent(attack, spoiled), sent(attack, seen), rtol=0, atol=0, equal_nan=True)


def test_without_its_knowledge_it_says_what_is_missing(attack: Attack) -> None:
    with pytest.raises(UsageError, match=f"attack '{attack.name}'"):
        attack.forge(View(n=10, f=4), generator=stream(1, "forge"))


def test_the_view_is_not_written_to(attack: Attack) -> None:
    view = full_view()
    honest, own = view.honest.clone(), view.own.clone()
    sent(attack, redacted(view, attack))
    assert torch.equal(view.honest, honest)
    assert torch.equal(view.own, own)


def test_the_generator_alone_decides(attack: Attack) -> None:
    view = redacted(full_view(), attack)
    torch.manual_seed(1)
    once = sent(attack, view)
    torch.manual_seed(2)
    torch.testing.assert_close(sent(attack, view), once, rtol=0, atol=0, equal_nan=True)


def test_float32_agrees_with_float64(attack: Attack) -> None:
    if attack.name == "gaussian":  # draws of the two types differ
        return
    double = sent(attack, redacted(full_view(), attack))
    single = sent(attack, redacted(full_view(dtype=torch.float32), attack))
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_repr_and_spec_evaluate_back(attack: Attack) -> None:
    cls = type(attack)
    assert eval(repr(attack), {cls.__name__: cls}) == attack
    again = create("attack", describe(attack))
    assert again == attack
    assert (again.knowledge, again.needs_own) == (attack.knowledge, attack.needs_own)


def test_attacks_hurt_plain_averaging(attack: Attack) -> None:
    """The mean under attack lies farther from the honest mean than without attack (and 4 of 10 attackers forge)."""
    if not attack.forges or attack.name in NON_FINITE:
        return
    view = full_view()
    stack = torch.cat([view.honest, sent(attack, redacted(view, attack))])
    harmless = torch.cat([view.honest, view.honest.mean(0).expand(4, -1)])
    mean = robustfl.defense("mean")
    target = view.honest.mean(0)
    damage, calm = float((mean(stack) - target).norm()), float((mean(harmless) - target).norm())
    assert damage > calm + 0.1


@pytest.mark.parametrize("name", sorted(NON_FINITE))
def test_non_finite_rows_poison_a_sum_and_are_dropped_by_every_defense(name: str) -> None:
    honest = full_view().honest
    stack = torch.cat([honest, robustfl.forge(name, honest, f=2)])
    assert not bool(torch.isfinite(stack.mean(0)).any())
    torch.testing.assert_close(robustfl.defense("mean")(stack, f=2), honest.mean(0))


def test_attackers_that_do_not_forge_send_what_they_computed(attack: Attack) -> None:
    if not attack.forges:
        view = full_view()
        assert torch.equal(sent(attack, redacted(view, attack)), view.own)


def test_poisoned_batches_keep_their_shape_and_leave_the_data_alone(attack: Attack) -> None:
    x, y = torch.rand(6, 1, 2, 2, generator=stream(0, "x")), torch.tensor([0, 1, 2, 3, 4, 4])
    before = (x.clone(), y.clone())
    new_x, new_y = attack.poison(x, y, classes=5, generator=stream(0, "poison"))
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert (new_x.shape, new_y.shape, new_y.dtype) == (x.shape, y.shape, y.dtype)
    assert bool(((new_y >= 0) & (new_y < 5)).all())
    changed = not (torch.equal(new_x, x) and torch.equal(new_y, y))
    assert changed == attack.poisons_data


@pytest.mark.parametrize("target", ["mean", "var", "both"])
def test_on_statistics_no_finite_variance_is_negative(attack: Attack, target: str) -> None:
    """Half of the entries are variances near 0, where any naive shift would turn them negative."""
    variance = torch.tensor([False, False, True, True, True])
    view = full_view()
    rows = [torch.where(variance, 0.01 * r.abs(), r) for r in (view.honest, view.own)]
    view = dataclasses.replace(view, channel="statistics", honest=rows[0], own=rows[1], variance=variance)
    seen = redacted(view, attack)
    forged = robustfl.attacks.forge_statistics(attack, seen, target=target, generator=stream(1, "forge"))
    assert forged.shape == (4, 5)
    assert not bool((forged[:, variance] < 0).any())
    untouched = variance if target == "mean" else ~variance if target == "var" else variance & False
    kept = rows[1] if seen.honest is None else rows[0].mean(0).expand(4, -1)
    assert torch.equal(forged[:, untouched], kept[:, untouched])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_facts_are_stated(entry) -> None:
    assert entry.cls.spec.startswith("§3")
    assert entry.cls.__doc__
    if entry.name not in NON_FINITE | {"none"}:
        assert "arXiv" in entry.cls.paper


@pytest.mark.parametrize("name", NAMES)
def test_the_convenience_call_needs_no_view(name: str) -> None:
    honest = full_view().honest
    if create("attack", name).poisons_data:
        with pytest.raises(UsageError, match="own"):
            robustfl.forge(name, honest, f=2)
        return
    defense = robustfl.defense("median")
    assert robustfl.forge(name, honest, f=2, defense=defense).shape == (2, 5)
    assert robustfl.forge(name, honest, f=0, defense=defense).shape == (0, 5)
