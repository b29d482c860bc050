"""Inner products, moments, and order statistics by columns."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import pytest
import torch

from robustfl import kernels
from robustfl.kernels import blocks, fused, gram, native, order
from robustfl.kernels.blocks import over_columns
from robustfl.kernels.networks import network


def _sorted_mean(X: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return X.double().sort(dim=0).values[low:high].mean(dim=0)


@pytest.mark.parametrize("n", range(1, 9))
def test_network_selects_every_rank_range_of_every_zero_one_input(n):
    # The zero-one principle: a network of comparators that is right on 0/1 inputs is right on all.
    X = torch.tensor(list(product([0.0, 1.0], repeat=n))).T.contiguous()
    for low in range(n):
        for high in range(low + 1, n + 1):
            rule = order.RankMean(n, low, high)
            out = torch.empty(X.shape[1])
            order.run(rule.program, X, out, torch.empty(rule.scratch_rows, X.shape[1]))
            torch.testing.assert_close(out, _sorted_mean(X, low, high).float(), rtol=0, atol=1e-6)


def median(X):
    return over_columns(X, kernels.median_rule(len(X)))


def trimmed_mean(X, f, mixing=None):
    return over_columns(X, kernels.trimmed_mean_rule(len(X if mixing is None else mixing), f), mixing=mixing)


@pytest.mark.parametrize("n", [10, 13, 50])
def test_networks_of_many_wires_sort_random_columns(n):
    X = torch.randn(n, 300, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    f = (n - 1) // 3
    torch.testing.assert_close(trimmed_mean(X, f), _sorted_mean(X, f, n - f), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(median(X), _sorted_mean(X, (n - 1) // 2, n // 2 + 1), rtol=0, atol=0)


def test_pruning_removes_the_comparators_nobody_needs():
    assert network(10, 0, 10).comparators == ()
    assert len(network(10, 4, 6).comparators) < 31


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_c_torch_blocks_and_threads_give_the_same_bits(dtype, monkeypatch):
    X = torch.randn(11, 20_011, generator=torch.Generator().manual_seed(0), dtype=dtype)
    X[:, ::7] = X[:, ::7].round()  # ties, and zeros of both signs
    X[::2, ::14] *= -0.0
    results = []
    threads = torch.get_num_threads()
    for how, width, count in [("never", 65_536, 1), ("never", 4_096, 1), ("never", 65_536, 2), ("always", 65_536, 2)]:
        monkeypatch.setenv("ROBUSTFL_NATIVE", how)
        monkeypatch.setattr(blocks, "width", lambda *_, width=width, **__: width)
        monkeypatch.setattr(native, "_ENTRIES_PER_THREAD", 1)
        torch.set_num_threads(count)
        try:
            results.append(torch.stack([median(X), median(X[:10]), trimmed_mean(X, 3)]))
        finally:
            torch.set_num_threads(threads)
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    for other in results[1:]:
        assert torch.equal(other.view(bits), results[0].view(bits))


def test_mixing_in_blocks_equals_mixing_the_whole_stack(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(6, 1_000, generator=g, dtype=torch.float64)
    A = torch.rand(5, 6, generator=g, dtype=torch.float64)
    monkeypatch.setattr(blocks, "width", lambda *_, **__: 300)
    torch.testing.assert_close(trimmed_mean(X, 2, mixing=A), trimmed_mean(A @ X, 2), rtol=0, atol=1e-13)


def test_without_a_compiler_the_c_kernels_are_not_asked_for(monkeypatch):
    monkeypatch.setenv("ROBUSTFL_NATIVE", "always")
    monkeypatch.setattr(native, "library", lambda: None)
    assert not native.ready(torch.zeros(3, 4))


def test_c_is_compiled_only_after_the_torch_code_has_cost_as_much(monkeypatch):
    monkeypatch.delenv("ROBUSTFL_NATIVE", raising=False)
    monkeypatch.setattr(native, "library", object)
    monkeypatch.setattr(native, "shipped", lambda: None)
    monkeypatch.setattr(native, "_account", native._Account())
    X = torch.zeros(3, 4)
    assert not native.ready(X)
    native.charge(native.BREAK_EVEN_SECONDS)
    assert native.ready(X)
    assert not native.ready(X.T)
    assert not native.ready(X.half())


@pytest.mark.skipif(native.library() is None, reason="no C compiler")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [0, 1_023, 1_024, 300_000, 599_999])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_compiled_ranks_see_every_broken_entry(monkeypatch, bad, at, threads):
    monkeypatch.setenv("ROBUSTFL_NATIVE", "always")
    monkeypatch.setattr(native, "_threads", lambda X: threads)
    X = torch.zeros(3, 600_000)
    rule = kernels.median_rule(3)
    assert kernels.tame_rank_mean(X, rule) is not None
    X[1, at] = bad
    assert kernels.tame_rank_mean(X, rule) is None


@pytest.mark.skipif(native.library() is None, reason="no C compiler")
def test_the_compiled_ranks_leave_absurdly_long_rows_to_the_slow_look(monkeypatch):
    monkeypatch.setenv("ROBUSTFL_NATIVE", "always")
    X = torch.full((3, 10), 1e139, dtype=torch.float64)
    assert kernels.tame_rank_mean(X, kernels.median_rule(3)) is not None
    X[2, 9] = -1e145
    assert kernels.tame_rank_mean(X, kernels.median_rule(3)) is None


ON_A_GPU = """
import torch
from robustfl.kernels import fused
from robustfl.kernels.networks import network

for n, low, high in ((1, 0, 1), (5, 2, 3), (6, 2, 4), (13, 4, 9), (20, 0, 20)):
    for dtype in (torch.float32, torch.float64):
        wide = torch.randn(n, 400, dtype=dtype, generator=torch.Generator().manual_seed(n))
        X, out = wide[:, :301], torch.full((301,), torch.nan, dtype=dtype)  # a last block that is not full
        X[:, ::3] = -0.0
        fused._launch(network(n, low, high), X, out)
        torch.testing.assert_close(out, X.sort(dim=0).values[low:high].mean(0), rtol=1e-6, atol=1e-7)
        assert not out[::3].signbit().any()
"""


@pytest.mark.slow
def test_the_kernel_of_a_gpu_is_right_in_tritons_interpreter():
    pytest.importorskip("triton")
    surroundings = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class _Elsewhere:
    """What the choice of a way looks at in rows on a GPU."""

    device, dtype = torch.device("cuda"), torch.float32

    def __init__(self, n: int, d: int, step: int = 1) -> None:
        self.shape, self._step = torch.Size((n, d)), step

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return self.shape.numel()

    def stride(self, _: int) -> int:
        return self._step


@pytest.mark.parametrize(
    ("rows", "by_kernel"),
    [
        (_Elsewhere(10, 1_000_000), True),
        (_Elsewhere(10, 100_000), False),  # sorted soon
        (_Elsewhere(100, 1_300_000), True),
        (_Elsewhere(100, 500_000), False),  # not worth half a minute of compiling
        (_Elsewhere(129, 100_000_000), False),  # more than a thread has registers
        (_Elsewhere(10, 1_000_000, step=2), False),
    ],
)
def test_which_rows_the_kernel_of_a_gpu_takes(rows, by_kernel, monkeypatch):
    monkeypatch.delenv("ROBUSTFL_NATIVE", raising=False)
    monkeypatch.setattr(fused, "find_spec", lambda name: name)
    launched = []
    monkeypatch.setattr(fused, "_launch", lambda *call: launched.append(call))
    n = len(rows)
    assert fused.rank_mean(rows, 3 * n // 10, n - 3 * n // 10, None) is by_kernel
    assert len(launched) == by_kernel
    monkeypatch.setenv("ROBUSTFL_NATIVE", "never")
    assert not fused.rank_mean(rows, 3 * n // 10, n - 3 * n // 10, None)


def test_a_kernel_that_does_not_compile_is_not_tried_again(monkeypatch):
    tried = []

    def launch(*call):
        tried.append(call)
        raise RuntimeError("no C compiler")

    monkeypatch.delenv("ROBUSTFL_NATIVE", raising=False)
    monkeypatch.setattr(fused, "find_spec", lambda name: name)
    monkeypatch.setattr(fused, "_launch", launch)
    monkeypatch.setattr(fused, "_FAILED", set())
    assert [fused.rank_mean(_Elsewhere(9, 1_000_000), 3, 6, None) for _ in range(2)] == [False, False]
    assert len(tried) == 1


def _distances(X: torch.Tensor) -> torch.Tensor:
    return (X[:, None].double() - X[None].double()).square().sum(-1)


def _distances_of(X: torch.Tensor) -> torch.Tensor:
    return kernels.squared_distances(kernels.centred_gram(X).products)[: len(X), : len(X)]


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
    monkeypatch.setattr(order, "width", lambda *_: 300)
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
