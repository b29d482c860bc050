"""Rules that remember rounds or cluster clients, written once more as a whole with NumPy, from their papers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.cluster import HDBSCAN

import robustfl
from robustfl.contracts import Aggregated, Context
from robustfl.randomness import stream

Array = npt.NDArray[Any]


def run(spec: str, X: Array, f: int, round: int = 0, **more: Any) -> Aggregated:
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
    made: Array = scale * (A @ series[-1] @ B).T
    return made


@pytest.mark.parametrize("seed", range(3))
def test_flanders_over_rounds(seed: int) -> None:
    draw, n, d, f, window = np.random.default_rng(seed), 7, 6, 2, 3
    base, past, state = draw.normal(size=(n, d)), list[Array](), dict[str, Any]()
    dropped = 0
    for t in range(7):
        X = 0.8**t * base + 0.1 * draw.normal(size=(n, d))
        if t >= 3:
            X[:f] = draw.normal(size=(f, d))
        found = run(f"flanders(window={window}, alpha=0.7, beta=1.3, steps=400)", X, f, t, state=state)
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
    made: Array = sigma * v - both @ np.linalg.solve(middle, both.T @ v)
    return made


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


@pytest.mark.parametrize("f", [0, 3])
def test_fldetector_over_rounds(f: int) -> None:
    draw, n, d, window = np.random.default_rng(f), 11, 6, 3
    half = draw.normal(size=(d, d))
    curvature, centres, theta = half @ half.T / d + np.eye(d), 0.1 * draw.normal(size=(n, d)), draw.normal(size=d)
    state, sums, scores, before, found_some = dict[str, Any](), list[Array](), list[Array](), theta, False
    for t in range(11):
        X = (theta - centres) @ curvature + 0.02 * draw.normal(size=(n, d))
        X[:f] *= (-1) ** t
        found = run(f"fldetector(window={window})", X, f, t, state=state)
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
    made: Array = (label[:, None] != label[None, :]).astype(float)
    return made


def euclidean(rows: Array) -> Array:
    made: Array = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1))
    return made


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
    found = run("deepsight(inputs=6)", X, 0, shapes=shapes, noise_outputs=lambda *_: next(given))

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
