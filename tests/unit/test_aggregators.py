"""Rules by hand, against slow literal versions of their formulas, and at their bounds."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize
from sklearn.cluster import HDBSCAN
from threadpoolctl import threadpool_info, threadpool_limits

import robustfl
from robustfl.contracts import Aggregated, Context
from robustfl.defenses import Mixed, Stack, parse_pipeline
from robustfl.defenses.aggregators import directions, pieces
from robustfl.defenses.aggregators.backdoors import whitened
from robustfl.defenses.aggregators.directions import low_frequencies
from robustfl.defenses.aggregators.predictions import suspicious
from robustfl.defenses.aggregators.signs import AlignIns
from robustfl.defenses.columns import NearestMean
from robustfl.defenses.cosines import clusters, cosine_distances
from robustfl.defenses.draws import subset
from robustfl.errors import Refused, UsageError
from robustfl.kernels.blocks import over_columns
from robustfl.randomness import stream
from robustfl.registry import create


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=stream(seed, "zoo"), dtype=torch.float64)


def run(spec: str, X: torch.Tensor, f: int, **context: object) -> Aggregated:
    return robustfl.defense(spec).run(X, f=f, context=Context(generator=stream(0, "defense"), **context))


@pytest.mark.parametrize(
    ("spec", "rows", "f", "expected"),
    [
        # Median 2: distances 2, 1, 0, 3, 97.
        ("meamed", (0, 1, 2, 5, 99), 2, 1.0),
        # Trimmed mean (1 + 2 + 6) / 3 = 3: distances 3, 2, 1, 3, 96; the tie goes to the 0.
        ("phocas", (0, 1, 2, 6, 99), 2, 1.0),
        # {1 0 2}, {1 2 3} and {2 3 4} have diameter 2, the first wins.
        ("mda", (1, 0, 2, 3, 4), 2, 1.0),
        ("smea", (0, 1, 5, 6, 7), 2, 6.0),
        ("monna(pivot=3)", (0, 1, 2, 5, 6), 2, 13 / 3),
        ("cge", (-1, 3, 2, -50), 1, 4 / 3),
        ("dnc", (0, 1, 2, 90), 1, 1.0),
        # Lengths 1, 2, 3, 4: k = floor(2 * 3 / 4) = 1, so the 4 becomes a 3.
        ("arc+mean", (1, -2, 3, 4), 1, 5 / 4),
        ("clipping(c=2)+mean", (1, -4, 3), 1, 1 / 3),
        # Step 1 from mean 1: distances 1, 1, 2 give weights 1, 1, 1/2.
        ("rfa(steps=1)", (0, 0, 3), 1, 1.5 / 2.5),
        ("sign-majority", (1, 2, -9), 1, 1.0),
        ("sign-majority", (1, -9, 0), 1, 0.0),
        # Krum (3 neighbors) takes 2 (score 6), then with 2 neighbors of 0 1 3 4 5 99: the 4, then 0 1 3 5 99: ...
        ("bulyan", (0, 1, 2, 3, 4, 5, 90), 1, 2.0),
    ],
)
def test_worked_example(spec, rows, f, expected):
    assert robustfl.defense(spec)(column(*rows), f=f).item() == pytest.approx(expected, abs=1e-12)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weighted_trimmed_mean_trims_rows_and_weighs_the_rest():
    rule = robustfl.defense("trimmed-mean(weighted=true)")
    assert rule(column(9, 0, 1, 5), f=1, weights=[100, 100, 3, 1]).item() == 2.0
    assert rule(column(9, 0, 1, 5), f=1).item() == 3.0
    assert rule(column(9, 0, 1, 5), f=1, weights=[1, 1, 0, 0]).item() == 3.0
    # Of the equal values the lower row is the lower one: the weight 7 is trimmed.
    assert rule(column(2, 2, 4, 6), f=1, weights=[7, 1, 1, 1]).item() == 3.0


@pytest.mark.parametrize(
    ("weights", "expected"), [([1, 1, 5], 9.0), ([3, 1, 1], 0.0), ([2, 1, 1], 0.5), ([1, 0, 1], 4.5), ([0, 1, 0], 1.0)]
)
def test_weighted_median_is_between_the_lower_and_the_upper_one(weights, expected):
    assert robustfl.defense("median(weighted=true)")(column(0, 1, 9), f=1, weights=weights).item() == expected


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", ["never", "always"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n", "low", "high", "keep"), [(7, 3, 4, 5), (8, 3, 5, 5), (8, 2, 6, 3), (5, 2, 3, 5), (6, 2, 4, 1)]
)
def test_nearest_values_also_where_many_tie(n, low, high, keep, dtype, native, monkeypatch):
    monkeypatch.setenv("ROBUSTFL_NATIVE", native)
    spread, coarse = normal(n, 300), torch.randint(-2, 3, (n, 300), generator=stream(0, "coarse")).double()
    X = torch.cat([spread, coarse], dim=1).to(dtype)
    ordered = X.sort(dim=0).values
    centre = ordered[low:high].mean(0)
    # Two middle values are equally far from their mean, on whichever side its last bit lies.
    order = (X - centre).abs().mul(1e4).round().sort(dim=0, stable=True).indices[:keep]
    expected = X.gather(0, order).mean(0)
    found = over_columns(X, NearestMean(n, low, high, keep))
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6)


# --- subsets ---------------------------------------------------------------------------------------------------------


def _brute(X: torch.Tensor, f: int, cost) -> list[int]:
    return list(min(combinations(range(len(X)), len(X) - f), key=lambda s: round(float(cost(X[list(s)])), 9)))


def _diameter(rows: torch.Tensor) -> torch.Tensor:
    return (rows[:, None] - rows[None]).square().sum(-1).max()


def _largest_eigenvalue(rows: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh((rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows))[-1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "f"), [(5, 2), (8, 2), (9, 4), (6, 0)])
@pytest.mark.parametrize(("rule", "cost"), [("mda", _diameter), ("smea", _largest_eigenvalue)])
def test_the_first_best_subset_is_found(rule, cost, n, f, seed):
    # Whole numbers make ties.
    X = normal(n, 3, seed) if seed < 3 else torch.randint(0, 3, (n, 2), generator=stream(seed, "grid")).double()
    assert run(rule, X, f).facts["subset"] == _brute(X, f, cost)


def test_smea_finds_the_best_of_many_subsets():
    # In many dimensions the bound from below is loose: the best subset is not among the first that are looked at.
    X = normal(18, 60, 1)
    result = run("smea", X, 5)
    subsets = torch.tensor(list(combinations(range(18), 13)))
    rows = X[subsets] - X[subsets].mean(1, keepdim=True)
    values = torch.linalg.eigvalsh(rows @ rows.transpose(1, 2) / 13)[:, -1]
    assert result.facts["subset"] == subsets[values.argmin()].tolist()
    assert result.facts["lambda"] == pytest.approx(float(values.min()))


@pytest.mark.parametrize("rule", ["mda", "smea"])
def test_too_many_subsets_are_refused_with_the_bound(rule):
    pipeline = robustfl.defense(rule)
    assert comb(23, 10) > 1_000_000 > comb(22, 10)
    assert pipeline.refusal(22, 10) is None
    assert f"binom(23, 10) = {comb(23, 10)} subsets to search, more than 1000000" in (pipeline.refusal(23, 10) or "")
    with pytest.raises(Refused, match=rule):
        pipeline(torch.zeros(23, 1), f=10)
    # Steps before it may leave few enough rows.
    assert robustfl.defense(f"bucketing(s=2)+{rule}").refusal(40, 9) is None


def test_mda_at_the_bound_is_quick():
    X = normal(22, 5)
    X[:10] *= 30
    assert run("mda", X, 10).facts["subset"] == list(range(10, 22))


# --- randomised rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["bucketing+mean", "mean-of-medians", "signguard", "dnc(b=10)", "flame"])
def test_drawing_rules_ask_for_a_generator_and_use_it(rule):
    X = normal(12, 2000)
    X[:2] -= 3
    pipeline = robustfl.defense(rule if "bucketing" not in rule else "bucketing(s=2)+median")
    with pytest.raises(UsageError, match="draws at random; give generator="):
        pipeline(X, f=2)
    draws = [pipeline(X, f=2, generator=stream(seed, "defense")) for seed in range(8)]
    # SignGuard's and DnC's choices may agree whatever they look at; noise and groups may not.
    if not rule.startswith(("signguard", "dnc")):
        assert not all(torch.equal(draws[0], other) for other in draws[1:])


def test_subsets_are_drawn_without_repetition_from_everywhere():
    drawn = torch.cat([subset(1000, 20, stream(seed, "subset")) for seed in range(300)])
    assert all(len(subset(50, k, stream(0, "s")).unique()) == k for k in (1, 5, 12, 13, 50))
    counts = torch.bincount(drawn, minlength=1000).double()
    assert len(counts) == 1000
    # 6000 draws over 1000 numbers: mean 6, and no part of the range is preferred.
    assert float((counts.view(10, 100).sum(1) / 600 - 1).abs().max()) < 0.15


def test_bucketing_sizes():
    step = create("defense", "bucketing")
    assert [step.size(10, f) for f in (0, 1, 2, 4)] == [1, 4, 2, 1]
    assert [step.rows_after(10, f) for f in (0, 1, 2, 4)] == [10, 3, 5, 10]
    assert step.size(8, 2) == 1  # of four buckets of two rows, two attackers may spoil half
    assert "needs at least 13 clients" in (robustfl.defense("bucketing(s=3)+median").refusal(12, 2) or "")


def test_dnc_without_a_survivor_keeps_the_least_dropped():
    # The first coordinate tells against rows 0 and 1, the second against 2 and 3; 41 draws cannot be even.
    X = torch.tensor([[9.0, 0.0], [-9.0, 0.0], [0.0, 9.0], [0.0, -9.0]])
    assert run("dnc(b=1, niters=41)", X, 2).facts["kept"] in ([0, 1], [2, 3])


# --- Bulyan, CAF -----------------------------------------------------------------------------------------------------


def test_caf_ends_when_far_rows_without_weight_slow_it_down():
    X = normal(12, 3)
    X[0] *= 1e8
    X[1:4] += 5
    result = run("caf(max_steps=50)", X, 4)
    assert result.facts["slow"]
    assert 50 < result.facts["iterations"] <= 50 + 12
    assert float(result.vector.norm()) < 10
    assert not run("caf", normal(12, 3), 4).facts["slow"]
    # 40 of 40 stopped at 1,000 steps, with means up to nine honest deviations away.
    for seed in range(40):
        X = normal(10, 1, seed)
        X[:3] *= 1000
        result = run("caf(max_steps=100)", X, 3)
        assert result.facts["iterations"] <= 110
        assert abs(float(result.vector)) < 3


# --- rules with a memory or a server's own row -----------------------------------------------------------------------


def _foolsgold(history: np.ndarray) -> np.ndarray:
    """The weights as the authors' code makes them: no client is like itself, which also bounds the rest by zero."""
    n = len(history)
    unit = history / np.linalg.norm(history, axis=1, keepdims=True)
    similar = unit @ unit.T
    for i in range(n):
        similar[i, i] = 0.0
    most = [max(similar[i]) for i in range(n)]
    alpha = np.empty(n)
    for i in range(n):
        row = [s * most[i] / most[j] if most[i] < most[j] else s for j, s in enumerate(similar[i])]
        alpha[i] = min(max(1 - max(row), 0.0), 1.0)
    alpha /= alpha.max()
    alpha[alpha == 1] = 0.99
    with np.errstate(divide="ignore"):
        return np.clip(np.log(alpha / (1 - alpha)) + 0.5, 0, 1)


def test_foolsgold_weighs_600_random_cases_as_the_authors_code_does():
    draw = np.random.default_rng(0)
    for _ in range(600):
        n, d = int(draw.integers(2, 9)), int(draw.integers(2, 6))
        X = draw.normal(size=(n, d)) + draw.normal(scale=draw.choice([0.0, 1.0]), size=d)
        expected = _foolsgold(X)
        found = run("foolsgold", torch.from_numpy(X), 1).facts["weights"]
        assert found == pytest.approx(expected.tolist(), abs=1e-7)


def test_foolsgold_knows_clients_by_number_not_by_row():
    first, second = normal(3, 6, 1), normal(3, 6, 2)
    one = run("foolsgold", first, 1, clients=torch.tensor([7, 2, 5]))
    two = run("foolsgold", second, 1, clients=torch.tensor([5, 9, 2]), state=one.state)
    order = two.state["clients"].tolist()
    expected = {7: first[0], 2: first[1] + second[2], 5: first[2] + second[0], 9: second[1]}
    for client, row in zip(order, two.state["history"], strict=True):
        torch.testing.assert_close(row, expected[client])
    present = torch.stack([expected[k] for k in (5, 9, 2)]).numpy()
    assert two.facts["weights"] == pytest.approx(_foolsgold(present).tolist(), abs=1e-9)


def test_a_broken_row_does_not_move_the_memory_of_others():
    X = normal(4, 3)
    X[1, 0] = torch.nan
    assert run("foolsgold", X, 1).state["clients"].tolist() == [0, 2, 3]


def test_foolsgold_zero_for_copies_and_refuses_foreign_state():
    result = run("foolsgold", torch.ones(4, 3).double(), 1)
    assert result.facts["no_trust"]
    assert not bool(result.vector.any())
    with pytest.raises(UsageError, match="3 entries a client, rows have 2"):
        run("foolsgold", torch.ones(4, 2).double(), 1, state=result.state)


def test_fltrust_needs_a_fitting_row_of_the_server():
    X = normal(4, 3)
    with pytest.raises(UsageError, match="give reference="):
        robustfl.defense("fltrust")(X, f=1)
    with pytest.raises(UsageError, match="2 entries, rows have 3"):
        robustfl.defense("fltrust")(X, f=1, reference=torch.ones(2))
    with pytest.raises(UsageError, match="not finite"):
        robustfl.defense("fltrust")(X, f=1, reference=torch.tensor([1.0, torch.nan, 0.0]))
    assert create("defense", "fltrust").needs_reference
    assert not create("defense", "median").needs_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fltrust_gives_no_trust_to_rows_of_zeros(dtype):
    # Long rows take the float32 path, where a zero row is zero only up to rounding.
    X = torch.randn(5, 70_000, generator=stream(0, "zeros")).to(dtype) + 3
    X[2] = 0
    found = run("fltrust", X, 1, reference=X[0])
    assert found.facts["trust"][2] == 0
    assert found.facts["trust"][0] == pytest.approx(1)
    assert float(found.vector.norm()) <= float(X[0].norm()) * (1 + 1e-5)


# --- clusters --------------------------------------------------------------------------------------------------------


def test_signguard_clusters_with_one_thread_and_gives_back_the_others(monkeypatch):
    from sklearn.cluster import MeanShift

    def pools():
        return [p["num_threads"] for p in threadpool_info() if p["user_api"] == "openmp"]

    seen = []
    fit = MeanShift.fit_predict
    monkeypatch.setattr(MeanShift, "fit_predict", lambda self, X: (seen.extend(pools()), fit(self, X))[1])
    with threadpool_limits(2, user_api="openmp"):
        before = pools()
        run("signguard", torch.randn(9, 50, generator=torch.Generator().manual_seed(0)), 2)
        assert pools() == before
    assert seen
    assert set(seen) == {1}
    assert 2 in before


def _mean_shift(points: np.ndarray) -> np.ndarray:
    """The largest cluster of the points: where most of them end that move to the mean of all within the bandwidth."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    width = np.sort(apart, axis=1)[:, len(points) // 2 - 1].mean()  # each is the first of its nearest half
    ends = []
    for end in points:
        for _ in range(100):
            end = points[np.linalg.norm(points - end, axis=1) <= width].mean(0)
        ends.append((int((np.linalg.norm(points - end, axis=1) <= width).sum()), tuple(end)))
    peaks: list[np.ndarray] = []
    for _, end in sorted(ends, reverse=True):
        if all(np.linalg.norm(peak - end) > width for peak in peaks):
            peaks.append(np.array(end))
    nearest = np.argmin([np.linalg.norm(points - peak, axis=1) for peak in peaks], axis=0)
    return nearest == np.bincount(nearest).argmax()


@pytest.mark.parametrize("seed", range(6))
def test_signguard_is_mean_shift_on_shares_of_signs_between_its_bounds_of_length(seed):
    X = normal(13, 400, seed) + torch.tensor([0.05] * 8 + [0.25] * 3 + [-0.4] * 2, dtype=torch.float64)[:, None]
    X[:, :40] *= torch.rand((13, 1), generator=stream(seed, "zeros")) > 0.5
    for row, length in enumerate((0.09, 0.11, 2.9, 3.1, *torch.linspace(0.9, 1.1, 9).tolist())):
        X[row] *= length / X[row].norm()  # their median is 1
    shares = torch.stack([(X > 0).double().mean(1), (X == 0).double().mean(1), (X < 0).double().mean(1)], dim=1)
    alike = _mean_shift(shares.numpy())
    alike[[0, 3]] = False
    result = run("signguard", X, 3)
    assert result.facts["kept"] == np.flatnonzero(alike).tolist()
    middle = float(X.norm(dim=1).quantile(0.5))
    expected = (X * (middle / X.norm(dim=1)).clamp(max=1)[:, None])[result.facts["kept"]].mean(0)
    torch.testing.assert_close(result.vector, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", ["flame", "signguard"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_clusters_of_few_rows_and_of_zeros(rule, n):
    for X in (torch.zeros(n, 5), torch.ones(n, 5), normal(n, 5).float()):
        assert bool(torch.isfinite(robustfl.defense(rule)(X, f=0, generator=stream(0, "defense"))).all())


# --- steps that shorten, before rules that count in inner products ---------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    ["meamed", "phocas", "mda", "smea", "monna", "caf", "cge", "dnc", "rfa", "bulyan", "fltrust", "foolsgold",
     "signguard", "flame(noise=0)", "sign-majority", "trimmed-mean(weighted=true)", "mean-of-medians(groups=1)"],
)  # fmt: skip
def test_rules_agree_on_lazily_mixed_and_on_real_rows(rule):
    X = normal(11, 40, 3) + 1
    rows = Mixed(Stack(X))
    # After NNM many rows are the same but for rounding, and Bulyan's scores tie.
    steps = ["clipping(c=7)"] + ["nnm"] * (rule != "bulyan")
    for step in steps:
        rows = rows.after(create("defense", step), f=2, context=Context())
    rest: dict[str, torch.Tensor] = {"reference": X[0]}
    if create("defense", rule).weighs:
        rest["weights"] = torch.arange(1.0, 12.0)
    lazy = parse_pipeline("+".join([*steps, rule]))(X, f=2, generator=stream(0, "defense"), **rest)
    real = parse_pipeline(rule)(rows.materialise(), f=2, generator=stream(0, "defense"), **rest)
    torch.testing.assert_close(lazy, real, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", ["foolsgold", "fldetector(window=2)", "flanders"])
def test_rules_that_remember_clients_must_know_whose_rows_these_are(rule: str) -> None:
    X = torch.randn(5, 6, generator=stream(0, "rows"))
    defense = robustfl.defense(rule)

    def after(rows: torch.Tensor, state: Any = None, clients: list[int] | None = None) -> Any:
        return defense.stateful(rows, f=1, state=state, clients=clients, generator=stream(0, "defense"))[1]

    by_position, known = after(X), after(X, clients=[0, 1, 2, 3, 4])
    for rows in (X[:4], torch.cat([X, X[:1]])):
        with pytest.raises(UsageError, match=f"it remembers 5 rows, now come {len(rows)}; give clients="):
            after(rows, by_position)
    with pytest.raises(UsageError, match="earlier rounds gave no clients="):
        after(X[:4], by_position, [4, 2, 1, 0])
    with pytest.raises(UsageError, match=r"it remembers clients \[0, 1, 2, 3, 4\], now come 4"):
        after(X[:4], known)
    assert set(after(X, by_position)) == set(by_position)
    after(X[[4, 2, 1, 0]], known, [4, 2, 1, 0])


def normal_recent(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "recent"), dtype=torch.float64)


# --- clipped clustering ----------------------------------------------------------------------------------------------


# --- robust learning rate, Huber -------------------------------------------------------------------------------------


def test_rlr_turns_the_mean_where_too_few_agree():
    X = torch.tensor([[1.0, 2.0, 0.0], [1.0, -3.0, 0.0], [1.0, 2.0, 0.0], [1.0, 3.0, 8.0]])
    # Sums of signs 4, 2, 1; means 1, 1, 2.
    assert run("rlr", X, 1).vector.tolist() == [1.0, 1.0, -2.0]
    assert run("rlr(theta=3)", X, 1).vector.tolist() == [1.0, -1.0, -2.0]
    assert run("rlr(theta=0)", X, 1).vector.tolist() == X.mean(0).tolist()
    with pytest.raises(Refused, match="at least 5 clients"):
        run("rlr(theta=5)", X, 1)


@pytest.mark.parametrize("seed", range(3))
def test_huber_is_the_minimum_of_its_loss(seed):
    X = normal_recent(8, 3, seed=seed)
    X[:2] += 6

    def loss(s: np.ndarray) -> float:
        u = np.linalg.norm(X.numpy() - s, axis=1)
        return float(np.where(u <= 1.2, u**2 / 2, 1.2 * u - 0.72).sum())

    best = minimize(loss, X.mean(0).numpy(), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}).x
    torch.testing.assert_close(run("huber(T=1.2)", X, 2).vector, torch.from_numpy(best), rtol=1e-5, atol=1e-5)


# --- gradient splitting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "multi-krum(variant=nf, m=2)"])
@pytest.mark.parametrize("p", [1, 5, 300])
@pytest.mark.parametrize("kind", ["far", "huge", "equal rows", "signs", "double"])
def test_gas_by_all_distances_at_once_is_gas_by_the_rule_on_every_piece(rule, p, kind, monkeypatch):
    X = normal_recent(9, 123)
    if kind == "far":
        X = X / 100 + 50
    elif kind == "huge":
        X[:2] *= 1e18
    elif kind == "equal rows":
        X[:3] = X[3]
    elif kind == "signs":
        X = X.sign()
    X = X if kind == "double" else X.float()
    at_once = run(f"gas(rule={rule}, p={p})", X, 2)
    monkeypatch.setattr(pieces, "_FEW", 0)
    by_piece = run(f"gas(rule={rule}, p={p})", X, 2)
    assert at_once.facts == by_piece.facts
    torch.testing.assert_close(at_once.vector, by_piece.vector)


def test_gas_needs_as_many_clients_as_its_rule():
    assert create("defense", "gas", rule="krum").min_clients(2) == robustfl.defense("krum").min_clients(2) == 7


# --- LASA ------------------------------------------------------------------------------------------------------------


def _lasa(X: np.ndarray, shapes: list[tuple[int, ...]], sparsity: float, norm: float, sign: float) -> np.ndarray:
    """As the paper goes, row by row and layer by layer."""
    X = X.copy()
    lengths = np.linalg.norm(X, axis=1)
    X *= np.minimum(1, np.median(lengths) / lengths)[:, None]
    places = np.split(np.arange(X.shape[1]), np.cumsum([math.prod(s) for s in shapes])[:-1])
    weights = np.concatenate([p for p, s in zip(places, shapes, strict=True) if len(s) > 1])
    for row in X:
        keep = int(len(weights) * (1 - sparsity))
        row[sorted(weights, key=lambda j: abs(row[j]))[: len(weights) - keep]] = 0
    made = np.zeros(X.shape[1])
    for place in places:
        rows = X[:, place]
        usual = np.ones(len(X), dtype=bool)
        signs = [np.sign(r).sum() / np.abs(np.sign(r)).sum() for r in rows]
        for values, bound in ((np.linalg.norm(rows, axis=1), norm), (np.array(signs), sign)):
            usual &= np.abs(values - np.median(values)) <= bound * values.std()
        made[place] = rows[usual if usual.any() else ...].mean(0)
    return made


@pytest.mark.parametrize("seed", range(3))
def test_lasa_filters_layer_by_layer(seed):
    shapes = [(3, 4), (3,), (2, 3, 2, 1), (5, 1)]
    X = normal_recent(9, 32, seed=seed)
    X[:2, 12:27] *= -4
    result = run("lasa(sparsity=0.4, norm_bound=1.5)", X, 2, shapes=tuple(shapes))
    expected = torch.from_numpy(_lasa(X.numpy(), shapes, 0.4, 1.5, 1.0))
    torch.testing.assert_close(result.vector, expected, rtol=1e-9, atol=1e-12)
    assert len(result.facts["kept_by_layer"]) == 4
    with pytest.raises(UsageError, match="have 12 entries, rows 32"):
        run("lasa", X, 2, shapes=((3, 4),))


def test_the_layers_of_a_list_are_known_and_those_of_a_network_in_training_too():
    rows = [[torch.full((2, 2), v), torch.full((2,), w)] for v, w in [(1.0, 1.0)] * 4 + [(1.0, -1.0)]]
    made = robustfl.defense("lasa(sparsity=0)")(rows, f=1)
    assert [m.tolist() for m in made] == [[[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0]]
    from robustfl.scenarios.build import build
    from robustfl.scenarios.cell import Cell

    for norm, shapes in [
        ("fbn", ((8, 64), (8,), (8,), (8,), (10, 8), (10,))),
        ("fedbn", ((8, 64), (8,), (10, 8), (10,))),
    ]:
        cell = Cell.of({"model": "mlp(hidden=(8,))", "norm": norm, "algorithm": "fedavg", "batch": 8, "rounds": 1})
        assert tuple(build(cell).experiment.tensors.values()) == shapes


# --- DeepSight -------------------------------------------------------------------------------------------------------


def test_in_training_predictions_are_those_of_the_clients_models_and_the_server_is_as_before():
    from robustfl.engine.outputs import noise_outputs
    from robustfl.engine.state import initial_state
    from robustfl.scenarios.build import build
    from robustfl.scenarios.cell import Cell

    small = "mlp(hidden=(8,))"
    for algorithm, step, model in (("fedavg", 1.0, small), ("dsgd", -0.2, "digits-cnn"), ("fedacg", 1.0, small)):
        cell = Cell.of({
            "model": model, "norm": "naive-bn", "algorithm": algorithm, "batch": 8,
            "schedule": {"kind": "constant", "lr": 0.2},
        })  # fmt: skip
        e = build(cell).experiment
        state = initial_state(e)
        for kept in state.server.values():
            kept.normal_(std=0.1, generator=stream(2, "momentum"))
        before, received = state.theta.clone(), e.algorithm.broadcast(state.theta.clone(), state.server)
        rows = 0.1 * torch.randn(2, e.layout.d, generator=stream(0, "rows"))
        found = noise_outputs(e, state, rows, 300, stream(1, "noise"))
        assert torch.equal(state.theta, before)
        noise = torch.rand((300, 1, 8, 8), generator=stream(1, "noise"))
        e.model.eval()
        for place, moved in enumerate((step * rows[0], step * rows[1], torch.zeros_like(before))):
            state.theta.copy_(received + moved)
            torch.testing.assert_close(found[place], e.model(noise).softmax(1).detach())


# --- CRFL, edge cases ------------------------------------------------------------------------------------------------


def test_crfl_clips_the_model_and_adds_noise_but_not_in_the_last_round():
    from robustfl.contracts import ServerWork

    theta, moved = torch.tensor([3.0, 0.0]).double(), torch.tensor([0.0, 4.0]).double()
    clipped = torch.tensor([1.5, 2.0]).double()

    def step(spec: str, **more: object) -> torch.Tensor:
        made: torch.Tensor = create("algorithm", spec).server_step(ServerWork(theta, moved, 0.1, **more))[0]
        return made

    assert torch.equal(step("crfl(rho=2.5)", last=True), clipped)
    assert torch.equal(step("crfl(rho=50, sigma=0)"), theta + moved)
    draws = torch.stack([step("crfl(rho=2.5, sigma=0.3)", generator=stream(t, "server")) for t in range(400)])
    assert float((draws.mean(0) - clipped).abs().max()) < 0.1
    assert float((draws - clipped).std()) == pytest.approx(0.3, rel=0.15)
    with pytest.raises(UsageError, match="give ServerWork"):
        step("crfl")


def test_crfl_leaves_to_clients_what_they_keep_for_themselves():
    """As with private normalization: the server has only a stale copy, which is no part of the model's norm."""
    from robustfl.contracts import ServerWork

    theta, shared = torch.tensor([3.0, 100.0, 4.0]), torch.tensor([True, False, True])
    work = ServerWork(theta, torch.zeros(3), 0.1, last=True, shared=shared)
    assert create("algorithm", "crfl(rho=2.5)").server_step(work)[0].tolist() == [1.5, 100.0, 2.0]
    noisy = replace(work, last=False, generator=stream(0, "server"))
    assert (create("algorithm", "crfl(rho=50)").server_step(noisy)[0] != theta).tolist() == [True, False, True]


def test_crfl_adds_no_noise_to_a_model_that_nobody_changes_any_more():
    """Of two clients one attacks and one is drawn: in the last round, with this seed, the attacker."""
    from robustfl.engine import train
    from robustfl.scenarios.build import build
    from robustfl.scenarios.cell import Cell

    def ends(sigma: float, seed: int) -> tuple[torch.Tensor, list[bool]]:
        cell = Cell.of(
            {"dataset": "digits(limit=60)", "model": "mlp(hidden=(8,))", "norm": "none", "batch": 8, "rounds": 2,
             "clients": 2, "f": 1, "participation": 0.5, "attack": "sf", "algorithm": f"crfl(sigma={sigma})",
             "seed": seed}
        )  # fmt: skip
        records = list(train(build(cell).experiment))
        return records[-1].state.theta, [bool(r.facts.get("no_honest_client")) for r in records]

    seed = next(s for s in range(50) if ends(0.1, s)[1] == [False, True])
    assert torch.equal(ends(0.1, seed)[0], ends(0.0, seed)[0])
    seed = next(s for s in range(50) if ends(0.1, s)[1] == [False, False])
    assert not torch.equal(ends(0.1, seed)[0], ends(0.0, seed)[0])


@pytest.mark.parametrize("far", [1e10, 1e30, 1e140])
@pytest.mark.parametrize("rule", ["smea", "geometric-median", "huber", "huber(T=1)", "caf", "dnc(b=2)"])
def test_rows_however_far_away_leave_the_others_their_digits(rule: str, far: float) -> None:
    """Rows so far away that the others round to one point beside them move the result no more than nearer ones do."""
    rows = torch.randn((11, 3), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = []
    for distance in (1e5, far):
        rows[[3] if rule == "smea" else [3, 7]] = distance  # smea has a choice left
        found.append(robustfl.defense(rule)(rows, f=2, generator=stream(0)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-4)


Array = npt.NDArray[Any]


def hand_run(spec: str, X: Array, f: int, round: int = 0, **more: Any) -> Aggregated:
    context = Context(generator=stream(round, "rule"), round=round, clients=torch.arange(len(X)), **more)
    return robustfl.defense(spec).run(torch.from_numpy(X), f=f, context=context)


def agrees(found: Aggregated, X: Array, kept: Array) -> None:
    assert found.facts["kept"] == kept.tolist()
    torch.testing.assert_close(found.vector, torch.from_numpy(X[kept].mean(0)), rtol=1e-9, atol=1e-11)


# --- FLANDERS --------------------------------------------------------------------------------------------------------


def forecast(past: list[Array], alpha: float, beta: float) -> Array:
    """``A Z B`` of the last matrix by alternating ridge regressions from B = I; columns are clients."""
    scale = max(np.abs(Z).max() for Z in past)
    series = [Z.T / scale for Z in past]
    B = np.eye(series[0].shape[1])
    for _ in range(400):
        before = [Z @ B for Z in series[:-1]]
        left = sum(after @ C.T for after, C in zip(series[1:], before, strict=True))
        A = left @ np.linalg.inv(sum(C @ C.T for C in before) + alpha * np.eye(len(series[0])))
        pushed = [A @ Z for Z in series[:-1]]
        right = sum(P.T @ after for P, after in zip(pushed, series[1:], strict=True))
        B = np.linalg.inv(sum(P.T @ P for P in pushed) + beta * np.eye(len(B))) @ right
    return scale * (A @ series[-1] @ B).T


@pytest.mark.parametrize("seed", range(3))
def test_flanders_over_rounds(seed: int) -> None:
    draw, n, d, f, window = np.random.default_rng(seed), 7, 6, 2, 3
    base, past, state = draw.normal(size=(n, d)), list[Array](), dict[str, Any]()
    dropped = 0
    for t in range(7):
        X = 0.8**t * base + 0.1 * draw.normal(size=(n, d))
        if t >= 3:
            X[:f] = draw.normal(size=(f, d))
        found = hand_run(f"flanders(window={window}, alpha=0.7, beta=1.3, steps=400)", X, f, t, state=state)
        state, kept = dict(found.state), np.arange(n)
        if t >= 2:
            away = ((X - forecast(past[-window:], 0.7, 1.3)) ** 2).sum(1)
            np.testing.assert_allclose(found.facts["scores"], away, rtol=1e-2)
            kept = np.sort(np.argsort(away)[: n - f])
            dropped += int((kept >= f).all())
        agrees(found, X, kept)
        past.append(np.where(np.isin(np.arange(n), kept)[:, None], X, X[kept].mean(0)))
    assert dropped > 0


# --- FLDetector ------------------------------------------------------------------------------------------------------


def hessian_times(steps: Array, changes: Array, v: Array) -> Array:
    """L-BFGS in its compact form (Byrd, Nocedal, Schnabel 1994, theorem 2.3); columns are pairs."""
    sy, sigma = steps.T @ changes, (changes[:, -1] @ steps[:, -1]) / (steps[:, -1] @ steps[:, -1])
    lower = np.tril(sy, -1)
    middle = np.block([[sigma * steps.T @ steps, lower], [lower.T, -np.diag(np.diag(sy))]])
    both = np.concatenate([sigma * steps, changes], axis=1)
    return sigma * v - both @ np.linalg.solve(middle, both.T @ v)


def parted(x: Array, k: int) -> tuple[float, Array]:
    """The least sum of squares in ``k`` intervals of the order, and who is in which."""
    order, best = np.argsort(x), (np.inf, np.zeros(len(x), int))
    for cuts in itertools.combinations(range(1, len(x)), k - 1):
        pieces = np.split(order, cuts)
        cost = sum(((x[p] - x[p].mean()) ** 2).sum() for p in pieces)
        if cost < best[0]:
            label = np.zeros(len(x), int)
            for number, piece in enumerate(pieces):
                label[piece] = number
            best = (cost, label)
    return best


def flagged(scores: Array, references: Array) -> Array:
    """The upper of two clusters, unless the gap statistic has one for enough."""
    x = (scores - scores.min()) / np.ptp(scores)
    logs = [np.log(parted(x, k)[0]) for k in (1, 2)]
    of_references = np.array([[parted(r, k)[0] for k in (1, 2)] for r in references])
    gap = np.log(of_references.mean(0)) - logs
    enough = gap[0] >= gap[1] - np.sqrt(1 + 1 / len(references)) * np.log(of_references).std(0)[1]
    return np.zeros(len(x), bool) if enough else parted(x, 2)[1] == 1


def test_fldetector_sees_two_clusters_where_the_gap_statistic_does() -> None:
    for seed in range(150):
        scores = torch.rand(7, generator=torch.Generator().manual_seed(seed)).double()
        scores[:2] += 0.7
        drawn = torch.rand((10, 7), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        found = suspicious(scores, torch.Generator().manual_seed(seed))
        assert found.tolist() == flagged(scores.numpy(), drawn).tolist(), seed


@pytest.mark.parametrize("f", [0, 3])
def test_fldetector_over_rounds(f: int) -> None:
    draw, n, d, window = np.random.default_rng(f), 11, 6, 3
    half = draw.normal(size=(d, d))
    curvature, centres, theta = half @ half.T / d + np.eye(d), 0.1 * draw.normal(size=(n, d)), draw.normal(size=d)
    state, sums, scores, before, found_some = dict[str, Any](), list[Array](), list[Array](), theta, False
    for t in range(11):
        X = (theta - centres) @ curvature + 0.02 * draw.normal(size=(n, d))
        X[:f] *= (-1) ** t
        found = hand_run(f"fldetector(window={window})", X, f, t, state=state)
        state, bad = dict(found.state), np.zeros(n, bool)
        if t >= 2:
            sent = np.array(sums[-window - 1 :])
            expected = before + hessian_times(-0.1 * sent[:-1].T, np.diff(sent, axis=0).T, -0.1 * sent[-1])
            away = np.linalg.norm(X - expected, axis=1)
            scores.append(away / away.sum())
            np.testing.assert_allclose(state["scores"][:, -1], scores[-1], rtol=1e-6)
        if len(scores) >= window:
            references = torch.rand((10, n), generator=stream(t, "rule"), dtype=torch.float64).numpy()
            bad = flagged(np.mean(scores[-window:], axis=0), references)
        agrees(found, X, np.flatnonzero(~bad))
        found_some |= bool(bad[:f].all() and f and not bad[f:].any())
        sums.append(X[~bad].mean(0))
        before, theta = X, theta - 0.1 * sums[-1]
    assert found_some == (f > 0)


# --- DeepSight -------------------------------------------------------------------------------------------------------


def clustered(distance: Array) -> Array:
    settings = {"min_cluster_size": 2, "min_samples": 2, "metric": "precomputed", "allow_single_cluster": True}
    label = HDBSCAN(**settings, copy=True).fit_predict(distance)
    return np.where(label < 0, len(label) + np.arange(len(label)), label)


def apart(distance: Array) -> Array:
    label = clustered(distance)
    return (label[:, None] != label[None, :]).astype(float)


def euclidean(rows: Array) -> Array:
    return np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1))


@pytest.mark.parametrize("seed", range(6))
def test_deepsight_from_energies_to_the_clipped_mean(seed: int) -> None:
    draw, n, classes, width, body = np.random.default_rng(seed), 10, 4, 3, 5
    X = draw.normal(size=(n, body + classes * (width + 1)))
    X[:, body:] += 1
    X[:4, body:] *= 0.02
    X[:4, [body, body + 1, body + 2, body + classes * width]] += 2
    outputs = [torch.softmax(torch.from_numpy(draw.normal(size=(n + 1, 6, classes))), -1) for _ in range(3)]
    given = iter(outputs)
    shapes = ((body,), (classes, width), (classes,))
    found = hand_run("deepsight(inputs=6)", X, 0, shapes=shapes, noise_outputs=lambda *_: next(given))

    weight, bias = X[:, body : body + classes * width].reshape(n, classes, width), X[:, body + classes * width :]
    energy = (np.abs(bias) + np.abs(weight).sum(2)) ** 2
    share = energy / energy.sum(1, keepdims=True)
    exceeding = (share > max(0.01, 1 / classes) * share.max(1, keepdims=True)).sum(1)
    suspect = exceeding <= np.median(exceeding) / 2
    length = np.linalg.norm(bias, axis=1)
    cosine = 1 - bias @ bias.T / np.outer(length, length)
    np.fill_diagonal(cosine, 0)
    on_noise = np.mean([apart(euclidean((o[:-1] / o[-1]).mean(1).numpy())) for o in outputs], axis=0)
    label = clustered(np.mean([apart(cosine), apart(euclidean(share)), on_noise], axis=0))
    kept = np.array([suspect[label == own].mean() < 1 / 3 for own in label])
    assert found.facts["suspects"] == np.flatnonzero(suspect).tolist()
    assert found.facts["all_condemned"] == (not kept.any())
    whole = np.linalg.norm(X, axis=1, keepdims=True)
    agrees(found, X * np.minimum(1, np.median(whole) / whole), np.flatnonzero(kept | (not kept.any())))


def normal_later(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "later"), dtype=torch.float64)


# --- FoundationFL ----------------------------------------------------------------------------------------------------


# --- FreqFed ---------------------------------------------------------------------------------------------------------


def _cosines(N: int) -> np.ndarray:
    q, k = np.meshgrid(np.arange(N), np.arange(N), indexing="ij")
    C = np.sqrt(2 / N) * np.cos(np.pi * (2 * k + 1) * q / (2 * N))
    C[0] /= np.sqrt(2)
    return C


@pytest.mark.parametrize("low", [0.3, 0.5, 1.0, 2.0])
def test_low_frequencies_are_corners_of_the_layers_cosine_transforms(low):
    shapes = ((4, 6), (4,), (3, 2, 2, 1), (1, 5), (7, 1))
    X = normal_later(5, 24 + 4 + 12 + 5 + 7)
    expected = []
    for row in X.numpy():
        found, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            W = row[start : start + size].reshape((shape[0], -1) if len(shape) > 1 else (1, -1))
            M, N = W.shape
            V = _cosines(M) @ W @ _cosines(N).T
            found += [V[p, q] for p in range(M) for q in range(N) if p / M + q / N < low - 1e-12]
            start += size
        expected.append(found)
    torch.testing.assert_close(
        low_frequencies(X, shapes, low), torch.tensor(np.array(expected)), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (6, [[0, 1, 2, 3, 4, 6, 9, 11, 12, 13, 15], [5, 8, 10, 14]]),
        (9, [[0, 1, 5, 8, 14], [2, 3, 4, 6, 7, 10, 11], [9, 12, 13, 15]]),
        (15, [[1, 2, 7, 13]]),
        (26, [[0, 2, 5, 9, 13, 15], [1, 3, 4, 6, 7, 8, 10, 11, 12, 14]]),
    ],
)
def test_clusters_are_those_of_the_package_hdbscan_with_one_neighbor(seed, found):
    """Recorded from hdbscan 0.8.44 (``min_samples=1``); with two neighbors it finds others in all four."""
    X = normal_later(16, 4, seed=seed) + 0.9 * normal_later(16, 1, seed=100 + seed).sign()
    labels = clusters(cosine_distances(Mixed(Stack(X)))[0], 4).tolist()
    assert sorted([i for i, k in enumerate(labels) if k == label] for label in set(labels) - {-1}) == found


def _waves(*amplitudes: tuple[float, float], n: int = 64) -> torch.Tensor:
    """One row for each pair of amplitudes, of a slow wave and of a fast one."""
    C = torch.from_numpy(_cosines(n))
    return torch.stack([a * C[1] + b * C[60] for a, b in amplitudes])


def test_freqfed_keeps_all_rows_that_it_cannot_tell_apart_and_refuses_too_few():
    for X in (_waves(*[(0.0, 1.0)] * 6), torch.zeros(6, 8), torch.eye(6).double()):
        result = run("freqfed(low=2)" if X.shape[1] == 6 else "freqfed", X, 1)
        assert result.facts["no_cluster"] is False
        assert result.facts["kept"] == list(range(6))
        torch.testing.assert_close(result.vector, X.mean(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directions, "clusters", lambda distance, least: torch.full((len(distance),), -1))
        nobodys = run("freqfed", _waves(*[(0.0, 1.0)] * 6), 1)
    assert (nobodys.facts["kept"], nobodys.facts["no_cluster"]) == (list(range(6)), True)
    with pytest.raises(Refused, match="freqfed: f=1 needs at least 5 clients"):
        run("freqfed", normal_later(4, 8), 1)
    with pytest.raises(UsageError, match="have 12 entries, rows 8"):
        run("freqfed", normal_later(6, 8), 1, shapes=((3, 4),))


# --- AlignIns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "private"), [("fbn", 0), ("fedbn", 16)])
def test_in_training_rules_are_told_the_model_that_clients_received(monkeypatch, norm, private):
    from robustfl.engine import train
    from robustfl.scenarios.build import build
    from robustfl.scenarios.cell import Cell

    seen: list[tuple[torch.Tensor, tuple[tuple[int, ...], ...]]] = []
    reduce = AlignIns.reduce

    def spy(self, rows, *, f, context):
        seen.append((context.model.clone(), context.shapes))
        return reduce(self, rows, f=f, context=context)

    monkeypatch.setattr(AlignIns, "reduce", spy)
    cell = Cell.of({
        "model": "mlp(hidden=(8,))", "norm": norm, "algorithm": "fedavg", "batch": 8, "rounds": 2,
        "defense": "alignins", "statistics_defense": "median",
    })  # fmt: skip
    experiment = build(cell).experiment
    start = experiment.flat.clone()
    ends = [record.state.theta.clone() for record in train(experiment)]
    sizes = [math.prod(shape) for shape in seen[0][1]]
    assert len(seen) == 2
    assert [len(model) for model, _ in seen] == [len(start) - private] * 2 == [sum(sizes)] * 2
    if private:
        matrix = sizes[0]  # the private entries stand behind the first matrix and its vector
        assert torch.equal(seen[1][0][:matrix], ends[0][:matrix])
    else:
        assert torch.equal(seen[0][0], start)
        assert torch.equal(seen[1][0], ends[0])


# --- multi-metrics ---------------------------------------------------------------------------------------------------


def _multi_metrics(X: np.ndarray) -> np.ndarray:
    """The scores as the authors compute them, pair by pair, with the inverse of NumPy's covariance."""
    t = np.zeros((len(X), 3))
    for i, a in enumerate(X):
        for j, b in enumerate(X):
            if i != j:
                cosine = a @ b / np.sqrt((a @ a) * (b @ b))
                t[i] += [np.abs(a - b).sum(), abs(np.sqrt(a @ a) - np.sqrt(b @ b)), (1 - cosine) ** 2]
    return np.einsum("ij,jk,ik->i", t, np.linalg.inv(np.cov(t.T)), t)


def test_distances_that_rounding_makes_of_equal_rows_weigh_nothing():
    row = torch.randn(500, generator=stream(1, "row"))
    X = torch.stack([row * (1 + 6e-8 * i) for i in range(6)])
    result = run("multi-metrics(p=0.5)", X, 1)
    assert result.facts["scores"] == [0.0] * 6
    assert result.facts["kept"] == [0, 1, 2]
    # Rows of one direction spread in two of the three distances only.
    lengths = torch.tensor([1.0, 1.1, 1.2, 5.0]).double()[:, None] * torch.ones(4, 3).double()
    assert run("multi-metrics(p=0.5)", lengths, 1).facts["kept"] == [1, 2]
    assert whitened(torch.zeros(3, 3).double(), 1e-16)[0].tolist() == [0.0] * 3


@pytest.mark.parametrize("size", [2e3, 1e4, 1e5])
def test_one_long_row_does_not_make_the_others_look_alike(size):
    """The spread that is left of the others is small beside it, and far above rounding."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=100) + rng.normal(size=(9, 100)), size * rng.normal(size=(1, 100))])
    kept = run("multi-metrics", torch.tensor(X), 1).facts["kept"]
    assert kept == sorted(_multi_metrics(X).argsort()[:3].tolist())
