"""The training loop: both engines, channels, participation, divergence, large federations."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.byzantine.sight import forge_statistics
from robustfl.attacks.byzantine.wrapping import ModelReplacement
from robustfl.contracts import StatisticsSlices, View
from robustfl.engine import initial_state, train
from robustfl.engine.personal import allocate_client_state
from robustfl.errors import Diverged, StoreError
from robustfl.registry import create, entries
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.memory import bytes_of
from robustfl.scenarios.refusals import refusal

USUAL = ["fedavg(local_steps=2)", "fbn", "hbn"]
ALGORITHMS = ["dsgd", "dsgd(momentum=0)", "dp-dsgd(clip_norm=0.5)"] + [
    f"{e.name}(local_steps=2)" for e in entries("algorithm") if e.name not in ("dsgd", "dp-dsgd")
]
# The grid refuses the others: one machine on all data takes one batch a round, a step in lock-step is a plain one.
# Every norm runs with two algorithms and every algorithm with two norms; all pairs run nightly.
PAIRS = [
    pytest.param(e.name, a, marks=[] if a in ALGORITHMS[:1] + USUAL[:1] or e.name in USUAL[1:] else pytest.mark.slow)
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


def test_attackers_who_forge_everything_do_not_change_who_is_honest() -> None:
    """The same clients are Byzantine under every attack, and honest batches stay the same: cells are paired."""
    forged = build(cell(attack="sf")).experiment
    silent = build(cell(attack="none")).experiment
    assert forged.settings.byzantine() == silent.settings.byzantine()
    assert all(torch.equal(a, b) for a, b in zip(forged.parts, silent.parts, strict=True))
    assert torch.equal(*(torch.cat([p.flatten() for p in e.model.parameters()]) for e in (forged, silent)))


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

    from robustfl.layout import layout_of

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


@pytest.mark.parametrize("attack", ["alie", "gaussian", "label-flip", "opt-foe"])
@pytest.mark.parametrize(
    ("algorithm", "participation"),
    [("dsgd", 0.8), ("fedavg(local_steps=2, momentum=0.5, keep_momentum=true)", 1.0)],
)
def test_honest_messages_of_the_first_rounds_do_not_depend_on_the_attack(attack, algorithm, participation):
    """The first aggregate differs, but honest clients' first messages, batches and augmentation are the same."""
    from robustfl.engine.training import _Loop, initial_state

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


BASE_FEDERATIONS = {
    "model": "mlp(hidden=(8,))", "norm": "fbn", "clients": 40, "participation": 0.2, "batch": 4, "rounds": 3, "f": 4,
    "attack": "alie(z=1)", "defense": "trimmed-mean", "f_declared": 2,
}  # fmt: skip
KEEPING: list[dict[str, Any]] = [
    {"algorithm": "dsgd(momentum=0.9)"},
    {"algorithm": "dsgd(momentum=0.9)", "participation": 1.0},
    {"algorithm": "scaffold"},
    {"algorithm": "fedavg", "norm": "fedbn"},
    {"algorithm": "moon(mu=1)", "norm": "none"},
]


def trained(cell: dict[str, Any], limit: int) -> list[torch.Tensor]:
    experiment = build(Cell.of({**BASE_FEDERATIONS, **cell})).experiment
    for record in train(experiment, limit=limit):
        state = record.state
    assert bool(state.files) == (limit == 0)
    own = [] if state.personal is None else [state.personal.parameters, state.personal.statistics]
    honest = [] if state.memory is None else [state.memory[: experiment.settings.clients - experiment.settings.f]]
    return [state.theta.clone(), state.statistics, *honest, *own]


@pytest.mark.parametrize("cell", KEEPING, ids=lambda cell: "-".join(map(str, cell.values())))
def test_the_file_changes_nothing(cell: dict[str, Any]) -> None:
    for in_memory, in_a_file in zip(trained(cell, 1 << 30), trained(cell, 0), strict=True):
        assert torch.equal(in_memory, in_a_file)


def test_rows_start_alike_and_what_is_written_stays() -> None:
    rows, file = allocate_client_state(torch.tensor([1.0, 2.0]), 3, 0)
    assert file is not None
    rows[1] = 5.0
    assert rows.tolist() == [[1, 2], [5, 5], [1, 2]]
    assert allocate_client_state(torch.zeros(2), 3, 24)[1] is None


def test_the_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = initial_state(build(Cell.of({**BASE_FEDERATIONS, **KEEPING[0]})).experiment, limit=0)
    assert len(state.files) == 1
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_told_with_the_remedy() -> None:
    with pytest.raises(StoreError, match="TMPDIR"):
        allocate_client_state(torch.zeros(1 << 20), 1 << 28, 0)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500MB", 500_000_000), ("1.5 GiB", 3 << 29), ("7", 7), ("2k", 2000)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=40)", "model": "mlp(hidden=(8,))", "clients": 5, "f": 1, "rounds": 3,
    "batch": 8, "dtype": "float64", "evasions": [], "partition": "dirichlet(alpha=1)", "evaluate_every": 1,
    "algorithm": "fedavg(local_steps=2)",
}  # fmt: skip


def losses(**more: Any) -> list[float]:
    torch.set_num_threads(1)
    record = run_cell(Cell.of({**SMALL, **more}), fingerprint="x")
    assert record.status == "done", record.reason
    return [point.loss for point in record.curve]


@pytest.mark.parametrize("target", ["mean", "var", "both"])
@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "fedtan"])
def test_rounds_without_attack_are_as_if_nobody_attacked(norm: str, target: str) -> None:
    calm, timed = (losses(norm=norm, target=target, attack=a) for a in ("none", "timed(attack=sf, start=2)"))
    assert timed[:2] == pytest.approx(calm[:2], rel=1e-10)
    assert timed[2] != pytest.approx(calm[2], rel=1e-6)


@pytest.mark.parametrize(("start", "rests"), [(3, True), (2, False)])
def test_rounds_in_which_an_attack_rests_move_no_mean(start: int, rests: bool) -> None:
    torch.set_num_threads(1)
    record = run_cell(Cell.of({**SMALL, "norm": "fbn", "attack": f"timed(attack=sf, start={start})"}), fingerprint="x")
    shifts = [record.certificates[name] for name in ("attack_shift", "statistics_shift")]
    assert shifts == [0.0, 0.0] if rests else min(shifts) > 0.01


PROPAGATED: dict[str, Any] = {
    "norm": "dual-bn(local=true)", "objective": "at", "at": "users(ids=[0, 2, 3])", "byzantine": "at", "clients": 6,
    "propagation": "fedrbn(similarity=uniform, when=test)", "train_evasion": "fgsm(eps=0.05)",
}  # fmt: skip


@pytest.mark.parametrize("more", [{"norm": "hbn", "statistics_defense": "mean"}, PROPAGATED], ids=["hbn", "fedrbn"])
def test_tests_meet_the_attackers_of_the_round_that_is_tested(more: dict[str, Any]) -> None:
    def tested(attack: str) -> list[float | None]:
        torch.set_num_threads(1)
        record = run_cell(
            Cell.of({**SMALL, "scope": "statistics", "target": "both", "attack": attack, **more}), fingerprint="x"
        )
        assert record.status == "done", record.reason
        return [point.sa for point in record.curve]

    calm, last, never = (tested(a) for a in ("none", *(f"timed(attack=foe(eta=50), start={t})" for t in (2, 3))))
    assert never == calm
    assert last[:2] == calm[:2]
    assert last[2] != calm[2]


@pytest.mark.parametrize("spec", ["timed(attack=sf, start=1)", "partial(attack='timed(attack=sf, start=1)')"])
def test_entries_outside_the_target_are_the_attackers_own_while_they_are_off(spec: str) -> None:
    honest, own = torch.tensor([[1.0, 4.0], [3.0, 6.0]]), torch.tensor([[7.0, 9.0]])
    sent = []
    for r in (0, 1):
        attack = robustfl.attack(spec)
        view = View(
            n=3, f=1, channel="statistics", honest=honest, own=own, variance=torch.tensor([False, True]), round=r
        ).redacted(attack)  # fmt: skip
        sent.append(forge_statistics(attack, view, target="mean", generator=torch.Generator()))
    assert torch.equal(sent[0], own)
    expected = torch.tensor([[-2.0, 5.0]]) if spec.startswith("timed") else torch.tensor([[-7.0, 9.0]])
    assert torch.equal(sent[1], expected)


def test_an_oracle_of_one_client_takes_its_statistics() -> None:
    """All rows of the oracle are alike, so that of the first client counts, also where there is no other."""
    norm, previous = create("norm", "centralised-bn"), torch.zeros(2)
    slices = StatisticsSlices("bn", slice(0, 1), slice(1, 2))
    merged = norm.merge(torch.tensor([[3.0, 4.0]]), torch.tensor([[5]]), previous, [slices], None)
    assert merged.tolist() == [3.0, 4.0]
