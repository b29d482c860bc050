"""Rules of recent papers, and rules with a memory, beside code written from the papers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize
from sklearn.cluster import HDBSCAN

import robustfl
from robustfl.contracts import Aggregated, Context
from robustfl.defenses.aggregators import gas
from robustfl.errors import Refused, UsageError
from robustfl.randomness import stream
from robustfl.registry import create


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "recent"), dtype=torch.float64)


def run(spec: str, X: torch.Tensor, f: int, **context: object) -> Aggregated:
    return robustfl.defense(spec).run(X, f=f, context=Context(generator=stream(0, "defense"), **context))


# --- clipped clustering ----------------------------------------------------------------------------------------------


def _upgma(distance: np.ndarray) -> list[set[int]]:
    """Average linkage by its definition: merge the two sets of least mean distance until two are left."""
    sets = [{i} for i in range(len(distance))]
    while len(sets) > 2:
        pairs = [(a, b) for a in range(len(sets)) for b in range(a)]
        means = [np.mean([distance[i, j] for i in sets[a] for j in sets[b]]) for a, b in pairs]
        a, b = pairs[int(np.argmin(means))]
        sets[b] |= sets.pop(a)
    return sets


@pytest.mark.parametrize("seed", range(4))
def test_clipped_clustering_is_average_linkage_on_cosines(seed):
    X = normal(11, 5, seed=seed) + 0.7
    units = (X / X.norm(dim=1, keepdim=True)).numpy()
    larger = sorted(max(_upgma(1 - units @ units.T), key=len))
    lengths = X.norm(dim=1)
    radius = float(np.median(lengths))
    expected = sum(X[i] * min(1.0, radius / float(lengths[i])) for i in larger) / len(larger)
    result = run("clipped-clustering", X, 3)
    assert result.facts["kept"] == larger
    torch.testing.assert_close(result.vector, expected, rtol=1e-10, atol=1e-10)


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
    X = normal(8, 3, seed=seed)
    X[:2] += 6

    def loss(s: np.ndarray) -> float:
        u = np.linalg.norm(X.numpy() - s, axis=1)
        return float(np.where(u <= 1.2, u**2 / 2, 1.2 * u - 0.72).sum())

    best = minimize(loss, X.mean(0).numpy(), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}).x
    torch.testing.assert_close(run("huber(T=1.2)", X, 2).vector, torch.from_numpy(best), rtol=1e-5, atol=1e-5)


# --- gradient splitting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "centre"), [("median", torch.median), ("mean", torch.mean)])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("shift", [0, 2])
def test_gas_keeps_the_rows_nearest_to_the_rule_on_all_pieces(rule, centre, shift, seed):
    X = normal(7, 12, seed=seed)
    X[:2, ::3] += shift
    order = torch.randperm(12, generator=stream(0, "defense"))
    scores = torch.zeros(7, dtype=torch.float64)
    for start in range(0, 12, 4):
        piece = X[:, order[start : start + 4]]
        found = centre(piece, dim=0)
        scores += (piece - (found.values if rule == "median" else found)).norm(dim=1)
    kept = sorted(scores.argsort()[:5].tolist())
    result = run(f"gas(rule={rule}, p=3)", X, 2)
    assert result.facts["kept"] == kept
    torch.testing.assert_close(result.vector, X[kept].mean(0))


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "multi-krum(variant=nf, m=2)"])
@pytest.mark.parametrize("p", [1, 5, 300])
@pytest.mark.parametrize("kind", ["far", "huge", "equal rows", "signs", "double"])
def test_gas_by_all_distances_at_once_is_gas_by_the_rule_on_every_piece(rule, p, kind, monkeypatch):
    X = normal(9, 123)
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
    monkeypatch.setattr(gas, "_FEW", 0)
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
    X = normal(9, 32, seed=seed)
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
