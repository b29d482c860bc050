"""Rows that are finite and yet awkward: one far longer than the others, ties, entries near the largest float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.contracts import Context
from robustfl.data.gamma import gamma_similarity
from robustfl.defenses import parse_pipeline
from robustfl.defenses.cosines import cosine_distances, feature_distances
from robustfl.defenses.rows import Mixed, Stack
from robustfl.defenses.slices import SlicedMixed, SlicedStack
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.team import ALONE

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


def test_trust_follows_the_direction_of_a_server_whose_row_is_far_longer() -> None:
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = robustfl.defense("fltrust")(X, f=0, reference=torch.tensor([1e12, 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([1e12, 0.0])


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


def test_a_row_of_zeros_has_no_direction_beside_long_and_short_ones() -> None:
    X = torch.tensor([[1e6, 0.0], [0.0, 0.0], [1e-6, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found, _ = cosine_distances(Mixed(Stack(X)))
    assert found.tolist() == [[0, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0]]


@pytest.mark.parametrize("rule", ["multi-metrics(p=0.5)", "nnm+multi-metrics(p=0.5)"])
def test_entries_near_the_largest_float32_stop_no_server(rule: str) -> None:
    X = torch.tensor([[1.0, 0.0], [1.1, 0.1], [0.9, 0.1], [1.0, -0.1], [1.0, 0.1], [3e38, 3e38]])
    assert float((robustfl.defense(rule)(X, f=1) - torch.tensor([1.0, 0.0])).norm()) < 0.2


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


@pytest.mark.parametrize("far", [1e3, 1e6, 1e12])
def test_the_geometric_median_leaves_a_row_beside_one_that_is_far_out(far: float) -> None:
    X = np.array(AROUND)
    X[4] = -far
    assert robustfl.defense("geometric-median")(X, f=1) == pytest.approx([0.132457, 0.132457], abs=1e-5)


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


def test_bounds_between_which_no_length_lies_are_refused() -> None:
    with pytest.raises(UsageError, match="lower=3 > upper=1"):
        robustfl.defense("signguard(lower=3, upper=1)")


def test_sparse_rows_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="to_dense"):
        robustfl.defense("mean")(torch.eye(3).to_sparse(), f=0)
