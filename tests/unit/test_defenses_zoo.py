"""The rules beyond the first few: by hand, against slow literal versions, and their bounds."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import robustfl
from robustfl.contracts import Aggregated, Context
from robustfl.defenses import Mixed, Stack, parse_pipeline
from robustfl.defenses.columns import NearestMean
from robustfl.defenses.draws import subset
from robustfl.errors import Refused, UsageError
from robustfl.kernels.blocks import over_columns
from robustfl.randomness import stream
from robustfl.registry import create


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=stream(seed, "zoo"), dtype=torch.float64)


def facts(spec: str, X: torch.Tensor, f: int, **context: object) -> Aggregated:
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


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_rfa_takes_so_many_weighted_steps_from_the_weighted_mean(steps):
    X, share = normal(7, 3).numpy(), np.arange(1.0, 8.0) / 28
    place = share @ X
    for _ in range(steps):
        inverse = share / np.maximum(0.4, np.linalg.norm(X - place, axis=1))
        place = inverse @ X / inverse.sum()
    found = facts(f"rfa(steps={steps}, nu=0.4)", torch.from_numpy(X), 2, weights=torch.arange(1.0, 8.0)).vector
    torch.testing.assert_close(found, torch.from_numpy(place), rtol=1e-9, atol=1e-12)


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
    assert facts(rule, X, f).facts["subset"] == _brute(X, f, cost)


def test_smea_finds_the_best_of_many_subsets():
    # In many dimensions the bound from below is loose: the best subset is not among the first that are looked at.
    X = normal(18, 60, 1)
    result = facts("smea", X, 5)
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
    assert facts("mda", X, 10).facts["subset"] == list(range(10, 22))


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


def test_dnc_keeps_who_survives_every_draw_of_coordinates():
    X, draws = normal(12, 300, 5), stream(0, "defense")
    kept = set(range(12))
    for _ in range(3):
        seen = X[:, subset(300, 30, draws)]
        centred = seen - seen.mean(0)
        scores = (centred @ torch.linalg.svd(centred).Vh[0]).square()
        kept -= set(scores.argsort()[-2:].tolist())
    assert 6 <= len(kept) < 10  # the draws disagree
    assert facts("dnc(b=30, niters=3)", X, 2).facts["kept"] == sorted(kept)


def test_dnc_without_a_survivor_keeps_the_least_dropped():
    # The first coordinate tells against rows 0 and 1, the second against 2 and 3; 41 draws cannot be even.
    X = torch.tensor([[9.0, 0.0], [-9.0, 0.0], [0.0, 9.0], [0.0, -9.0]])
    assert facts("dnc(b=1, niters=41)", X, 2).facts["kept"] in ([0, 1], [2, 3])


# --- Bulyan, CAF -----------------------------------------------------------------------------------------------------


# With seed 1 and nobody shifted the eigenvalue rises again before the end.
@pytest.mark.parametrize(("seed", "f", "shift"), [(0, 3, 2.0), (1, 3, 2.0), (1, 4, 0.0)])
def test_caf_as_its_covariance_matrix_has_it(seed, f, shift):
    X = normal(9, 4, seed)
    X[:3] += shift
    c, best, least = torch.ones(9).double(), None, np.inf
    while float(c.sum()) > 9 - 2 * f:
        mean = (c[:, None] * X).sum(0) / c.sum()
        values, vectors = torch.linalg.eigh((c[:, None] * (X - mean)).T @ (X - mean) / c.sum())
        if float(values[-1]) < least:
            best, least = mean, float(values[-1])
        excess = ((X - mean) @ vectors[:, -1]).square()
        c = c * (1 - excess / excess.max())
    result = facts("caf", X, f)
    torch.testing.assert_close(result.vector, best, rtol=1e-9, atol=1e-9)
    assert result.facts["lambda"] == pytest.approx(least)


def test_caf_ends_when_far_rows_without_weight_slow_it_down():
    X = normal(12, 3)
    X[0] *= 1e8
    X[1:4] += 5
    result = facts("caf(max_steps=50)", X, 4)
    assert result.facts["slow"]
    assert 50 < result.facts["iterations"] <= 50 + 12
    assert float(result.vector.norm()) < 10
    assert not facts("caf", normal(12, 3), 4).facts["slow"]
    # 40 of 40 stopped at 1,000 steps, with means up to nine honest deviations away.
    for seed in range(40):
        X = normal(10, 1, seed)
        X[:3] *= 1000
        result = facts("caf(max_steps=100)", X, 3)
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
        found = facts("foolsgold", torch.from_numpy(X), 1).facts["weights"]
        assert found == pytest.approx(expected.tolist(), abs=1e-7)


def test_foolsgold_knows_clients_by_number_not_by_row():
    first, second = normal(3, 6, 1), normal(3, 6, 2)
    one = facts("foolsgold", first, 1, clients=torch.tensor([7, 2, 5]))
    two = facts("foolsgold", second, 1, clients=torch.tensor([5, 9, 2]), state=one.state)
    order = two.state["clients"].tolist()
    expected = {7: first[0], 2: first[1] + second[2], 5: first[2] + second[0], 9: second[1]}
    for client, row in zip(order, two.state["history"], strict=True):
        torch.testing.assert_close(row, expected[client])
    present = torch.stack([expected[k] for k in (5, 9, 2)]).numpy()
    assert two.facts["weights"] == pytest.approx(_foolsgold(present).tolist(), abs=1e-9)


def test_a_broken_row_does_not_move_the_memory_of_others():
    X = normal(4, 3)
    X[1, 0] = torch.nan
    assert facts("foolsgold", X, 1).state["clients"].tolist() == [0, 2, 3]


def test_foolsgold_zero_for_copies_and_refuses_foreign_state():
    result = facts("foolsgold", torch.ones(4, 3).double(), 1)
    assert result.facts["no_trust"]
    assert not bool(result.vector.any())
    with pytest.raises(UsageError, match="3 entries a client, rows have 2"):
        facts("foolsgold", torch.ones(4, 2).double(), 1, state=result.state)


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
    found = facts("fltrust", X, 1, reference=X[0])
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
        facts("signguard", torch.randn(9, 50, generator=torch.Generator().manual_seed(0)), 2)
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
    result = facts("signguard", X, 3)
    assert result.facts["kept"] == np.flatnonzero(alike).tolist()
    middle = float(X.norm(dim=1).quantile(0.5))
    expected = (X * (middle / X.norm(dim=1)).clamp(max=1)[:, None])[result.facts["kept"]].mean(0)
    torch.testing.assert_close(result.vector, expected, rtol=1e-9, atol=1e-9)


def test_flame_admits_the_majority_direction_clips_and_adds_noise():
    X = 1 + 0.3 * normal(9, 400)
    X[:3] = -X[:3]
    X[8] *= 4
    quiet = facts("flame(noise=0)", X, 3)
    length = X.norm(dim=1)
    middle = length.quantile(0.5)
    assert len(quiet.facts["kept"]) >= 5
    assert set(quiet.facts["kept"]) <= set(range(3, 9))
    expected = (X * (middle / length).clamp(max=1)[:, None])[quiet.facts["kept"]].mean(0)
    torch.testing.assert_close(quiet.vector, expected, rtol=1e-9, atol=1e-9)
    noise = facts("flame(noise=0.01)", X, 3).vector - quiet.vector
    assert float(noise.std()) == pytest.approx(0.01 * float(middle), rel=0.15)


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
