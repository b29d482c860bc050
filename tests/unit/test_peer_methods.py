"""Methods of Blades, FLPoison and BackFed by hand and against slow literal versions of their papers' formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

import robustfl
from robustfl.attacks.byzantine.wrapping import AlterMin
from robustfl.contracts import Aggregated, Context
from robustfl.defenses.aggregators.backdoors import discrepancies
from robustfl.engine import local_training, train
from robustfl.engine.clients import Clients
from robustfl.errors import UsageError
from robustfl.evaluation.accuracy import attack_success
from robustfl.randomness import stream
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.noop_settings import cell_warnings
from robustfl.scenarios.refusals import refusal

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=50)", "model": "digits-cnn(hidden=8)", "norm": "gn", "clients": 3,
    "rounds": 1, "batch": 16, "dtype": "float64", "evasions": [], "schedule": {"kind": "constant", "lr": 1.0},
}  # fmt: skip


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "peers"), dtype=torch.float64)


def run(spec: str, X: torch.Tensor, f: int = 1, **context: Any) -> Aggregated:
    return robustfl.defense(spec).run(X, f=f, context=Context(generator=stream(0, "defense"), **context))


# --- weak DP ---------------------------------------------------------------------------------------------------------


def test_weak_dp_clips_averages_and_adds_noise_of_its_own_size() -> None:
    X, weights = normal(6, 40_000), torch.tensor([1.0, 2.0, 0.0, 1.0, 5.0, 1.0])
    clipped = run("clipping(c=3)+mean", X, weights=weights).vector
    noisy = run("weak-dp(M=3, sigma=0.5)", X, weights=weights)
    torch.testing.assert_close(run("weak-dp(M=3, sigma=0)", X, weights=weights).vector, clipped)
    noise = noisy.vector - clipped
    assert float(noise.std()) == pytest.approx(0.5, rel=0.03)
    assert abs(float(noise.mean())) < 0.02
    assert int(noisy.facts["clipped"]) == 6
    with pytest.raises(UsageError, match="weak-dp draws at random"):
        robustfl.defense("weak-dp").run(X, f=1, context=Context())


# --- clustering ------------------------------------------------------------------------------------------------------


def test_linkages_find_other_clusters_on_a_chain_of_directions() -> None:
    """The widest gap is the last one, but 19 and 40 part the two narrowest clusters."""
    angles = torch.tensor([0.0, 19.0, 40.0, 61.0, 92.0]).deg2rad()
    X = torch.stack([angles.cos(), angles.sin()], dim=1).double()
    assert run("clustering", X).facts["kept"] == [0, 1, 2, 3]
    assert run("clustering(linkage=complete)", X).facts["kept"] == [2, 3, 4]


# --- Auror -----------------------------------------------------------------------------------------------------------


def test_auror_suspects_nobody_where_clusters_are_equally_large() -> None:
    X = torch.tensor([[0.0], [0.0], [9.0], [9.0]])
    assert run("auror", X).facts["kept"] == [0, 1, 2, 3]
    assert run("auror(tau=0.1)", torch.tensor([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]])).facts["all_suspected"] is False
    assert run("auror(tau=0.1)", 9 * torch.eye(3)).facts["all_suspected"] is True


# --- RFLBAT ----------------------------------------------------------------------------------------------------------


def test_rflbat_keeps_the_cluster_whose_rows_are_least_alike_without_its_outliers() -> None:
    """Four attackers go one way, seven clients every way, one more farther; all in a plane of nine dimensions."""
    angles = torch.arange(7, dtype=torch.float64)
    points = torch.cat([torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([[-4.0, 0.0]])])
    attackers = torch.tensor([[60.0, -1.0], [60.0, -0.3], [60.0, 0.4], [60.0, 1.0]])
    X = torch.cat([points, attackers]) @ torch.linalg.qr(normal(9, 9, seed=2))[0][:2]

    def sums(part: list[int]) -> dict[int, float]:
        return {i: sum(float(torch.dist(X[i], X[j])) for j in part) for i in part}

    away = sums(list(range(8)))
    kept = [i for i in away if away[i] <= 2 * float(np.median(list(away.values())))]
    assert kept == [0, 1, 2, 3, 4, 5, 6]
    done = run("rflbat(eps2=2)", X, f=4)
    assert done.facts["kept"] == kept
    torch.testing.assert_close(done.vector, X[kept].mean(0))
    assert run("rflbat(eps2=50)", X, f=4).facts["kept"] == list(range(8))
    far = torch.cat([X, 1e3 * X[:1]])
    assert 12 in run("rflbat(eps2=50)", far, f=4).facts["kept"]  # of 12 others: never beyond 12 medians
    assert 12 not in run("rflbat(eps1=5, eps2=50)", far, f=4).facts["kept"]
    assert run("rflbat", X[:1].repeat(5, 1)).facts["kept"] == [0, 1, 2, 3, 4]


# --- FLARE -----------------------------------------------------------------------------------------------------------


def test_discrepancies_are_the_unbiased_ones_of_gaussian_kernels() -> None:
    R = torch.tensor([[[0.0], [1.0]], [[2.0], [4.0]]], dtype=torch.float64)
    variance = ((2**2 + 4**2 + 1**2 + 3**2) / 4) * 2
    within = np.exp(-1 / variance) + np.exp(-4 / variance)
    across = sum(np.exp(-(d**2) / variance) for d in (2, 4, 1, 3)) / 4
    assert float(discrepancies(R)[0, 1]) == pytest.approx(within - 2 * across, abs=1e-12)


def test_flare_weighs_by_how_often_a_client_is_among_the_nearest() -> None:
    """On a line at 0, 1, 3, 7 and 20 the two nearest are 1 3, 0 3, 1 0, 3 1 and 7 3."""
    X = torch.tensor([[0.0], [1.0], [3.0], [7.0], [20.0]], dtype=torch.float64)
    done = run("flare(tau=0.5)", X)
    assert done.facts["count"] == [2, 3, 4, 1, 0]
    trust = np.exp(np.array([2, 3, 4, 1, 0]) / 2 / 0.5)
    assert float(done.vector) == pytest.approx(float(trust / trust.sum() @ X.numpy()[:, 0]))
    seen = run("flare(tau=0.5)", X, representations=lambda rows: X.flip(0)[:, None])
    assert seen.facts["count"] == [0, 1, 4, 3, 2]


def test_in_training_representations_are_those_of_the_clients_models_on_the_servers_images() -> None:
    from robustfl.engine.outputs import representations
    from robustfl.engine.state import initial_state

    settings = {"model": "mlp(hidden=(8,))", "norm": "naive-bn", "algorithm": "dsgd", "server_samples": 300}
    e = build(Cell.of({**settings, "schedule": {"kind": "constant", "lr": 0.2}})).experiment
    state = initial_state(e)
    before = state.theta.clone()
    rows = 0.1 * torch.randn(2, e.layout.d, generator=stream(0, "rows"))
    found = representations(e, state, rows)
    assert torch.equal(state.theta, before)
    assert found.shape == (2, 300, 8)
    images = e.train.pixels(e.root, dtype=torch.float32)
    e.model.eval()
    for place in (0, 1):
        state.theta.copy_(before - 0.2 * rows[place])
        head = [m for m in e.model.modules() if isinstance(m, torch.nn.Linear)][-1]
        torch.testing.assert_close(head(found[place]), e.model(images))
    refused = run_cell(Cell.of({**settings, "server_samples": 0, "defense": "flare"}), fingerprint="x")
    assert refused.status == "refused"
    assert (
        "flare compares what models make of the server's images; give it some with 'server_samples'" in refused.reason
    )


# --- blended ---------------------------------------------------------------------------------------------------------


def test_blended_mixes_one_pattern_into_a_share_of_the_batch() -> None:
    x, y = normal(10, 2, 5, 5).sigmoid().float(), torch.arange(10)
    attack = robustfl.attack("blended(target=3, fraction=0.3, alpha=0.25)")
    made, labels = attack.poison(x, y, classes=10, generator=stream(1))
    changed = (made != x).flatten(1).any(1)
    assert (int(changed.sum()), labels[changed].tolist()) == (3, [3, 3, 3])
    assert torch.equal(labels[~changed], y[~changed])
    key = (made - 0.75 * x)[changed] / 0.25
    torch.testing.assert_close(key, key[:1].expand_as(key), rtol=1e-4, atol=1e-5)
    assert 0 <= float(key.min()) < 0.1 < 0.9 < float(key.max()) <= 1
    torch.testing.assert_close(attack.trigger(x), 0.75 * x + 0.25 * key[0])
    other = robustfl.attack("blended(target=3, fraction=0.3, alpha=0.25, pattern=1)")
    assert float((other.trigger(x) - attack.trigger(x)).abs().mean()) > 0.05


# --- AlterMin --------------------------------------------------------------------------------------------------------


def test_altermin_alternates_boosted_poisoned_steps_with_steps_near_the_servers_last() -> None:
    attack = robustfl.attack("altermin(attack=badnets(fraction=1, target=3), boost=4, ls=2, rho=5)")
    gradient, moved, last = (torch.tensor(v) for v in ([1.0, 2.0], [3.0, 6.0], [0.0, 2.0]))
    made = [attack.in_step(s, last).constrain(gradient, moved).tolist() for s in range(4)]
    assert made == [[4, 8], [4, 6], [4, 6], [4, 8]]
    assert attack.in_step(1, None).constrain(gradient, torch.tensor([0.0, 9.0])).tolist() == [1, 7]
    x, y = torch.zeros(2, 1, 5, 5), torch.tensor([1, 2])
    labels = [attack.in_step(s, None).poison(x, y, classes=4, generator=stream(0))[1].tolist() for s in range(4)]
    assert labels == [[3, 3], [1, 2], [1, 2], [3, 3]]
    wrapped = robustfl.attack("timed", attack="altermin(boost=4, ls=2)", start=1)
    steps = [wrapped.in_step(s, None) for s in (0, 1)]
    assert [a.constrain(gradient, moved, round=r).tolist() for a in steps for r in (0, 1)][:2] == [[1, 2], [4, 8]]
    assert float(steps[1].constrain(gradient, moved, round=1)[0]) == pytest.approx(1, abs=1e-3)
    scaled = robustfl.attack("model-replacement(altermin(boost=4, ls=2), alpha=0.5)").in_step(0, None)
    assert scaled.constrain(gradient, moved).tolist() == [3.5, 7]


def test_attackers_know_the_local_step_and_how_the_server_moved_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, torch.Tensor | None]] = []

    def constrain(self: AlterMin, gradient: torch.Tensor, moved: torch.Tensor, *, round: int = 0) -> torch.Tensor:
        seen.append((round, self.step, self.previous))
        return gradient

    monkeypatch.setattr(AlterMin, "constrain", constrain)
    settings = {"attack": "altermin(ls=1)", "f": 1, "algorithm": "fedavg(local_steps=3)", "rounds": 2}
    built = build(Cell.of({**SMALL, **settings}))
    before = built.experiment.flat.clone()
    first, _ = [record.state.theta.clone() for record in train(built.experiment)]
    assert [(r, s) for r, s, _ in seen] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert all(previous is None for r, _, previous in seen if r == 0)
    torch.testing.assert_close(seen[-1][2], first - before)
    words = cell_warnings([Cell.of({**SMALL, **settings, "algorithm": "dsgd"})])
    assert any("of one local step a round only its first stage is left" in line for line in words)


# --- Chameleon -------------------------------------------------------------------------------------------------------


def test_chameleon_pulls_classes_together_and_then_trains_the_last_layer_alone() -> None:
    z, y = normal(6, 4).requires_grad_(), torch.tensor([0, 1, 0, 2, 1, 0])
    attack = robustfl.attack("chameleon(contrastive=1, scale_weight=3, temperature=0.5)")
    unit = (z / z.norm(dim=1, keepdim=True)).detach()
    total = 0.0
    for i in range(6):
        alike = [p for p in range(6) if p != i and y[p] == y[i]]
        others = sum(float((unit[i] @ unit[a] / 0.5).exp()) for a in range(6) if a != i)
        logs = [float((unit[i] @ unit[p] / 0.5) - np.log(others)) for p in alike]
        total -= (3.0 if y[i] == 0 else 1.0) * sum(logs) / max(1, len(alike)) / 6
    assert float(attack.in_step(0, None).loss(z.detach(), torch.nn.Identity(), y)) == pytest.approx(total)
    alone = attack.loss(z[:1], torch.nn.Identity(), y[:1])
    alone.backward()
    assert float(alone.detach()) == 0
    assert not bool(z.grad.any())
    head = torch.nn.Linear(4, 3).double()
    late = attack.in_step(1, None).loss(z, head, y)
    torch.testing.assert_close(late, cross_entropy(head(z), y))
    late.backward()
    assert not bool(z.grad.any())
    assert bool(head.weight.grad.any())


@pytest.mark.parametrize("norm", ["naive-bn", "gn", "fbn", "hbn"])
def test_a_loss_of_the_attackers_own_changes_nobody_elses_work(norm: str) -> None:
    """With a rule that drops them nothing is left of it; with the mean both engines agree on what it does."""
    settings = {"norm": norm, "clients": 5, "f": 1, "algorithm": "fedavg(local_steps=2)", "rounds": 2}
    dropped = [
        moved(**settings, attack=attack, defense="cge", statistics_defense="trimmed-mean")[0]
        for attack in (
            "model-replacement(badnets, scale=1e6)",
            "model-replacement(chameleon(contrastive=1), scale=1e6)",
        )
    ]
    if norm in ("gn", "naive-bn"):
        torch.testing.assert_close(*dropped)
    fast, slow = (moved(**settings, attack="chameleon(contrastive=1)", engine=e)[0] for e in ("fast", "reference"))
    torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-10)
    plain, _ = moved(**settings, attack="badnets")
    assert float((plain - fast).norm()) > 1e-3 * float(fast.norm())


def test_a_loss_of_the_attackers_own_is_refused_in_lock_step() -> None:
    settings = {**SMALL, "norm": "fedtan", "attack": "timed(chameleon)", "f": 1, "algorithm": "fedavg(local_steps=2)"}
    assert "follows a loss of its own, and with fedtan all clients take the first step" in str(
        refusal(Cell.of(settings))
    )
    assert refusal(Cell.of({**settings, "attack": "badnets"})) is None


# --- A3FL and IBA ----------------------------------------------------------------------------------------------------


def test_a3fl_steps_down_the_loss_of_the_received_model_and_of_one_that_unlearns() -> None:
    """Images of one pixel: logits (w δ + b, 0), and a model that two plain steps of unlearning have moved."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2)).double()
    w, b, rate = 0.8, -0.3, 0.7
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[w], [0.0]]))
        model[1].bias.copy_(torch.tensor([b, 0.0]))
    x, y = torch.rand(3, 1, 1, 1, dtype=torch.float64), torch.tensor([1, 1, 1])
    for strength in (0.0, 50.0):
        spec = f"a3fl(size=1, steps=1, trigger_lr=0.1, noise_loss_lambda={strength}, adv_epochs=2, adv_lr={rate})"
        delta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        theta = torch.tensor([w, 0.0, b, 0.0], dtype=torch.float64)
        velocity, own = torch.zeros(4).double(), theta.clone()

        def logits(values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return torch.stack([values[0] * at + values[2], values[1] * at + values[3]])

        for step in range(2):
            leaf = own.clone().requires_grad_()
            cross_entropy(logits(leaf, delta.detach())[None], torch.tensor([1])).backward()
            slope = leaf.grad + 5e-4 * own
            velocity = slope if step == 0 else 0.9 * velocity + slope
            own = own - rate * velocity
        similar = float(own @ theta / (own.norm() * theta.norm()))
        target = torch.tensor([0])
        loss = cross_entropy(logits(theta, delta)[None], target)
        (loss + strength * similar * cross_entropy(logits(own, delta)[None], target)).backward()
        found = robustfl.attack(spec).adapt(model, x, y, state={})["patch"]
        assert float(found) == pytest.approx(0.5 - 0.1 * float(delta.grad.sign()))
        assert (float(found) > 0.5) == (strength == 0)  # unlearning has turned the slope around
    bright = {"patch": torch.tensor([[[0.95]]], dtype=torch.float64)}
    clipped = robustfl.attack("a3fl(size=1, steps=1, trigger_lr=0.1, noise_loss_lambda=0)").adapt(
        model, x, y, state=bright
    )
    assert float(clipped["patch"]) == 1
    assert model[1].weight.grad is None


def test_iba_trains_a_network_of_two_convolutions_by_adam() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(50, 4)).double()
    x, y = normal(6, 2, 5, 5, seed=4).sigmoid(), torch.tensor([1, 2, 3, 1, 2, 3])
    attack = robustfl.attack("iba(atk_eps=0.25, atk_lr=0.02, steps=3, width=3, target=1)")
    start = attack.adapt(model, x, y, state={})
    found = attack.adapt(model, x, y, state=start)
    into, out = torch.nn.Conv2d(2, 3, 3, padding=1).double(), torch.nn.Conv2d(3, 2, 3, padding=1).double()
    own = torch.nn.ModuleDict({"in": into, "out": out})
    own.load_state_dict(start)
    optimizer, losses = torch.optim.Adam(own.parameters(), lr=0.02), []
    for _ in range(3):
        optimizer.zero_grad()
        stamped = (x + 0.25 * torch.tanh(out(torch.relu(into(x))))).clamp(0, 1)
        loss = cross_entropy(model(stamped), torch.ones(6, dtype=torch.int64))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    for name, value in own.state_dict().items():
        torch.testing.assert_close(found[name], value)
    shown = attack.adapted(found).trigger(x)
    torch.testing.assert_close(shown, (x + 0.25 * torch.tanh(out(torch.relu(into(x))))).clamp(0, 1).detach())
    assert not torch.equal(shown, attack.trigger(x))


@pytest.mark.parametrize("wrapper", ["{}", "model-replacement({}, scale=2)", "timed({}, stop=2)"])
def test_attackers_fit_the_trigger_to_the_received_model_and_tests_carry_it(wrapper: str) -> None:
    spec = wrapper.format("a3fl(fraction=1)")
    settings = {**SMALL, "attack": spec, "f": 1, "rounds": 3, "clients": 4, "evaluate_every": 3}
    built = build(Cell.of(settings))
    patches = [record.state.attack["data"]["patch"] for record in train(built.experiment)]
    assert not torch.equal(patches[0], patches[1])
    assert torch.equal(patches[1], patches[2]) == ("timed" in wrapper)
    assert float((patches[-1] - 0.5).abs().max()) > 0.1
    images = torch.zeros(1, 1, 8, 8).double()
    shown = built.experiment.attack.adapted({"patch": patches[-1]}).trigger(images)
    torch.testing.assert_close(shown[0, :, :3, :3], patches[-1])
    fast, slow = (moved(**settings, engine=engine)[0] for engine in ("fast", "reference"))
    torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-10)
    record, test, last = run_cell(Cell.of(settings), fingerprint="x"), built.test, patches[-1]
    attack = built.experiment.attack.adapted({"patch": last})
    success = attack_success(
        built.experiment.model, lambda i: test.pixels(i, dtype=torch.float64), test.y, attack, batch=50
    )
    assert record.metrics is not None
    assert record.metrics.asr == pytest.approx(success)


# --- DP-SGD ----------------------------------------------------------------------------------------------------------


def moved(**settings: Any) -> tuple[torch.Tensor, Built]:
    """How far the model of one round moved, and what it was trained with."""
    built = build(Cell.of({**SMALL, **settings}))
    before = built.experiment.flat.clone()
    return [record.state.theta.clone() for record in train(built.experiment)][-1] - before, built


@pytest.mark.parametrize("clip", [0.3, 1.5, 1e6])
def test_dp_dsgd_sends_the_mean_of_gradients_that_are_clipped_one_by_one(clip: float) -> None:
    found, _ = moved(algorithm=f"dp-dsgd(momentum=0, noise_multiplier=0, clip_norm={clip})", clients=1)
    e = build(Cell.of({**SMALL, "clients": 1})).experiment
    index = Clients(e, print)._batches.indices(0, 0)
    x, y = e.train.pixels(index, dtype=torch.float64), e.train.labels(index)
    parameters = dict(e.model.named_parameters())

    def loss(values: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(e.model, values, (image[None],)), label[None])

    rows = []
    for image, label in zip(x, y, strict=True):
        made = grad(loss)({k: p.detach() for k, p in parameters.items()}, image, label)
        rows.append(torch.cat([made[slot.name].flatten() for slot in e.layout.update]))
    lengths = torch.stack(rows).norm(dim=1)
    assert bool((lengths > clip).any()) == (clip < 1e6)
    expected = sum(row * min(1.0, clip / float(length)) for row, length in zip(rows, lengths, strict=True)) / len(y)
    torch.testing.assert_close(found, -expected, rtol=1e-9, atol=1e-12)


def test_noise_has_its_size_and_is_another_for_every_client_and_step() -> None:
    still, _ = moved(algorithm="dp-dsgd(momentum=0, noise_multiplier=0, clip_norm=0.5)")
    noisy, _ = moved(algorithm="dp-dsgd(momentum=0, noise_multiplier=2, clip_norm=0.5)")
    again, _ = moved(algorithm="dp-dsgd(momentum=0, noise_multiplier=2, clip_norm=0.5)")
    assert torch.equal(noisy, again)
    assert float((noisy - still).std()) == pytest.approx(2 * 0.5 / 16 / 3**0.5, rel=0.05)
    one, _ = moved(algorithm="local-dp(local_steps=1, noise_multiplier=4, clip_norm=0.001)", clients=1)
    four, _ = moved(algorithm="local-dp(local_steps=4, noise_multiplier=4, clip_norm=0.001)", clients=1)
    assert float(four.norm() / one.norm()) == pytest.approx(2.0, rel=0.1)  # sums of independent noise


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_without_a_bound_and_noise_they_are_what_they_are_built_on(engine: str) -> None:
    for private, plain in (
        ("dp-dsgd(noise_multiplier=0, clip_norm=1e9)", "dsgd"),
        ("local-dp(epochs=1, noise_multiplier=0, clip_norm=1e9, momentum=0.5)", "fedavg(momentum=0.5)"),
    ):
        (found, _), (expected, _) = (moved(algorithm=a, engine=engine, rounds=2) for a in (private, plain))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_examples_are_clipped_alone_with_dropout_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"algorithm": "local-dp(local_steps=2, clip_norm=0.1)", "model": "bucketing-cnn", "batch": 8}
    fast, _ = moved(**settings)
    monkeypatch.setattr(local_training, "LARGEST_ROWS", 3 * len(fast))
    for found in (moved(**settings)[0], moved(**settings, engine="reference")[0]):
        torch.testing.assert_close(found, fast, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "hbn", "dual-bn", "centralised-bn", "singlenet", "fedtan"])
def test_norms_that_mix_examples_are_refused(norm: str) -> None:
    reason = refusal(Cell.of({**SMALL, "norm": norm, "algorithm": "dp-dsgd"}))
    assert reason is not None
    assert reason.startswith(
        f"dp-dsgd clips the gradient of every example, and with norm={norm} it depends on the others"
    )
    for fit in ("none", "gn", "ln", "fedwon", "fedfn"):
        assert refusal(Cell.of({**SMALL, "norm": fit, "algorithm": "local-dp"})) is None
    assert "which objective=at does not" in str(refusal(Cell.of({**SMALL, "objective": "at", "algorithm": "local-dp"})))
