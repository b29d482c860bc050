"""Attacks that wrap another: what they hand on, when they are on, and how they search."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.byzantine.search import golden_section
from robustfl.contracts import Aggregator, Attack, Context, Forged, Rehearsal, View
from robustfl.defenses import parse_pipeline
from robustfl.randomness import stream
from robustfl.registry import create, describe, parse


def rows(h: int = 7, d: int = 12, seed: int = 0, mean: float = 0.7) -> Tensor:
    return torch.randn(h, d, generator=stream(seed, "zoo"), dtype=torch.float64) + mean


HONEST, OWN = rows(), rows(3, seed=9)


def view(rule: str = "median", **more: object) -> View:
    pipeline = robustfl.defense(rule)
    server: Callable[[Tensor], Tensor] = lambda stack: pipeline(stack, f=3)  # noqa: E731
    return dataclasses.replace(View(n=10, f=3, honest=HONEST, own=OWN, aggregate=server, previous=OWN[0]), **more)


def sent(spec: str, seen: View) -> Tensor:
    return Forged.of(robustfl.attack(spec).forge(seen, generator=stream(0))).rows


# --- spelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "shortest"),
    [
        ("opt(foe)", "opt(attack=foe)"),
        ("opt(attack='foe')", "opt(attack=foe)"),
        ("opt(alie(z=1.0), evals=5)", "opt(attack='alie(z=1)', evals=5)"),
        ("timed(opt(foe(eta=2)), every=2)", "timed(attack='opt(attack=\\'foe(eta=2)\\')', every=2)"),
        ("timed( sf , start=1)", "timed(start=1)"),
        ("neurotoxin(dba(gap=0))", "neurotoxin(attack='dba(gap=0)')"),
    ],
)
def test_a_bare_method_is_the_wrapped_attack_and_the_description_is_canonical(spec: str, shortest: str) -> None:
    attack = robustfl.attack(spec)
    assert attack == create("attack", shortest)
    assert robustfl.attack(describe(attack)) == attack
    assert describe(create("attack", describe(attack))) == describe(attack)
    if "\\" not in shortest:
        assert describe(attack) == shortest
    assert pickle.loads(pickle.dumps(attack)) == attack


def test_a_bare_method_may_come_from_a_table() -> None:
    name, params = parse("opt(alie(z=1), evals=5)")
    assert (name, params) == ("opt", {"": "alie(z=1)", "evals": 5})
    assert create("attack", name, **params) == robustfl.attack("opt(alie(z=1), evals=5)")


# --- what the wrapped attack sees ------------------------------------------------------------------------------------


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> list[View]:
    """The views that ``sf`` gets."""
    seen: list[View] = []
    cls = type(robustfl.attack("sf"))
    forge = cls.forge

    def noting(self: Attack, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        seen.append(view)
        return forge(self, view, generator=generator)

    monkeypatch.setattr(cls, "forge", noting)
    return seen


@pytest.mark.parametrize("wrapper", ["timed(sf{})", "opt(sf{}, evals=2)"])
def test_the_wrapped_attack_sees_no_more_than_it_declares(spied: list[View], wrapper: str) -> None:
    sent(wrapper.format(""), view())
    assert all((v.honest is HONEST, v.own, v.aggregate) == (True, None, None) for v in spied)
    spied.clear()
    sent(wrapper.format("(mode=own)"), view())
    assert spied
    assert all((v.honest, v.own is OWN, v.aggregate) == (None, True, None) for v in spied)
    assert all(v.previous is not None for v in spied)


def test_partial_attackers_take_each_other_for_the_honest(spied: list[View]) -> None:
    attack = robustfl.attack("partial(sf)")
    assert (attack.knowledge, attack.needs_own) == ("partial", True)
    assert torch.equal(sent("partial(sf)", view(honest=None, aggregate=None))[0], -OWN.mean(0))
    assert (spied[0].own, spied[0].aggregate) == (None, None)


@pytest.mark.parametrize(
    ("spec", "knowledge", "own", "forges", "poisons", "target"),
    [
        ("timed(sf)", "omniscient", True, True, False, None),
        ("timed(sf(mode=own))", "blind", True, True, False, None),
        ("timed(label-flip)", "blind", True, False, True, None),
        ("timed(opt-foe)", "defense", True, True, False, None),
        ("timed(badnets(target=3))", "blind", True, False, True, 3),
        ("opt(alie)", "defense", False, True, False, None),
        ("opt(gaussian)", "defense", True, True, False, None),
        ("opt(dba(target=2))", "defense", True, True, True, 2),
        ("opt(partial(alie))", "defense", True, True, False, None),
        ("model-replacement(label-flip(target=2))", "blind", True, True, True, 2),
    ],
)
def test_facts_of_the_wrapped_attack(spec, knowledge, own, forges, poisons, target):
    attack = robustfl.attack(spec)
    assert (attack.knowledge, attack.needs_own, attack.forges) == (knowledge, own, forges)
    assert (attack.poisons_data, attack.target) == (poisons, target)
    assert attack.certificate(10, 3) == (attack.inner.certificate(10, 3) if attack.inner else {})


# --- on and off ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "on"),
    [
        ("timed(sf)", [0, 1, 2, 3, 4, 5, 6]),
        ("timed(sf, start=2)", [2, 3, 4, 5, 6]),
        ("timed(sf, start=1, every=3)", [1, 4]),
        ("timed(sf, start=1, every=2, stop=5)", [1, 3]),
    ],
)
def test_rounds_of_the_attack(spec: str, on: list[int]) -> None:
    attack = [t for t in range(7) if torch.equal(sent(spec, view(round=t))[0], -HONEST.mean(0))]
    honest = [t for t in range(7) if torch.equal(sent(spec, view(round=t)), OWN)]
    assert (attack, sorted(attack + honest)) == (on, list(range(7)))


@pytest.mark.parametrize(
    "spec",
    [
        "opt(timed(sf, start=1))",
        "opt(timed(foe, start=1), parameter=deviation)",
        "model-replacement(timed(badnets, start=1))",
        "neurotoxin(timed(badnets, start=1), scale=3)",
    ],
)
def test_wrappers_leave_honest_work_alone_while_the_attack_is_off(spec: str) -> None:
    assert torch.equal(sent(spec, view(round=0)), OWN)
    assert not torch.equal(sent(spec, view(round=1)), OWN)


def test_a_bar_of_the_trigger_belongs_to_its_attacker_through_every_wrapper() -> None:
    x, y = torch.zeros(4, 1, 8, 8), torch.arange(4)
    for wrapper in ("timed({})", "neurotoxin({})", "opt(model-replacement({}))"):
        attack, plain = robustfl.attack(wrapper.format("dba")), robustfl.attack("dba")
        for i in (0, 3):
            made = [a.poison(x, y, classes=9, generator=stream(0), attacker=i)[0] for a in (attack, plain)]
            assert torch.equal(*made)


def test_memory_survives_the_rounds_in_between() -> None:
    attack, state, kept = robustfl.attack("timed(lazy, every=2)"), {}, []
    for t in range(4):
        seen = view(round=t, state=state, own=OWN + t)
        made = Forged.of(attack.forge(seen, generator=stream(0)))
        state = made.state
        kept.append(float((made.rows - OWN).mean()))
    assert kept == pytest.approx([0, 1, 0, 3])


# --- search ----------------------------------------------------------------------------------------------------------


def server(name: str, kind: type) -> Callable[[Tensor], Tensor]:
    """A registered rule, or the mean of what a step makes, with the same draws every time."""
    pipeline = robustfl.defense(name if issubclass(kind, Aggregator) else f"{name}+mean")
    reference = HONEST.mean(0)

    def aggregate(stack: Tensor) -> Tensor:
        context = Context(generator=stream(0, "defense"), reference=reference)
        return pipeline.run(stack, f=1, context=context).vector

    return aggregate


def test_the_attack_as_given_wins_where_the_search_finds_nothing_better() -> None:
    # Harm at z = 1.5 only, which the search steps over.
    mean, std = HONEST.mean(0), HONEST.std(0)
    only = lambda stack: mean + (5.0 if torch.allclose(stack[-1], mean - 1.5 * std) else 0.0)  # noqa: E731
    found, forged = robustfl.attack("opt(alie(z=1.5))").find(view(aggregate=only), generator=stream(0))
    assert math.isnan(found.eta)
    assert found.distance == pytest.approx(5 * math.sqrt(12))
    assert torch.allclose(forged.rows[2], mean - 1.5 * std)


@pytest.mark.parametrize("search", ["scan", "linear", "golden"])
def test_the_server_is_asked_as_often_as_said_with_the_honest_rows_untouched(search: str) -> None:
    asked: list[Tensor] = []

    def noting(stack: Tensor) -> Tensor:
        asked.append(stack.clone())
        return stack.mean(0)

    before = HONEST.clone()
    robustfl.attack("opt(foe, evals=6)", search=search).forge(view(aggregate=noting), generator=stream(0))
    assert len(asked) == 6 + 1 + 1  # as given, and once more for what is sent
    assert all(torch.equal(stack[:7], HONEST) for stack in asked)
    assert torch.equal(HONEST, before)


@pytest.mark.parametrize("evals", [1, 2, 3, 12])
def test_golden_section_takes_its_evaluations_and_stays_inside(evals: int) -> None:
    asked: list[float] = []

    def distance(eta: float) -> float:
        asked.append(eta)
        return -((eta - 7.0) ** 2)

    eta, reach = golden_section(distance, low=2.0, high=10.0, evals=evals)
    assert len(asked) == evals
    assert all(2.0 <= at <= 10.0 for at in asked)
    assert reach == max(-((at - 7.0) ** 2) for at in asked) == -((eta - 7.0) ** 2)
    assert golden_section(distance, low=3.0, high=3.0, evals=evals) == (3.0, -16.0)


def test_every_strength_is_tried_with_the_same_draws() -> None:
    noise: list[Tensor] = []

    def noting(stack: Tensor) -> Tensor:
        noise.append(stack[7:] / stack[7:].norm())
        return stack.mean(0)

    robustfl.attack("opt(gaussian, evals=4, start=1)").forge(view(aggregate=noting), generator=stream(0))
    assert all(torch.allclose(draw, noise[0]) for draw in noise)


def test_a_memory_passes_through_the_search() -> None:
    made = robustfl.attack("opt(mimic(variant=variance), evals=3)").forge(view(), generator=stream(0))
    assert isinstance(made, Forged)
    assert int(made.state["seen"]) == 1


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("search", ["scan", "linear", "golden"])
def test_a_result_that_is_not_finite_is_never_the_best(search: str, value: float) -> None:
    mean = HONEST.mean(0)
    beyond = lambda stack: mean + (value if float(stack[-1].norm()) > 20 else stack[-1])  # noqa: E731
    found, _ = robustfl.attack("opt(foe)", search=search).find(view(aggregate=beyond), generator=stream(0))
    assert 0 < found.distance < 21
    at_first = lambda stack: mean + (value if torch.allclose(stack[-1], mean) else 1.0)  # noqa: E731
    found, _ = robustfl.attack("opt(foe)", search=search).find(view(aggregate=at_first), generator=stream(0))
    assert found.distance == pytest.approx(math.sqrt(12))


@pytest.mark.parametrize(
    "rule", ["nnm+geometric-median", "krum", "nnm+mean", "clipping(c=30)+smea", "bucketing(s=2)+mda"]
)
@pytest.mark.parametrize("attack", ["opt-alie", "opt-foe"])
def test_long_rows_are_searched_in_the_few_dimensions_they_span_with_the_same_outcome(attack, rule):
    honest = 1 + torch.randn(9, 2_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    defense, widths = parse_pipeline(rule), []

    def server(rows):
        widths.append(rows.shape[1])
        return defense(rows, f=2, generator=torch.Generator().manual_seed(1))

    def found(aggregate):
        seen = View(n=11, f=2, honest=honest, own=honest[:2], aggregate=aggregate)
        return Forged.of(robustfl.attack(attack).forge(seen, generator=stream(0))).rows

    whole = found(server)
    assert set(widths) == {2_000}
    widths.clear()
    torch.testing.assert_close(found(Rehearsal(server, defense.isometric)), whole, rtol=1e-9, atol=1e-9)
    assert max(widths) < 50


@pytest.mark.parametrize("rule", ["median", "nnm+trimmed-mean", "signguard"])
def test_a_rule_that_depends_on_the_axes_is_searched_on_whole_rows(rule):
    defense = parse_pipeline(rule)
    honest = torch.randn(9, 2_000, generator=torch.Generator().manual_seed(0))

    def server(rows):
        assert rows.shape == (11, 2_000)
        return defense(rows, f=2, generator=torch.Generator().manual_seed(1))

    seen = View(n=11, f=2, honest=honest, aggregate=Rehearsal(server, defense.isometric))
    robustfl.attack("opt-alie", evals=3).forge(seen, generator=stream(0))
