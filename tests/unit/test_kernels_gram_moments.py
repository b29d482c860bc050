"""Inner products, means and deviations: accurate where the textbook formula is not."""

from __future__ import annotations

import pytest
import torch

from robustfl import kernels
from robustfl.defenses import Stack
from robustfl.kernels import blocks, gram, moments


def _distances(X: torch.Tensor) -> torch.Tensor:
    return (X[:, None].double() - X[None].double()).square().sum(-1)


def _distances_of(X: torch.Tensor) -> torch.Tensor:
    return kernels.squared_distances(kernels.centred_gram(X).products)[: len(X), : len(X)]


def test_products_are_about_the_centre_and_end_with_the_origin():
    X = torch.tensor([[1.0, 2.0], [3.0, 5.0], [1.0, 3.0]], dtype=torch.float64)
    made = kernels.centred_gram(X)
    points = torch.cat([X, torch.zeros(1, 2)]) - X[made.centre]
    torch.testing.assert_close(made.products, points @ points.T, rtol=0, atol=0)


def test_close_rows_far_from_the_origin_keep_their_distances():
    X = 1e6 + torch.randn(30, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-4
    torch.testing.assert_close(_distances_of(X), _distances(X), rtol=1e-6, atol=0)


@pytest.mark.parametrize("where", [0, 4])
def test_a_huge_row_does_not_spoil_the_distances_of_the_others(where):
    X = torch.randn(7, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[where] *= 1e12
    X[1] *= 1e7
    honest = [i for i in range(7) if i not in (where, 1)]
    torch.testing.assert_close(_distances_of(X)[honest][:, honest], _distances(X)[honest][:, honest], rtol=1e-9, atol=0)


@pytest.mark.parametrize("where", [0, 3])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e25])
def test_long_float32_rows_keep_their_distances_whatever_the_outlier(where, size):
    X = 100 + torch.randn(6, 70_000, generator=torch.Generator().manual_seed(0))
    X[where] *= size
    others = [i for i in range(6) if i != where]
    torch.testing.assert_close(_distances_of(X)[others][:, others], _distances(X)[others][:, others], rtol=1e-6, atol=0)


def test_blocks_and_chunks_add_up(monkeypatch):
    X = torch.randn(5, 9_001, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(gram, "width", lambda *_, **__: 2_048)
    torch.testing.assert_close(_distances_of(X), _distances(X), rtol=1e-12, atol=0)
    point = torch.ones(9_001)
    made = kernels.centred_gram(X)
    points = torch.cat([X, torch.zeros(1, 9_001), point[None]]).double() - X[made.centre].double()
    torch.testing.assert_close(kernels.products_with(X, made.centre, point), points @ points[-1], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("how", ["never", "always"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_mean_and_std_match_torch_in_every_block(how, ddof, monkeypatch):
    monkeypatch.setenv("ROBUSTFL_NATIVE", how)
    monkeypatch.setattr(moments, "width", lambda *_: 300)
    X = 1e3 + torch.randn(7, 1_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, std = kernels.mean_and_std(X, ddof)
    torch.testing.assert_close(mean, X.mean(0), rtol=1e-13, atol=0)
    torch.testing.assert_close(std, X.std(0, correction=ddof), rtol=1e-11, atol=0)


def test_mean_and_std_have_the_same_bits_with_and_without_c(monkeypatch):
    X = torch.randn(7, 1_001, generator=torch.Generator().manual_seed(0))
    monkeypatch.setenv("ROBUSTFL_NATIVE", "never")
    mean, std = kernels.mean_and_std(X)
    monkeypatch.setenv("ROBUSTFL_NATIVE", "always")
    assert all(torch.equal(a, b) for a, b in zip(kernels.mean_and_std(X), (mean, std), strict=True))


def test_equal_rows_have_their_value_as_mean_and_no_deviation():
    X = torch.full((7, 3), 0.1)
    mean, std = kernels.mean_and_std(X)
    assert torch.equal(mean, X[0])
    assert std.tolist() == [0.0] * 3


def test_the_deviation_of_a_single_row_is_nan_as_in_torch():
    mean, std = kernels.mean_and_std(torch.tensor([[3.0]]))
    assert mean.tolist() == [3.0]
    assert bool(std.isnan().all())


def test_a_weighted_sum_of_rows_keeps_the_dtype():
    out = Stack(torch.tensor([[1.0], [3.0]])).combine(torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert out.dtype == torch.float32
    assert out.tolist() == [2.5]


def test_a_block_covers_everything_once():
    covered = [i for block in blocks.blocks(10, 3) for i in range(10)[block]]
    assert covered == list(range(10))


@pytest.mark.parametrize("d", [7, 70_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_further_points_stand_after_the_origin(d, dtype):
    X = torch.randn(6, d, generator=torch.Generator().manual_seed(0), dtype=dtype)
    made = kernels.centred_gram(X[:4], X[4], X[5])
    points = torch.cat([X[:4], torch.zeros(1, d, dtype=dtype), X[4:]]).double() - X[made.centre].double()
    torch.testing.assert_close(made.products, points @ points.T, rtol=1e-6, atol=1e-6 * d)
