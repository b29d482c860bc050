"""The training loop: both engines, channels, participation, divergence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.attacks.byzantine.model_replacement import ModelReplacement
from robustfl.errors import Diverged
from robustfl.federation import train
from robustfl.registry import entries
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import refusal

ALGORITHMS = ["dsgd", "dsgd(momentum=0)"] + [
    f"{e.name}(local_steps=2)" for e in entries("algorithm") if e.name != "dsgd"
]
LOCAL_STEPS = ["fedavg(local_steps=2)"]
# The grid refuses the others: one machine on all data takes one batch a round, a step in lock-step is a plain one.
PAIRS = [
    # by default every norm with two algorithms and every algorithm with two norms
    pytest.param(
        e.name, a, marks=[] if e.name in ("fbn", "naive-bn") or a in ALGORITHMS[:1] + LOCAL_STEPS else pytest.mark.slow
    )
    for e in entries("norm")
    for a in ALGORITHMS
    if refusal(Cell.of({"norm": e.name, "algorithm": a})) is None
]


def cell(**settings: object) -> Cell:
    base = {
        "evasions": [],
        "clients": 5,
        "f": 1,
        "rounds": 3,
        "batch": 8,
        "dtype": "float64",
        "partition": "gamma(gamma=0.3)",
    }
    return Cell.of({**base, **settings})


def result(**settings: object) -> tuple[torch.Tensor, torch.Tensor, Built]:
    """The trained parameters and the server's statistics."""
    torch.set_num_threads(1)
    built = build(cell(**settings))
    last = None
    for record in train(built.experiment):
        last = record
    assert last is not None
    return last.state.theta.clone(), last.state.statistics.clone(), built


@pytest.mark.parametrize(("norm", "algorithm"), PAIRS)
def test_reference_and_fast_engine_agree(norm: str, algorithm: str) -> None:
    attack = {"f": 0} if norm == "centralised-bn" else {"attack": "foe", "defense": "nnm+median"}
    # Instance normalization has one value per group after a linear layer: a network with none before the last.
    attack["model"] = "simple-cnn" if norm == "in" else "digits-cnn"
    theta, statistics, _ = result(norm=norm, algorithm=algorithm, engine="fast", **attack)
    expected, expected_statistics, _ = result(norm=norm, algorithm=algorithm, engine="reference", **attack)
    torch.testing.assert_close(theta, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(statistics, expected_statistics, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_engines_agree_in_float32_too(engine: str) -> None:
    theta, _, _ = result(norm="fbn", engine=engine, dtype="float32")
    expected, _, _ = result(norm="fbn", engine="reference", dtype="float64")
    torch.testing.assert_close(theta.double(), expected, rtol=1e-5, atol=1e-5)


def test_one_client_is_plain_sgd_with_momentum() -> None:
    theta, _, built = result(clients=1, f=0, norm="none", algorithm="dsgd(momentum=0.5)", rounds=4)
    fresh = build(cell(clients=1, f=0, norm="none", rounds=4)).experiment
    fresh.model.train()
    from robustfl.data import Batches

    batches = Batches(fresh.parts, 8, 0, whole=True)
    momentum = [torch.zeros_like(p) for p in fresh.model.parameters()]
    for step in range(4):
        index = batches.indices(0, step)
        fresh.model.zero_grad()
        F.cross_entropy(fresh.model(fresh.train.pixels(index, dtype=torch.float64)), fresh.train.y[index]).backward()
        with torch.no_grad():
            for m, p in zip(momentum, fresh.model.parameters(), strict=True):
                assert p.grad is not None
                m.mul_(0.5).add_(p.grad, alpha=0.5)
                p.sub_(m, alpha=0.1)
    expected = torch.cat([p.detach().flatten() for p in fresh.model.parameters()])
    torch.testing.assert_close(theta, expected, rtol=1e-12, atol=1e-12)
    assert built.experiment.layout.d == len(expected)


def test_fedavg_weighs_clients_by_samples_for_the_mean() -> None:
    settings = {"norm": "none", "f": 0, "clients": 3, "partition": "dirichlet(alpha=1, min_size=20)", "rounds": 1}
    by_samples, _, built = result(algorithm="fedavg(local_steps=1)", **settings)
    uniform, _, _ = result(algorithm="fedavg(local_steps=1, weighting=uniform)", **settings)
    e = build(cell(**settings)).experiment
    from robustfl.data import Batches

    batches = Batches(e.parts, 8, 0, whole=False)
    start = torch.cat([p.detach().flatten() for p in e.model.parameters()])
    updates = []
    for k in range(3):
        index = batches.indices(k, 0)
        e.model.zero_grad()
        F.cross_entropy(e.model(e.train.pixels(index, dtype=torch.float64)), e.train.y[index]).backward()
        updates.append(-0.1 * torch.cat([p.grad.flatten() for p in e.model.parameters() if p.grad is not None]))
    sizes = torch.tensor([len(p) for p in e.parts], dtype=torch.float64)
    assert len(set(sizes.tolist())) > 1
    stack = torch.stack(updates)
    torch.testing.assert_close(by_samples, start + (sizes / sizes.sum()) @ stack, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(uniform, start + stack.mean(0), rtol=1e-10, atol=1e-12)
    assert built.experiment.algorithm.weighted


@pytest.mark.parametrize("norm", ["naive-bn", "fbn"])
def test_no_attack_does_not_depend_on_the_scope(norm: str) -> None:
    results = [result(norm=norm, scope=scope)[0] for scope in ("update", "statistics", "both")]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_scope_update_leaves_the_first_rounds_statistics_honest() -> None:
    honest = result(norm="fbn", attack="none", rounds=1)
    attacked = result(norm="fbn", attack="foe", scope="update", rounds=1)
    assert torch.equal(honest[1], attacked[1])
    assert not torch.equal(honest[0], attacked[0])


def test_scope_statistics_leaves_the_first_rounds_update_honest() -> None:
    honest = result(norm="fbn", attack="none", rounds=1)
    attacked = result(norm="fbn", attack="sf", scope="statistics", rounds=1)
    assert torch.equal(honest[0], attacked[0])
    assert not torch.equal(honest[1], attacked[1])


def test_attackers_who_forge_everything_do_not_change_who_is_honest() -> None:
    """The same clients are Byzantine under every attack, and honest batches stay the same: cells are paired."""
    forged = build(cell(attack="sf")).experiment
    silent = build(cell(attack="none")).experiment
    assert forged.settings.byzantine() == silent.settings.byzantine()
    assert all(torch.equal(a, b) for a, b in zip(forged.parts, silent.parts, strict=True))
    assert torch.equal(*(torch.cat([p.flatten() for p in e.model.parameters()]) for e in (forged, silent)))


def test_label_flipping_poisons_attackers_only() -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    built = build(cell(attack="label-flip", rounds=1))
    from robustfl.federation.clients import Clients

    clients = Clients(built.experiment, lambda message: None)
    attacker = next(iter(built.experiment.settings.byzantine()))
    for k in range(5):
        index = built.experiment.parts[k][:8]
        _, y = clients._inputs([k], index, (8,), 0, 0)
        seen.append((built.experiment.train.y[index], y))
        changed = not torch.equal(*seen[-1])
        assert changed == (k == attacker)
    clean, flipped = seen[attacker]
    assert torch.equal(flipped, 9 - clean)


def test_partial_participation_keeps_momentum_of_absent_clients() -> None:
    built = build(cell(participation=0.4, rounds=2, f=0, norm="none"))
    e = built.experiment
    records = train(e)
    first = next(records)
    assert first.state.memory is not None
    absent = sorted(set(range(5)) - set(e.settings.sample(0)))
    present = e.settings.sample(0)
    assert len(present) == 2
    assert bool((first.state.memory[absent] == 0).all())
    assert bool((first.state.memory[present].norm(dim=1) > 0).all())


@pytest.mark.parametrize("settings", [{"attack": "foe(eta=1e30)"}, {"schedule": {"lr": 1e18}}])
def test_divergence_names_the_round(settings: dict[str, object]) -> None:
    with pytest.raises(Diverged) as caught:
        result(defense="mean", dtype="float32", rounds=30, norm="none", **settings)
    assert 1 <= caught.value.round <= 30


@pytest.mark.parametrize("attack", ["nan", "inf"])
def test_non_finite_messages_are_dropped_and_counted(attack: str) -> None:
    built = build(cell(attack=attack, defense="trimmed-mean", norm="fbn", rounds=2))
    facts = [record.facts for record in train(built.experiment)]
    assert all(fact["dropped"] == 1 for fact in facts)
    assert facts[-1]["smallest_variance"] >= 0


def test_measured_shifts_of_sign_flipping_are_those_of_the_formula() -> None:
    """With mean and f of n sign flippers the aggregate is (1 - 2f/n) of the honest mean: a shift of 2f/n."""
    built = build(cell(attack="sf", defense="mean", norm="none", clients=5, f=1, rounds=1))
    record = next(train(built.experiment, measure=lambda r: True))
    assert record.facts["attack_shift"] == pytest.approx(0.4, abs=1e-9)
    assert record.facts["defense_shift"] == pytest.approx(0.4, abs=1e-9)


def test_unsupported_models_run_one_client_at_a_time_with_one_warning() -> None:
    from dataclasses import replace

    from robustfl.vectors import layout_of

    class Scaled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.scale

    warnings: list[str] = []
    thetas = []
    for engine in ("fast", "reference"):
        e = build(cell(norm="fbn", engine=engine)).experiment
        model = Scaled(e.model)
        e = replace(e, model=model, layout=layout_of(model))
        thetas.append([r.state.theta.clone() for r in train(e, warn=warnings.append)][-1])
    assert len(warnings) == 1
    assert "one after another" in warnings[0]
    torch.testing.assert_close(thetas[0], thetas[1], rtol=1e-10, atol=1e-10)


def test_results_carry_what_alie_hides_behind() -> None:
    chosen = cell(attack="alie", clients=10, f=3, rounds=1)
    record = run_cell(chosen, fingerprint="x")
    assert record.certificates["z_max"] == pytest.approx(0.18001, abs=1e-5)
    assert record.certificates["z"] == record.certificates["z_max"]


@pytest.mark.parametrize("name", [e.name for e in entries("attack")])
def test_every_attack_runs_in_the_engine_and_certifies_itself(name: str) -> None:
    chosen = cell(attack=name, norm="fbn", defense="nnm+median", clients=6, f=2, rounds=1)
    record = run_cell(chosen, fingerprint="x")
    assert (record.status, record.reason) == ("done", None)
    assert ("z_max" in record.certificates) == (
        "alie" in name or name in ("opt", "partial")
    )  # both wrap alie by default


BASE = {"norm": "fbn", "attack": "foe", "defense": "nnm+median", "clients": 7, "f": 2, "rounds": 2, "partition": "iid"}


@pytest.mark.parametrize("attack", ["sf", "gaussian", "label-flip", "opt-foe"])
@pytest.mark.parametrize(
    ("algorithm", "participation"),
    [("dsgd", 0.8), ("fedavg(local_steps=2, momentum=0.5, keep_momentum=true)", 1.0)],
)
def test_honest_messages_of_the_first_rounds_do_not_depend_on_the_attack(
    attack: str, algorithm: str, participation: float
) -> None:
    """The first aggregate differs, but honest clients' first messages, batches and augmentation are the same."""
    from robustfl.federation.engine import _Loop, initial_state

    seen = []
    for name in ("none", attack):
        settings = {**BASE, "attack": name, "algorithm": algorithm, "participation": participation, "flip": True}
        e = build(cell(**settings)).experiment
        e.model.train()
        loop = _Loop(e, lambda message: None)
        first = loop.round(initial_state(e), measured=False)
        assert loop._rows is not None or first.state.memory is not None
        seen.append(first.loss)
    assert seen[0] == seen[1]


def test_attack_that_searches_meets_a_diverging_model_as_divergence() -> None:
    """Honest reports that are not finite are the run's end, not a reason to refuse the cell."""
    with pytest.raises(Diverged):
        result(defense="mean", dtype="float32", rounds=60, attack="opt-foe", f=2, clients=10, norm="naive-bn", batch=32)


def test_honest_rows_too_long_to_be_compared_are_a_divergence() -> None:
    """In float64 there is room between what is finite and what has a square."""
    settings = {"dtype": "float64", "norm": "none", "clients": 10, "f": 3, "f_declared": 1, "rounds": 40,
                "schedule": {"lr": 0.8}, "evasions": []}  # fmt: skip
    found = run_cell(Cell.of({**settings, "attack": "foe(eta=10)", "algorithm": "dsgd(momentum=0.9)"}), fingerprint="x")
    assert (found.status, found.reason) == ("diverged", f"an honest message became non-finite in round {found.round}")


def test_rows_that_are_lost_until_the_rule_is_not_defined_are_a_divergence() -> None:
    """A rule that has too few rows left by an attack has failed; that is no reason to leave the attack out."""
    settings = {"norm": "none", "clients": 11, "f": 4, "f_declared": 1, "rounds": 4, "evasions": []}
    found = run_cell(
        Cell.of({**settings, "attack": "timed(attack=nan, start=2)", "defense": "multi-krum(m=8)"}), fingerprint="x"
    )
    assert found.status == "diverged"
    assert found.round == 3
    assert found.reason.startswith("so many rows (multi-krum: ")
    assert found.reason.endswith("not finite)) became non-finite in round 3")


@pytest.mark.parametrize("algorithm", ["fedavg(local_steps=3)", "dsgd"])
def test_only_attackers_who_train_on_poisoned_data_are_held_near_the_received_model(algorithm: str) -> None:
    """Their local steps follow what the attack makes of the gradient and the way they have gone."""
    seen: list[tuple[float, float]] = []

    @dataclass(frozen=True)
    class Watched(ModelReplacement):
        def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
            held = super().constrain(gradient, moved, round=round)
            seen.append((float(moved.norm()), float(held.norm())))
            return held

    e = build(
        Cell.of({"clients": 3, "f": 1, "attack": "model-replacement", "algorithm": algorithm, "rounds": 1, "batch": 8,
                 "dtype": "float64", "schedule": {"lr": 0.5}})
    ).experiment  # fmt: skip
    (_,) = train(dataclasses.replace(e, attack=Watched(alpha=0.5)))
    expected = {"dsgd": 1}.get(algorithm, 3)
    assert len(seen) == expected
    assert seen[0][0] == 0.0
    if expected == 3:
        # One plain step: as far as the first gradient times the learning rate.
        assert seen[1][0] == pytest.approx(0.5 * seen[0][1])
