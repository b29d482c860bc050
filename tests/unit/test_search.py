"""The default search of attacks that know the server reaches what a fine grid over the strength finds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.byzantine.search import Scales, Search, _gaps, farthest, linear_search, scales, scan_search
from robustfl.contracts import Aggregator, Context, Rehearsal, Step, View
from robustfl.defenses import parse_pipeline
from robustfl.randomness import stream
from robustfl.registry import entries

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


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_never_the_best(value: float) -> None:
    eta, best = scan_search(lambda eta: value if eta > 4 else eta)
    assert 3.9 < best == eta <= 4
    assert math.isnan(scan_search(lambda eta: math.nan)[1])


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
