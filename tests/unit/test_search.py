"""Attacks around attacks, and searches against the server."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.byzantine.search import (
    Scales,
    Search,
    _gaps,
    farthest,
    golden_section,
    linear_search,
    scales,
    scan_search,
)
from robustfl.contracts import Aggregator, Attack, Context, Forged, Rehearsal, Step, View
from robustfl.defenses import parse_pipeline
from robustfl.randomness import stream
from robustfl.registry import create, describe, entries
from robustfl.specs import parse


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


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_distance_that_is_not_finite_is_no_success(value: float) -> None:
    assert linear_search(lambda eta: value if eta > 20 else eta) == pytest.approx((19.8, 19.8), abs=0.5)
    eta, best = scan_search(lambda eta: value if eta > 4 else eta)
    assert 3.9 < best == eta <= 4
    assert math.isnan(scan_search(lambda eta: math.nan)[1])


@pytest.mark.parametrize("name", ["opt-foe", "opt-alie"])
def test_a_searched_attack_asks_the_server_with_its_declared_f(name: str) -> None:
    """With f = 0 the trimmed mean is the mean, which runs to the bound; the median with f = 2 does not."""
    honest = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]], dtype=torch.float64)
    rule = robustfl.defense("trimmed-mean")
    far, near = (robustfl.forge(name, honest, f=2, defense=rule, f_declared=k) for k in (0, 2))
    assert float(far.norm()) > 10 * float(near.norm())


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


D = 30
OURS = [(e.name, e.cls) for e in entries("defense") if not e.origin]
RULES = [
    *(name for name, cls in OURS if issubclass(cls, Aggregator)),
    *(f"{name}+{rule}" for name, cls in OURS if issubclass(cls, Step) for rule in ("krum", "trimmed-mean", "median")),
    *(f"nnm+{rule}" for rule in ("multi-krum", "geometric-median", "meamed", "mda", "caf", "mean")),
    "krum(variant=nf)", "centered-clipping(tau=1)", "arc+nnm+trimmed-mean",
    "geometric-median(nu=0.1, max_steps=3, tol=0, init=zero)",
]  # fmt: skip

KINDS = ("trimmed-mean", "krum", "geometric-median", "centered-clipping(tau=1)", "bulyan", "nnm+median", "nnm+krum")


def honest(kind: str, h: int, seed: int) -> Tensor:
    draw = stream(seed, "search")
    noise = torch.randn(h, D, generator=draw, dtype=torch.float64)
    if kind == "iid":
        return noise + 0.3
    if kind == "tight":
        return 0.05 * noise + 1
    if kind == "far":
        return noise + 0.02
    if kind == "camps":
        camps = 2 * torch.randn(3, D, generator=draw, dtype=torch.float64)
        return camps[torch.arange(h) % 3] + 0.3 * noise + 0.2
    return noise * (0.2 + 2 * torch.rand(h, 1, generator=draw, dtype=torch.float64)) + 0.3


CASES = [("iid", 10, 2), ("tight", 11, 3), ("camps", 15, 3), ("uneven", 11, 2), ("far", 20, 4)]


def reached(rule: str, kind: str, n: int, f: int, attack: str) -> tuple[float, float, int] | None:
    """``(distance of the search, of a fine grid, evaluations)``; None for too few clients."""
    pipeline, rows = parse_pipeline(rule), honest(kind, n - f, seed=n)
    if pipeline.refusal(n, f) is not None:
        return None
    origin = rows.mean(0)
    step = -origin if attack == "opt-foe" else -rows.std(0)
    asked: list[int] = []

    def server(stack: Tensor) -> Tensor:
        asked.append(1)
        return pipeline.run(stack, f=f, context=Context(generator=stream(0, "d"), reference=origin)).vector

    def distance(eta: float) -> float:
        return float((server(torch.cat([rows, (origin + eta * step).expand(f, -1)])) - origin).norm())

    found = robustfl.attack(attack).found(View(n=n, f=f, honest=rows, aggregate=server))
    count, at = len(asked), scales(rows, origin, step)
    grid = [0.0, *(at.spread * 0.2 * 40 ** (i / 50) for i in range(51)), *(at.length * c for c in (2, 4, 16)), 1000.0]
    return found.distance, max(distance(min(eta, 1000.0)) for eta in grid), count


def rules() -> list[Any]:
    """Every rule with the nightly tests, one of each kind with the others."""
    return [rule if rule in KINDS else pytest.param(rule, marks=pytest.mark.slow) for rule in RULES]


@pytest.mark.parametrize("attack", ["opt-foe", "opt-alie"])
@pytest.mark.parametrize("rule", rules())
def test_the_scan_reaches_what_a_fine_grid_finds_against_every_rule(rule: str, attack: str) -> None:
    for case in CASES[:3] if rule in (*KINDS, "smea", "nnm+mda", "signguard") else CASES:
        outcome = reached(rule, *case, attack)
        if outcome is not None:
            distance, best, evaluations = outcome
            assert distance >= 0.97 * best, case
            assert evaluations <= 40


def test_the_search_of_byzfl_falls_far_behind_on_an_edge_to_the_left_of_its_first_step() -> None:
    edge = lambda eta: eta if eta < 1.3 else 0.1 * min(eta, 2.0)  # noqa: E731 - a rule that drops rows beyond 1.3
    assert linear_search(edge)[1] <= 0.2
    assert scan_search(edge)[1] > 1.28


# --- shapes ----------------------------------------------------------------------------------------------------------


def stepped(edge: float, beyond: float, scale: float, eta: float) -> float:
    """A rise that ends at an edge."""
    return eta / scale if eta < edge else beyond


@pytest.mark.parametrize("edge", [0.3, 1.0, 1.37, 2.9, 7.7])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_an_edge_is_found_at_every_scale(edge: float, scale: float) -> None:
    for beyond in (0.0, 0.9 * edge):
        found = scan_search(partial(stepped, edge * scale, beyond, scale), scales=Scales(scale, 1.0))
        assert found[1] > 0.97 * edge


def test_on_a_plateau_the_least_factor_is_taken() -> None:
    assert scan_search(lambda eta: min(eta, 1.0), scales=Scales(1.0, 1.0)) == (1.0, 1.0)
    assert scan_search(lambda eta: 2.0) == (0.0, 2.0)
    eta, distance = scan_search(lambda eta: 1.0 + (1e-9 if eta > 50 else 0.0) if eta >= 0.5 else 0.0)
    assert eta == 0.5
    assert distance == 1.0


@pytest.mark.parametrize("evals", [1, 2, 5, 17, 40])
def test_the_budget_and_the_interval_are_kept(evals: int) -> None:
    asked: list[float] = []

    def distance(eta: float) -> float:
        asked.append(eta)
        return -((eta - 3.3) ** 2)

    _, best = scan_search(distance, evals=evals, start=2.0, eta_max=10.0)
    assert len(asked) == len(set(asked)) == evals
    assert all(2.0 <= at <= 10.0 for at in asked)
    assert best == max(-((at - 3.3) ** 2) for at in asked)
    assert scan_search(distance, start=3.0, eta_max=3.0)[0] == 3.0


def test_rows_in_few_dimensions_have_the_ties_of_the_rows_themselves() -> None:
    # All equally far from each other, but for last bits: float32 rows tie, and so must what stands for them.
    bits = torch.randint(-1, 2, (9, 5_000), generator=stream(0, "bits")).float() * torch.finfo(torch.float32).eps
    rows = (torch.eye(9, 5_000) + 0.1) * (1 + bits)
    pipeline = parse_pipeline("multi-krum(m=3)")

    def chosen(isometric: bool) -> list[list[int]]:
        noted: list[list[int]] = []

        def server(stack: Tensor) -> Tensor:
            result = pipeline.run(stack, f=2, context=Context())
            noted.append(result.facts["selected"])
            return result.vector

        aggregate = Rehearsal(server, isometric)
        robustfl.attack("opt-alie", evals=8).found(View(n=11, f=2, honest=rows, aggregate=aggregate))
        return noted

    assert chosen(isometric=True) == chosen(isometric=False)


@pytest.mark.parametrize("origin", [None, 2.5])
def test_the_distance_is_that_from_what_the_server_has_without_attackers(origin: float | None) -> None:
    rows = honest("iid", 6, seed=1)
    start = None if origin is None else torch.full((D,), origin, dtype=torch.float64)
    view = View(n=8, f=2, honest=rows, aggregate=Rehearsal(lambda stack: stack.mean(0), origin=start))
    centre, direction = rows.mean(0) + 1, torch.ones(D, dtype=torch.float64)
    found = farthest(view, "mine", centre, direction, Search("linear", evals=3, eta_max=20.0))
    moved = torch.cat([rows, found.vector.expand(2, -1)]).mean(0) - (centre if start is None else start)
    assert found.vector.equal(centre + found.eta * direction)
    assert found.distance == pytest.approx(float(moved.norm()), rel=1e-12)


@pytest.mark.parametrize("rule", ["mean", "krum", "nnm+mean"])
def test_in_few_dimensions_the_start_stays_where_it_is(rule: str) -> None:
    """Also where it is not the mean of the honest rows."""
    rows = torch.randn(5, 400, generator=stream(0, "few"), dtype=torch.float64)
    origin, direction = rows.mean(0) + 0.5 * rows[0], -rows[1]
    pipeline = parse_pipeline(rule)

    def found(isometric: bool) -> tuple[float, float]:
        server = Rehearsal(lambda stack: pipeline.run(stack, f=1, context=Context()).vector, isometric)
        view = View(n=6, f=1, honest=rows, aggregate=server)
        best = farthest(view, "mine", origin, direction, Search(evals=12))
        return best.eta, best.distance

    assert found(isometric=True) == pytest.approx(found(isometric=False), rel=1e-9)


def test_a_wide_gap_is_halved_in_ratio_and_a_narrow_one_in_length() -> None:
    gaps = _gaps(dict.fromkeys((0.0, 0.25, 1.0, 1.5), 1.0), 0.0, Scales())
    assert [gap.middle for gap in gaps] == pytest.approx([0.125, 0.5, 1.25])


def test_a_gap_promises_what_either_neighbor_would_lead_to() -> None:
    first, middle, last = _gaps({0.0: 1.0, 1.0: 1.0, 2.0: 3.0, 3.0: 1.0}, 0.0, Scales())
    assert first.promise == 1.0  # between equal values
    assert middle.promise == 5.0  # 3 and the fall of 2 behind it
    assert last.promise == 5.0  # 3 and the rise of 2 before it
