"""FoundationFL, FreqFed, AlignIns and multi-metrics against slow literal versions of their formulas."""

from __future__ import annotations

import math
from statistics import mean, median, pstdev

import numpy as np
import pytest
import torch

import robustfl
from robustfl.contracts import Aggregated, Context
from robustfl.defenses.aggregators import freqfed
from robustfl.defenses.aggregators.alignins import AlignIns
from robustfl.defenses.aggregators.freqfed import low_frequencies
from robustfl.defenses.aggregators.multi_metrics import whitened
from robustfl.defenses.cosines import clusters, cosine_distances
from robustfl.defenses.rows import Mixed, Stack
from robustfl.errors import Refused, UsageError
from robustfl.randomness import stream


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "later"), dtype=torch.float64)


def run(spec: str, X: torch.Tensor, f: int, **context: object) -> Aggregated:
    return robustfl.defense(spec).run(X, f=f, context=Context(generator=stream(0, "defense"), **context))


# --- FoundationFL ----------------------------------------------------------------------------------------------------


def _foundation(rows: list[list[float]], f: int, rule: str, share: float, best=max) -> tuple[int, list[float]]:
    """Equations 2 to 7, column by column."""
    columns = list(zip(*rows, strict=True))
    high, low = [max(c) for c in columns], [min(c) for c in columns]
    scores = [min(math.dist(row, high), math.dist(row, low)) for row in rows]
    star = scores.index(best(scores))
    made = []
    for k, column in enumerate(columns):
        values = sorted([*column, *[rows[star][k]] * int(share * len(rows))])
        made.append(median(values) if rule == "median" else mean(values[f : len(values) - f]))
    return star, made


@pytest.mark.parametrize("rule", ["trimmed-mean", "median"])
@pytest.mark.parametrize(("copied", "best"), [("farthest", max), ("nearest", min)])
@pytest.mark.parametrize(("n", "f", "share"), [(9, 2, 0.5), (5, 0, 0.5), (8, 3, 1.25), (4, 1, 0.2)])
def test_foundationfl_copies_a_row_by_its_distance_from_the_extremes(rule, copied, best, n, f, share):
    X = normal(n, 6, seed=n)
    star, expected = _foundation(X.tolist(), f, rule, share, best)
    result = run(f"foundationfl(rule={rule}, copied={copied}, share={share})", X, f)
    assert (result.facts["copied"], result.facts["copies"]) == (star, int(share * n))
    torch.testing.assert_close(result.vector, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


# --- FreqFed ---------------------------------------------------------------------------------------------------------


def _cosines(N: int) -> np.ndarray:
    q, k = np.meshgrid(np.arange(N), np.arange(N), indexing="ij")
    C = np.sqrt(2 / N) * np.cos(np.pi * (2 * k + 1) * q / (2 * N))
    C[0] /= np.sqrt(2)
    return C


@pytest.mark.parametrize("low", [0.3, 0.5, 1.0, 2.0])
def test_low_frequencies_are_corners_of_the_layers_cosine_transforms(low):
    shapes = ((4, 6), (4,), (3, 2, 2, 1), (1, 5), (7, 1))
    X = normal(5, 24 + 4 + 12 + 5 + 7)
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
    X = normal(16, 4, seed=seed) + 0.9 * normal(16, 1, seed=100 + seed).sign()
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
        patch.setattr(freqfed, "clusters", lambda distance, least: torch.full((len(distance),), -1))
        nobodys = run("freqfed", _waves(*[(0.0, 1.0)] * 6), 1)
    assert (nobodys.facts["kept"], nobodys.facts["no_cluster"]) == (list(range(6)), True)
    with pytest.raises(Refused, match="freqfed: f=1 needs at least 5 clients"):
        run("freqfed", normal(4, 8), 1)
    with pytest.raises(UsageError, match="have 12 entries, rows 8"):
        run("freqfed", normal(6, 8), 1, shapes=((3, 4),))


# --- AlignIns --------------------------------------------------------------------------------------------------------


def _alignins(X: list[list[float]], model: list[float], share: float, sign: float, cosine: float) -> list[int]:
    """Who is kept, client by client, with the paper's mask and norm ‖·‖₀."""

    def sgn(v: float) -> int:
        return (v > 0) - (v < 0)

    d = len(model)
    k = int(share * d)
    principal = [sgn(sum(sgn(row[j]) for row in X)) for j in range(d)]
    omega, rho = [], []
    for row in X:
        omega.append(sum(a * b for a, b in zip(row, model, strict=True)) / (math.hypot(*row) * math.hypot(*model)))
        top = sorted(range(d), key=lambda j: -abs(row[j]))[:k]
        rho.append(1 - sum((sgn(row[j]) - principal[j]) * row[j] != 0 for j in top) / k)
    scores = [[abs(v - median(values)) / pstdev(values) for v in values] for values in (rho, omega)]
    return [i for i in range(len(X)) if scores[0][i] <= sign and scores[1][i] <= cosine]


@pytest.mark.parametrize("seed", range(5))
def test_alignins_keeps_whose_direction_and_signs_are_usual(seed):
    X, model = normal(11, 40, seed=seed) + 0.6, normal(40, seed=100 + seed)
    X[:3] *= -1
    X[5, :30] = 0.0  # fewer entries than it is asked for: zeros agree
    kept = _alignins(X.tolist(), model.tolist(), 0.3, 1.3, 1.1)
    result = run("alignins(sign_bound=1.3, direction_bound=1.1)", X, 3, model=model)
    assert result.facts["kept"] == kept
    assert 0 < len(kept) < 11
    lengths = [math.hypot(*X[i].tolist()) for i in kept]
    expected = sum(X[i] * min(1.0, median(lengths) / n) for i, n in zip(kept, lengths, strict=True)) / len(kept)
    torch.testing.assert_close(result.vector, expected, rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("seed", range(4))
def test_multi_metrics_scores_are_whitened_sums_of_three_distances(seed):
    X = normal(10, 7, seed=seed) + 0.5
    X[:2] *= 4
    scores = _multi_metrics(X.numpy())
    result = run("multi-metrics(p=0.4)", X, 2)
    assert result.facts["scores"] == pytest.approx(scores.tolist(), rel=1e-7)
    assert result.facts["kept"] == sorted(scores.argsort()[:4].tolist())
    torch.testing.assert_close(result.vector, X[result.facts["kept"]].mean(0))


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
