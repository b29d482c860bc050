"""Rules of recent papers against slow literal versions of their formulas, and what they remember."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import robustfl
from robustfl.contracts import Aggregated, Context
from robustfl.defenses.aggregators import gas
from robustfl.defenses.aggregators.deepsight import energy_shares, output_layer
from robustfl.defenses.aggregators.deepsight import suspicious as suspects_of
from robustfl.defenses.aggregators.flanders import forecast
from robustfl.defenses.aggregators.fldetector import hessian_product, suspicious
from robustfl.defenses.rows import Mixed, Stack, direct_distances
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


def test_clipped_clustering_remembers_the_lengths_of_all_rounds():
    first = run("clipped-clustering", torch.tensor([[1.0], [1.0], [1.0]]), 1)
    second = run("clipped-clustering", torch.tensor([[4.0], [6.0]]), 0, state=first.state)
    assert second.facts["radius"] == 1.0  # the median of 1, 1, 1, 4, 6
    assert second.vector.item() == 1.0
    assert run("clipped-clustering(tau=0.5)", torch.tensor([[4.0], [6.0]]), 0).vector.item() == 0.5


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


def test_hubers_radius_is_the_median_distance_unless_given():
    assert run("huber", torch.tensor([[0.0], [1.0], [10.0]]).double(), 1).facts["radius"] == 9.0
    assert run("huber(T=1e9)", torch.tensor([[0.0], [1.0], [11.0]]).double(), 1).vector.item() == pytest.approx(4.0)


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


def test_direct_distances_are_those_of_mixed_rows():
    X = normal(3, 6, 40) + 5
    squared, slack = direct_distances(X.float())
    for stack, found, off in zip(X, squared, slack, strict=True):
        whole = Mixed(Stack(stack.float()))
        torch.testing.assert_close(found, whole.squared_distances())
        torch.testing.assert_close(off, whole.slack(), rtol=1e-6, atol=0)
        assert bool(((found - torch.cdist(stack, stack).square()).abs() <= off).all())


def test_gas_refuses_what_is_no_rule_and_needs_what_its_rule_needs():
    assert create("defense", "gas", rule="krum").min_clients(2) == robustfl.defense("krum").min_clients(2) == 7
    for rule, why in [("nnm", "not an aggregator"), ("fltrust", "server's own"), ("gas", "split pieces again"),
                      ("medain", "median"), ("centered-clipping", "from its last rounds"), ("foolsgold", "memory"),
                      ("fldetector", "memory"), ("flanders", "memory")]:  # fmt: skip
        with pytest.raises(UsageError, match=why):
            create("defense", "gas", rule=rule)


# --- FLANDERS --------------------------------------------------------------------------------------------------------


def test_the_forecast_minimises_the_ridge_loss_of_both_matrices():
    """At the solution, neither matrix alone can be improved: gradients of the written-out loss vanish."""
    series = [normal(4, 3, seed=s) for s in range(4)]
    B = torch.eye(3, dtype=torch.float64)
    for _ in range(2000):
        before = [Z @ B for Z in series[:-1]]
        left = sum(Y @ C.T for Y, C in zip(series[1:], before, strict=True))
        A = left @ torch.linalg.inv(sum(C @ C.T for C in before) + 0.5 * torch.eye(4))
        pushed = [A @ Z for Z in series[:-1]]
        right = sum(P.T @ Y for P, Y in zip(pushed, series[1:], strict=True))
        B = torch.linalg.inv(sum(P.T @ P for P in pushed) + 0.7 * torch.eye(3)) @ right
    A, B = A.requires_grad_(), B.requires_grad_()
    loss = sum((Y - A @ Z @ B).square().sum() for Z, Y in pairwise(series))
    (loss + 0.5 * A.square().sum() + 0.7 * B.square().sum()).backward()
    assert max(float(A.grad.abs().max()), float(B.grad.abs().max())) < 1e-6
    with torch.no_grad():
        expected = A @ series[-1] @ B
    torch.testing.assert_close(forecast(series, 0.5, 0.7, 5000), expected, rtol=1e-5, atol=1e-6)


def _rounds(spec: str, rounds: list[torch.Tensor], f: int, clients: list[list[int]] | None = None) -> list[Aggregated]:
    made: list[Aggregated] = []
    for t, X in enumerate(rounds):
        here = None if clients is None else torch.tensor(clients[t])
        state = made[-1].state if made else {}
        context = Context(generator=stream(t, "defense"), round=t, state=state, clients=here)
        made.append(robustfl.defense(spec).run(X, f=f, context=context))
    return made


def _smooth(t: int, n: int = 6, d: int = 20) -> torch.Tensor:
    return (0.9**t) * (torch.ones(n, d, dtype=torch.float64) + 0.05 * normal(n, d))


def test_flanders_drops_who_breaks_with_the_past_and_nobody_before_there_is_one():
    rounds = [_smooth(t) for t in range(5)]
    rounds[4][2] *= -1
    made = _rounds("flanders(window=3)", rounds, 1)
    assert [m.facts["judged"] for m in made] == [False, False, True, True, True]
    assert made[4].facts["kept"] == [0, 1, 3, 4, 5]
    torch.testing.assert_close(made[4].vector, rounds[4][made[4].facts["kept"]].mean(0))
    # What was dropped stands in the history as the aggregate of its round, on the coordinates looked at.
    assert torch.equal(made[4].state["history"][-1, 2], made[4].state["aggregates"][-1])
    assert made[4].state["history"].shape == (3, 6, 20)


def test_flanders_knows_clients_by_number():
    rounds = [_smooth(t) for t in range(5)]
    turned = [X.clone() for X in rounds]
    turned[4] = turned[4].flip(0)
    numbers = [list(range(6))] * 4
    one = _rounds("flanders", rounds, 1, [*numbers, list(range(6))])[-1]
    two = _rounds("flanders", turned, 1, [*numbers, list(range(5, -1, -1))])[-1]
    assert two.facts["scores"][::-1] == pytest.approx(one.facts["scores"], rel=1e-9)
    late = _rounds("flanders", [*rounds[:4], rounds[4][:3]], 1, [*numbers, [0, 9, 4]])[-1]
    assert late.state["clients"].tolist() == [0, 1, 2, 3, 4, 5, 9]


# --- FLDetector ------------------------------------------------------------------------------------------------------


def test_the_hessian_of_a_quadratic_is_found_along_its_steps():
    """L-BFGS meets its secant equation: what the last step changed is what it predicts for it."""
    half = normal(6, 6)
    matrix = half @ half.T + torch.eye(6)
    steps = normal(3, 6, seed=1)
    changes = steps @ matrix
    torch.testing.assert_close(hessian_product(steps, changes, steps[-1]), changes[-1], rtol=1e-6, atol=1e-6)
    # By the textbook's updates, one pair after the other from σI.
    B = torch.eye(6, dtype=torch.float64) * float(changes[-1] @ steps[-1]) / float(steps[-1] @ steps[-1])
    for s, y in zip(steps, changes, strict=True):
        B = B - torch.outer(B @ s, B @ s) / (s @ B @ s) + torch.outer(y, y) / (y @ s)
    vector = normal(6, seed=2)
    torch.testing.assert_close(hessian_product(steps, changes, vector), B @ vector, rtol=1e-6, atol=1e-6)
    # Neither the unit nor the sign of the server's step matters.
    torch.testing.assert_close(
        hessian_product(-3 * steps, changes, -3 * vector), hessian_product(steps, changes, vector), rtol=1e-6, atol=1e-6
    )


def test_two_clusters_of_scores_are_told_from_one():
    apart = torch.cat([0.1 + 0.002 * normal(15), 0.3 + 0.002 * normal(5, seed=1)])
    assert suspicious(apart, stream(0, "gap")).tolist() == [False] * 15 + [True] * 5
    together = torch.linspace(0.09, 0.11, 20, dtype=torch.float64)
    assert not bool(suspicious(together, stream(0, "gap")).any())
    assert not bool(suspicious(torch.full((9,), 0.1, dtype=torch.float64), stream(0, "gap")).any())


def _quadratic(f: int, *, n: int = 12, d: int = 8, rounds: int = 9) -> list[Aggregated]:
    """Gradients of one quadratic at the model that their mean moves; attackers turn theirs every other round."""
    half = normal(d, d)
    matrix, targets = half @ half.T / d + torch.eye(d), normal(n, d, seed=3) * 0.1
    theta, made = torch.ones(d, dtype=torch.float64), []
    for t in range(rounds):
        X = (theta - targets) @ matrix
        if t % 2:
            X[:f] *= -1
        state = made[-1].state if made else {}
        made.append(run("fldetector(window=3)", X, f, state=state))
        theta = theta - 0.1 * made[-1].vector
    return made


def test_fldetector_finds_who_contradicts_its_own_past():
    made = _quadratic(3)
    assert [m.facts["judged"] for m in made[:4]] == [0, 0, 0, 0]
    assert made[-1].facts["kept"] == list(range(3, 12))
    # An honest federation on a quadratic is predicted: the distances of all are alike, and small.
    assert _quadratic(0)[-1].facts["judged"] == 12


def test_fldetector_judges_only_who_was_there_in_the_last_round():
    rounds = [_smooth(t) for t in range(4)]
    numbers = [[0, 1, 2, 3, 4, 5]] * 3
    made = _rounds("fldetector(window=2)", rounds, 1, [*numbers, [0, 1, 2, 3, 4, 7]])
    assert [m.facts["judged"] for m in made] == [0, 0, 0, 5]
    assert made[-1].state["clients"].tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert made[-1].state["present"].tolist() == [True] * 5 + [False, True]
    assert made[-1].state["scores"][-1].tolist() == [-1.0, -1.0]
    with pytest.raises(UsageError, match="has 20 entries, rows have 3"):
        run("fldetector", normal(6, 3), 1, state=made[-1].state)


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
        assert build(cell).experiment.shapes == shapes


# --- DeepSight -------------------------------------------------------------------------------------------------------

SHAPES = ((2, 3), (2,), (4, 2), (4,))  # an output layer of 4 classes and 2 inputs, from entry 8 on


def test_the_output_layer_is_the_last_matrix_with_its_vector():
    assert output_layer(SHAPES) == (8, 4, 2)
    assert output_layer(((3, 1, 2, 2), (3,), (5, 3), (5,), (7,))) == (15, 5, 3)
    assert output_layer(((4, 2), (2,))) is None
    assert output_layer(()) is None


def test_energies_and_suspects_by_hand():
    layer = torch.tensor([[1.0, -1.0, 0, 0, 0, 0, 0, 0, 1.0, 0, 0, 0], [1.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]).double()
    shares = energy_shares(layer, 4)
    assert shares.tolist() == [[1.0, 0, 0, 0], [0.25] * 4]  # energies 3, 0, 0, 0 and 3, 3, 3, 3
    # Of the first, one share exceeds a quarter of the largest; of the others all four do, the median.
    assert suspects_of(torch.cat([shares, shares[1:]])).tolist() == [True, False, False]


def _backdoored(n: int, bad: int) -> torch.Tensor:
    """Updates of honest clients who move all classes, and of attackers who move one."""
    X = 0.1 * normal(n, 20)
    X[:, 8:] += 1.0
    X[:bad, 8:] = 0.02 * normal(bad, 12, seed=1)
    X[:bad, 8:10] += 2.0
    X[:bad, 16] += 2.0
    return X


def test_deepsight_leaves_out_clusters_of_clients_who_move_few_classes():
    X = _backdoored(9, 3)
    result = run("deepsight", X, 3, shapes=SHAPES)
    assert result.facts["suspects"] == [0, 1, 2]
    assert result.facts["kept"] == [3, 4, 5, 6, 7, 8]
    lengths = X.norm(dim=1)
    clipped = X * (lengths.median() / lengths).clamp(max=1)[:, None]
    torch.testing.assert_close(result.vector, clipped[3:].mean(0))
    # A suspect whose directions and energies are those of honest clients stays in their cluster: not half of it.
    mixed = _backdoored(9, 0)
    assert run("deepsight", mixed, 3, shapes=SHAPES).facts["kept"] == list(range(9))


def test_deepsight_compares_what_models_predict_on_noise():
    X, asked = _backdoored(9, 0), []

    def outputs(rows: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
        asked.append((len(rows), count, float(torch.rand((), generator=generator))))
        made = torch.full((len(rows) + 1, count, 4), 0.25, dtype=torch.float64)
        made[:3, :, 0] = 0.7
        made[:3, :, 1:] = 0.1
        return made

    one = run("deepsight(inputs=5, tau=0.1)", X, 3, shapes=SHAPES, noise_outputs=outputs)
    assert [(n, count) for n, count, _ in asked] == [(9, 5)] * 3
    assert len({draw for _, _, draw in asked}) == 3
    assert one.facts["suspects"] == []
    assert one.facts["kept"] == list(range(9))


def test_in_training_predictions_are_those_of_the_clients_models_and_the_server_is_as_before():
    from robustfl.federation.outputs import noise_outputs
    from robustfl.federation.state import initial_state
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


def test_a_run_with_crfl_ends_clipped_and_repeats_itself():
    from robustfl.federation import train
    from robustfl.scenarios.build import build
    from robustfl.scenarios.cell import Cell

    def ends(algorithm: str) -> list[torch.Tensor]:
        cell = Cell.of({"model": "mlp(hidden=(8,))", "norm": "none", "algorithm": algorithm, "batch": 64, "rounds": 2})
        return [record.state.theta.clone() for record in train(build(cell).experiment)]

    one, two = ends("crfl(rho=2)"), ends("crfl(rho=2)")
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert float(one[-1].norm()) <= 2.0 + 1e-5
    assert not torch.equal(one[0], ends("crfl(rho=2, sigma=0)")[0])
    assert torch.equal(ends("crfl(rho=1e9, sigma=0)")[-1], ends("fedavg")[-1])


def test_crfl_adds_no_noise_to_a_model_that_nobody_changes_any_more():
    """Of two clients one attacks and one is drawn: in the last round, with this seed, the attacker."""
    from robustfl.federation import train
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


@pytest.mark.parametrize("look", ["negative", "turned"])
def test_edge_cases_are_relabelled_where_they_were_made(look):
    attack = create("attack", "edge-case", look=look, fraction=0.4, target=2)
    x, y = torch.rand(10, 1, 4, 4, generator=stream(0, "x")), torch.tensor([0, 1, 3, 4, 5] * 2)
    new_x, new_y = attack.poison(x, y, classes=6, generator=stream(1, "poison"))
    changed = (new_x != x).flatten(1).any(1)
    assert int(changed.sum()) == 4
    assert torch.equal(new_y, torch.where(changed, 2, y))
    expected = 1 - x if look == "negative" else x.transpose(2, 3).flip(2)
    assert torch.equal(new_x[changed], expected[changed])
    assert torch.equal(attack.trigger(x), expected)
    if look == "turned":
        with pytest.raises(Refused, match="square images"):
            attack.trigger(torch.rand(1, 1, 2, 3))


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
