"""Ties, rounding, and rows of awkward lengths: what is chosen does not hang on a last bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.evasion.lsa import _lowest as lowest_pixels
from robustfl.contracts import Context
from robustfl.data.partitions import gamma_similarity
from robustfl.defenses import Mixed, Stack, parse_pipeline
from robustfl.defenses.aggregators.directions import settled
from robustfl.defenses.aggregators.krum import closest
from robustfl.defenses.aggregators.spectral import leading
from robustfl.defenses.cosines import cosine_distances, feature_distances
from robustfl.defenses.slices import SlicedMixed, SlicedStack
from robustfl.defenses.ties import largest, smallest
from robustfl.distributed import ALONE
from robustfl.randomness import stream
from robustfl.registry import create

N, F = 11, 2
EPS = {torch.float32: 1.2e-7, torch.float64: 2.3e-16}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "ties"), dtype=torch.float64)


# --- the choice itself -----------------------------------------------------------------------------------------------


def test_of_tied_scores_the_lowest_indices_are_chosen() -> None:
    scores, slack = torch.tensor([5.0, 1.0 + 1e-9, 0.2, 1.0, 1.0 - 1e-9, 9.0]), torch.full((6,), 1e-6)
    assert [smallest(scores.double(), k, slack.double()).tolist() for k in range(1, 6)] == [
        [2], [1, 2], [1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4]
    ]  # fmt: skip
    assert largest(-scores.double(), 2, slack.double()).tolist() == [1, 2]


def test_of_pixels_that_change_as_little_the_first_are_taken() -> None:
    scores = torch.full((1, 12), 0.5)
    scores[0, 7] = 0.1
    chosen, sure = lowest_pixels(scores, torch.arange(20, 32)[None], 5)
    assert chosen.tolist() == [[27, 20, 21, 22, 23]]
    assert sure.all()
    scores[0, 2:] = torch.inf  # places that hold no candidate
    assert lowest_pixels(scores, torch.arange(20, 32)[None], 3)[1].tolist() == [[True, True, False]]


def test_the_rounding_of_a_row_that_is_nobodys_neighbor_blurs_no_score() -> None:
    at, slack = torch.tensor([0.0, 100.0, 1.0, 1.1, 1.2]).double(), torch.full((5, 5), 1e-9).double()
    slack[1] = slack[:, 1] = 50.0
    assert closest((at[:, None] - at).square(), slack, 2, 1).tolist() == [3]


def test_distances_tied_across_the_edge_of_a_digit_are_settled_as_one() -> None:
    digit = 2.0**-20
    edge = (4096 + 0.5) * digit
    distance, off = torch.tensor([edge - digit / 20, edge + digit / 20, 2 * edge]).double(), torch.full((3,), digit / 9)
    low, high, other = settled(distance, off.double()).tolist()
    assert low == high == pytest.approx(edge, abs=2 * digit)
    assert other == pytest.approx(2 * edge, abs=2 * digit)


def test_a_direction_of_spread_shared_by_several_is_taken_as_their_mean() -> None:
    # Equal spread along two axes: any basis of the plane will do, and each would weigh other rows.
    X = torch.tensor(
        [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.6, 0.8], [-0.6, -0.8], [0.8, -0.6], [-0.8, 0.6]]
    )
    for seed in range(6):
        Y = turned(torch.cat([X.double(), torch.zeros(8, 10, dtype=torch.float64)], dim=1), seed)[0]
        _, share, _ = leading((Y @ Y.T).numpy(), np.full(8, 1 / 8), np.full((8, 8), 1e-14))
        assert share.tolist() == pytest.approx([0.5] * 8)


# --- slack -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), [(6, 3), (9, 500), (7, 70_000)])
@pytest.mark.parametrize("steps", ["", "nnm", "clipping(c=3)", "arc+nnm"])
def test_distances_are_no_farther_off_than_their_slack_and_the_slack_is_small(steps, n, d, dtype):
    X = (normal(n, d) ** 3 + 0.5).to(dtype)
    X[-2:] = -X[:-2].mean(0)
    rows, exact = Mixed(Stack(X)), Mixed(Stack(X.double()))
    for step in filter(None, steps.split("+")):
        rows, exact = (r.after(create("defense", step), f=2, context=Context()) for r in (rows, exact))
    if rows.coefficients is not None and exact.coefficients is not None:
        torch.testing.assert_close(rows.coefficients, exact.coefficients, rtol=1e-5, atol=1e-6)
        exact = Mixed(exact.stack, rows.coefficients)
    Y = exact.materialise()
    distances = torch.cdist(Y, Y, compute_mode="donot_use_mm_for_euclid_dist").square()
    slack = rows.slack()
    assert bool(((rows.squared_distances() - distances).abs() <= slack + 1e-25).all())
    reach = float(rows.norms().max() + X.double().norm(dim=1).max()) ** 2
    assert float(slack.max()) < 1e3 * EPS[dtype] * reach


# --- rules -----------------------------------------------------------------------------------------------------------

SELECTING = [
    "krum", "krum(variant=nf)", "multi-krum", "multi-krum(m=3)", "bulyan", "mda", "smea", "monna(pivot=4)", "cge",
    "dnc", "caf", "flame(noise=0)", "nnm+mean", "nnm+krum", "nnm+multi-krum(m=3)", "nnm+mda", "nnm+smea", "nnm+caf",
    "nnm+nnm+mean", "arc+nnm+krum", "nnm+cge", "nnm+monna", "bucketing(s=1)+mda",
]  # fmt: skip
COLUMNS = ["meamed", "phocas", "bulyan", "nnm+meamed", "nnm+phocas", "nnm+bulyan", "signguard", "nnm+signguard"]


def forged(d: int) -> Tensor:
    """Sign flipping: two forged rows, equal to each other."""
    honest = normal(N - F, d) + 0.4
    return torch.cat([honest, -honest.mean(0).expand(F, -1)])


def even(d: int) -> Tensor:
    """All rows equally far from each other and from the origin."""
    return torch.eye(N, d, dtype=torch.float64)


def pairs(d: int) -> Tensor:
    """Opposite rows: every distance occurs several times, and every second median lies in the middle."""
    half = normal(5, d)
    return torch.cat([half, -half, torch.zeros(1, d, dtype=torch.float64)])


def camps(d: int) -> Tensor:
    """Two camps of equal rows and one in the middle."""
    one = normal(1, d)
    return torch.cat([one.expand(5, -1), torch.zeros(1, d, dtype=torch.float64), -one.expand(5, -1)])


def same(d: int) -> Tensor:
    """Honest rows that agree, forged rows that agree."""
    one = normal(1, d)
    return torch.cat([one.expand(N - F, -1), -3 * one.expand(F, -1)])


GRIDS = [forged, even, pairs, camps, same]


def turned(X: Tensor, seed: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The rows after a rotation, and what turns a result back."""
    Q = torch.linalg.qr(normal(X.shape[1], X.shape[1], seed=seed)).Q.to(X.dtype)
    return X @ Q, lambda v: v @ Q.T


def nudged(X: Tensor, seed: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The rows with the last bit of every entry up, down or as it was."""
    shift = torch.randint(-1, 2, X.shape, generator=stream(seed, "bits")).to(X.dtype)
    return X * (1 + shift * torch.finfo(X.dtype).eps), lambda v: v


def outcome(spec: str, X: Tensor) -> tuple[Tensor, object]:
    result = parse_pipeline(spec).run(X, f=F, context=Context(generator=stream(0, "defense")))
    chosen = {k: v for k, v in result.facts.items() if k in ("selected", "selected_in_order", "subset", "kept")}
    return result.vector, chosen


@pytest.mark.parametrize("spec", SELECTING)
@pytest.mark.parametrize("change", [turned, nudged], ids=lambda c: c.__name__)
def test_the_last_bit_and_a_rotation_change_no_selection(change, spec) -> None:
    for grid, dtype in itertools.product(GRIDS, EPS):
        X = grid(24).to(dtype)
        vector, chosen = outcome(spec, X)
        atol = 300 * EPS[dtype] * float(X.norm(dim=1).max())
        for seed in range(3):
            other, back = change(X, seed)
            found, selected = outcome(spec, other)
            assert selected == chosen, (grid, dtype, seed)
            if "bulyan" in spec and change is turned:  # its second half looks at coordinates
                continue
            torch.testing.assert_close(back(found), vector, rtol=0, atol=atol)


@pytest.mark.parametrize("spec", COLUMNS)
def test_the_last_bit_changes_no_column(spec) -> None:
    for grid, dtype in itertools.product(GRIDS, EPS):
        X = grid(40).to(dtype)
        vector, _ = outcome(spec, X)
        atol = 300 * EPS[dtype] * float(X.abs().max())
        for seed in range(3):
            torch.testing.assert_close(outcome(spec, nudged(X, seed)[0])[0], vector, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", [1, 2, 4])
def test_of_equal_values_with_unequal_weights_the_lower_row_is_trimmed_below(f, dtype) -> None:
    values = torch.tensor([0.1, 0.1, 0.1, 0.7, 0.1, 0.7, 0.7, 0.7, 0.4], dtype=dtype)
    weights = torch.tensor([1.0, 2, 4, 8, 16, 32, 64, 128, 256])
    left = {1: [1, 2, 4, 3, 5, 6, 8], 2: [2, 4, 3, 5, 8], 4: [8]}[f]
    expected = float((values[left].double() * weights[left]).sum() / weights[left].sum())
    rule = parse_pipeline("trimmed-mean(weighted=true)")
    for seed in range(6):
        X = nudged(values[:, None].expand(-1, 5), seed)[0]
        assert rule(X, f=f, weights=weights).tolist() == pytest.approx([expected] * 5, rel=1e-5)


@pytest.mark.parametrize("spec", ["krum", "nnm+trimmed-mean", "multi-krum(m=3)", "mda", "nnm+meamed"])
def test_long_rows_and_their_order_of_summation_change_no_selection(spec) -> None:
    # float32 products, summed in another order when columns come in another order.
    X = forged(70_000).float()
    order = torch.randperm(70_000, generator=stream(0, "columns"))
    vector, chosen = outcome(spec, X)
    found, selected = outcome(spec, X[:, order].contiguous())
    assert selected == chosen
    torch.testing.assert_close(found, vector[order], rtol=1e-4, atol=1e-5)


MANY = 70_000
"""Columns from which on inner products of float32 rows are in float32."""


@pytest.mark.parametrize("length", [1.0, 1e5, 1e8, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_long_row_takes_no_trust_from_the_others(length: float, dtype: torch.dtype) -> None:
    X = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [0.01 * length, length]], dtype=dtype)
    found = robustfl.defense("fltrust")(X, f=1, reference=torch.tensor([1.0, 0.0], dtype=dtype))
    cosines = np.array([1, 1 / 1.01**0.5, 1 / 1.01**0.5, 0.01 / 1.0001**0.5])
    unit = X.double().numpy() / X.double().norm(dim=1, keepdim=True).numpy()
    assert found.tolist() == pytest.approx((cosines / cosines.sum() @ unit).tolist(), rel=1e-5)


def test_inner_products_with_a_point_are_each_rows_own_mixed_or_in_parts() -> None:
    X = (
        torch.randn(5, 30, generator=stream(0, "rows"), dtype=torch.float64)
        * torch.tensor([1, 1, 1e9, 1e-9, 1])[:, None]
    )
    point, mixing = torch.randn(30, generator=stream(0, "point"), dtype=torch.float64), torch.eye(5).double().flip(0)
    wanted = torch.cat([X @ point, (point @ point)[None]])
    for rows in (Mixed(Stack(X)), SlicedMixed(SlicedStack(X, 30, ALONE))):
        torch.testing.assert_close(rows.along(point), wanted, rtol=1e-12, atol=0)
    mixed = Mixed(Stack(X), mixing).along(point)
    torch.testing.assert_close(mixed, torch.cat([wanted[:-1].flip(0), wanted[-1:]]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("short", [1e-2, 1e-4, 1e-8])
def test_directions_of_short_rows_are_known_beside_long_ones(short: float) -> None:
    X = torch.randn(8, MANY, generator=stream(1, "rows")) + 1
    X[:2] *= short
    unit = X.double() / X.double().norm(dim=1, keepdim=True)
    wanted = (1 - unit @ unit.T).fill_diagonal_(0)
    found, off = cosine_distances(Mixed(Stack(X)))
    assert bool(((found - wanted).abs() <= off).all())
    features = X[:, :50].double()
    seen = features / features.norm(dim=1, keepdim=True)
    made, _ = feature_distances(features, Mixed(Stack(features)))
    torch.testing.assert_close(made, (1 - seen @ seen.T).fill_diagonal_(0), rtol=1e-6, atol=1e-9)
    weights = parse_pipeline("foolsgold").run(X, f=1, context=Context()).facts["weights"]
    assert weights == pytest.approx([1.0] * 8)


def test_a_mean_of_two_rows_near_the_largest_float32_is_finite_where_signs_vote() -> None:
    X = torch.ones(5, 3)
    X[:2] = 3e38
    assert robustfl.defense("rlr")(X, f=2).tolist() == pytest.approx(robustfl.defense("mean")(X, f=2).tolist())


AROUND = [[0.0, 0.0], [1.0, 1.0], [1.0, -0.1], [-0.1, 1.0], [-1.0, -1.0]]
"""Their median is the first of them, which is not the point of the least sum of distances: 0.13246 of both."""


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e4, 1e5, 1e8])
@pytest.mark.parametrize("init", ["median", "zero"])
def test_the_geometric_median_leaves_a_row_that_it_starts_from(scale: float, init: str) -> None:
    found = robustfl.defense(f"geometric-median(init={init})")(np.array(AROUND) * scale, f=1)
    assert found / scale == pytest.approx([0.132457, 0.132457], abs=1e-5)


def test_the_geometric_median_stays_at_a_row_that_holds_it() -> None:
    X = np.array([[0.0, 0.0], [0.0, 0.0], *AROUND[1:]]) * 1e5
    assert np.abs(robustfl.defense("geometric-median")(X, f=1)).max() < 1e-5
    same = np.full((5, 3), 7.0)
    assert robustfl.defense("geometric-median")(same, f=1) == pytest.approx([7.0] * 3, rel=1e-12)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_caf_stops_at_a_tie_whatever_the_order_of_rows(order: list[int]) -> None:
    X: Tensor = torch.tensor([[-1, 0, 1], [0, -1, 0], [0, 1, 0]], dtype=torch.float64)
    assert robustfl.defense("caf")(X[order], f=1).tolist() == pytest.approx([-1 / 3, 0, 1 / 3])


@pytest.mark.parametrize(("gamma", "even"), [(0.29, 29), (0.57, 57), (0.58, 58), (0.5, 50), (0.295, 29)])
def test_the_even_share_is_of_decimal_gamma(gamma: float, even: int) -> None:
    labels = np.repeat([0, 1], 50)
    parts = gamma_similarity(labels, 1, gamma, np.random.default_rng(0).permutation(100))
    rest = labels[parts[0][even:]]
    assert (rest == np.sort(rest)).all()
    assert not (labels[parts[0][even - 2 :]] == np.sort(labels[parts[0][even - 2 :]])).all()


WHOLE = [
    "krum", "multi-krum(m=3)", "bulyan", "mda", "smea", "monna(pivot=4)", "dnc", "caf", "flame(noise=0)", "nnm+mean",
    "nnm+krum", "meamed", "phocas", "gas", "gas(rule=krum)", "foundationfl", "freqfed", "clipped-clustering",
    "signguard", "trimmed-mean(weighted=true)",
]  # fmt: skip
"""Rules that select by distances, directions or values."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", WHOLE)
def test_rows_of_whole_models_that_differ_little_are_told_apart_as_in_float64(rule: str, seed: int) -> None:
    """Distances are 1e-5 of the models' lengths; attackers come first and are 1.05 times as far out."""
    model, moves = 0.05 * normal(2000, seed=seed), normal(N, 2000, seed=seed + 100)
    moves *= 1e-5 * model.norm() / moves.norm(dim=1, keepdim=True)
    moves[:F] *= 1.05
    X = (model + moves).float()
    weights = torch.arange(1, N + 1).double() if "weighted" in rule else None
    found, wanted = (
        parse_pipeline(rule).run(rows, f=F, context=Context(generator=stream(0, "defense"), weights=weights)).vector
        for rows in (X, X.double())
    )
    off = float((found.double() - wanted).norm() / moves[-1].norm())
    assert off < (0.05 if "weighted" in rule else 0.015)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["cge", "multi-metrics"])
def test_lengths_of_whole_models_that_differ_little_are_told_apart_as_in_float64(rule: str, seed: int) -> None:
    model = normal(2000, seed=seed)
    moves = normal(N, 2000, seed=seed + 100) + torch.linspace(0.5, -0.5, N).double()[:, None] * model
    X = (model + 1e-5 * moves).float()
    found, wanted = (parse_pipeline(rule).run(rows, f=F, context=Context()).vector for rows in (X, X.double()))
    assert float((found.double() - wanted).norm() / (1e-5 * moves[-1].norm())) < 0.015
