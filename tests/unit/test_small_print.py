"""What a record says beside the accuracies is true, and rare settings do what the common ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from robustfl.attacks.byzantine.alie import z_max
from robustfl.contracts import Task
from robustfl.engine import train
from robustfl.engine.clients import Clients
from robustfl.evaluation.accuracy import attack_success
from robustfl.evaluation.costs import macs_per_epoch
from robustfl.models.network import ClientDropout
from robustfl.registry import create
from robustfl.reports import rank_board
from robustfl.reports.frame import counted, frame
from robustfl.reports.validation import fault
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.evaluate import Evaluator

STYLES = [f"digits-domain(style={style}, limit=90, test_limit=60)" for style in ("clean", "textured", "shifted")]


def cell(**more: object) -> Cell:
    torch.set_num_threads(1)
    base = {"dataset": "digits(limit=300, test_limit=40)", "model": "mlp", "norm": "gn", "clients": 5, "rounds": 2,
            "batch": 8, "dtype": "float64", "evasions": [], "algorithm": "fedavg(local_steps=2)"}  # fmt: skip
    return Cell.of({**base, **more})


def certificates(**more: object) -> dict[str, Any]:
    record = run_cell(cell(**more), fingerprint="x")
    assert (record.status, record.reason) == ("done", None)
    return record.certificates


# --- certificates ----------------------------------------------------------------------------------------------------


def test_nothing_moves_without_attack_and_defense_also_where_clients_weigh_unequally() -> None:
    told = certificates(partition="dirichlet(alpha=0.3, min_size=10)")
    assert told["attack_shift"] == 0
    assert told["defense_shift"] == pytest.approx(0, abs=1e-12)


def test_broken_rows_move_a_mean_that_drops_them_nowhere() -> None:
    told = certificates(attack="nan", f=1)
    assert told["attack_shift"] == 0
    assert told["dropped"] == 2


def test_poisoned_data_move_the_mean_too() -> None:
    assert certificates(attack="label-flip", f=2)["attack_shift"] > 0.01


def test_a_network_without_statistics_serves_no_variance() -> None:
    assert "smallest_variance" not in certificates()
    assert certificates(norm="fbn")["smallest_variance"] > 0


def test_certificate_is_of_the_clients_of_a_round() -> None:
    part = {"attack": "alie", "clients": 20, "f": 8, "f_declared": 3, "participation": 0.5}
    assert certificates(**part, quota=True)["z_max"] == pytest.approx(z_max(10, 4))
    assert z_max(10, 4) != pytest.approx(z_max(20, 8))
    assert "z_max" not in certificates(**part)  # another number of attackers every round


def test_number_of_test_images_is_that_of_the_images_tested() -> None:
    record = run_cell(cell(domains=STYLES, dataset=STYLES[0], clients=6, model="domains-cnn", f=1), fingerprint="x")
    assert record.certificates["test_samples"] == record.metrics.samples == 5 * 30


@pytest.mark.parametrize(("users", "equal"), [((1, 4, 1), 36 / (2 / 60 + 4 / 15)), ((2, 2, 2), None)])
def test_users_with_few_test_images_weigh_as_much_as_others(users: tuple[int, ...], equal: float | None) -> None:
    clients = sum(users)
    made = cell(domains=STYLES, dataset=STYLES[0], clients=clients, domain_users=users, model="domains-cnn", f=0)
    certificates = run_cell(made, fingerprint="x").certificates
    assert certificates.get("equal_samples") == (equal if equal is None else pytest.approx(equal))


def test_backdoor_is_measured_on_the_images_that_accuracy_is_measured_on() -> None:
    built = build(cell(domains=STYLES, dataset=STYLES[0], clients=6, model="domains-cnn", f=1, attack="badnets"))
    tests = tuple(part[:3] for part in built.tests)
    object.__setattr__(built, "tests", tests)
    e = built.experiment
    evaluator = Evaluator(cell(domains=STYLES, dataset=STYLES[0], clients=6, f=1), built)
    *_, last = train(e)
    seen: list[int] = []
    original = built.test.pixels
    object.__setattr__(built.test, "pixels", lambda index, **k: (seen.extend(index.tolist()), original(index, **k))[1])
    value = evaluator.metrics(last.state).asr
    honest = [k for k in range(6) if k not in e.settings.byzantine()]
    assert set(seen) <= {int(i) for k in honest for i in tests[k]}
    expected = [
        attack_success(e.model, lambda i, p=tests[k]: original(p[i], dtype=torch.float64), built.test.y[tests[k]],
                       e.attack, batch=8)
        for k in honest
    ]  # fmt: skip
    assert value == pytest.approx(sum(expected) / 5)


def test_users_whose_test_images_are_all_of_the_target_do_not_count_for_a_backdoor() -> None:
    made = cell(domains=STYLES, dataset=STYLES[0], clients=6, model="domains-cnn", f=1, attack="badnets(target=1)")
    built = build(made)
    honest = [k for k in range(6) if k not in built.experiment.settings.byzantine()]
    ones = torch.nonzero(built.test.y == 1).flatten()
    for lacking, doubts in ((honest[:1], "asr: 1 of 5 users"), (honest, "asr: no test image is of another class")):
        tests = tuple(ones[:3] if k in lacking else part for k, part in enumerate(built.tests))
        object.__setattr__(built, "tests", tests)
        evaluator = Evaluator(made, built)
        *_, last = train(built.experiment)
        value = evaluator.metrics(last.state).asr
        assert [words for words in evaluator.doubts if words.startswith(doubts)]
        if lacking == honest:
            assert value is None
            continue
        e = built.experiment
        expected = [
            attack_success(e.model, lambda i, p=tests[k]: built.test.pixels(p[i], dtype=torch.float64),
                           built.test.y[tests[k]], e.attack, batch=8)
            for k in honest[1:]
        ]  # fmt: skip
        assert value == pytest.approx(sum(expected) / 4)


BACKDOOR = {
    "f": 2, "attack": "badnets(fraction=1)", "validation": 0.3, "evaluate_every": 1, "rounds": 3, "clients": 6,
    "schedule": {"kind": "step", "values": [0.1, 3.0], "milestones": [2]}, "evasions": ["fgsm"],
}  # fmt: skip


def test_a_selected_round_has_a_backdoor_of_its_own() -> None:
    record = run_cell(cell(**BACKDOOR, select="validation"), fingerprint="x")
    chosen = record.certificates["selection"]["round"]
    assert chosen < 3
    early = run_cell(cell(**BACKDOOR, stop=chosen), fingerprint="x").metrics
    assert record.metrics.groups["selected"]["asr"] == early.asr
    assert record.metrics.groups["selected"]["sa"] == early.sa
    assert record.metrics.asr != early.asr
    assert fault(record) is None
    for statistic, rate in (("selected", early.asr), ("final", record.metrics.asr), ("validation", None)):
        made = rank_board(counted(frame([record]), statistic)[0])
        said = [note for note in made.notes if note.startswith("ASR")]
        assert said == [] if rate is None else f" {100 * rate:.1f}." in said[0]


def test_how_far_attackers_moved_what_is_handed_on_is_of_the_last_round() -> None:
    settings = {
        "norm": "dual-bn(local=true)", "at": "ratio(rho=0.67)", "objective": "at", "f": 1, "byzantine": "at",
        "validation": 0.3, "propagation": "fedrbn(when=test)", "attack": "poisonedfl(period=2)", "clients": 6,
        "rounds": 4, "evaluate_every": 1, "train_evasion": "pgd(eps=0.1, steps=2)", "evasions": ["fgsm"],
        "algorithm": "fedavg",
        "schedule": {"kind": "step", "values": [0.1, 3.0], "milestones": [2]},
    }  # fmt: skip
    last, chosen = (run_cell(cell(**settings, select=s), fingerprint="x").certificates for s in ("last", "validation"))
    assert chosen["selection"]["round"] < 4
    assert last["statistics_shift"] == chosen["statistics_shift"] > 0


# --- what a local model is -------------------------------------------------------------------------------------------


def test_local_model_of_fbn_has_the_statistics_its_client_would_send() -> None:
    e = build(cell(norm="fbn", validation=0.2)).experiment
    (record, *_) = train(e, local=lambda round: True)
    local = record.local
    variance = e.layout.variance_mask()
    # From (0, 1) a step of β = 0.1, so every variance is at least 0.9; the batch's own are far smaller.
    assert bool((local.statistics[:, variance] >= 0.9).all())
    assert bool((local.statistics != local.before).any())


def test_local_model_of_hbn_is_tested_with_the_statistics_it_received() -> None:
    e = build(cell(norm="hbn", validation=0.2)).experiment
    (record, *_) = train(e, local=lambda round: True)
    assert torch.equal(record.local.statistics, record.local.before.expand(5, -1))


# --- batches, noise, masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 3])
def test_free_noise_grows_with_a_batch_larger_than_the_rounds_first(first: int) -> None:
    """A round of exactly so many steps may begin with the short last batch of an epoch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).double()
    x, y = torch.rand(5, 1, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])
    task = Task(round=0, adversarial=True, prior=torch.ones(2), evasion=create("evasion", "fgsm"),
                generator=torch.Generator())  # fmt: skip
    objective = create("objective", "free-at(eps=0.2, step=0.1)")
    objective.backward(model, x[:first], y[:first], task)
    objective.backward(model, x, y, task)
    noise = task.notes["noise"]
    assert noise.shape == x.shape
    assert float(noise[first:].abs().max()) == pytest.approx(0.1)  # one step from zero
    assert float(noise[:first].abs().max()) == pytest.approx(0.2)


def test_free_noise_of_the_released_digits_pipeline_moves_normalized_images() -> None:
    """The released code trains a network of ``u = 2x - 1``, clips ``u`` to [0, 1] and measures noise in ``u``."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    network, x, y = network.double(), torch.rand(5, 1, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])
    of_u = copy.deepcopy(network)
    of_u.register_forward_pre_hook(lambda module, given: ((given[0] + 1) / 2,))
    found = []
    for model, images, more in ((network, x, ", legacy_digits_clip=true"), (of_u, 2 * x - 1, "")):
        task = Task(round=0, adversarial=True, prior=torch.ones(2), evasion=create("evasion", "fgsm"),
                    generator=torch.Generator())  # fmt: skip
        objective = create("objective", f"free-at(eps=0.2, step=0.15{more})")
        losses = [objective.backward(model, images, y, task) for _ in range(3)]
        found.append([*losses, task.notes["noise"], *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found)


def test_steps_after_the_one_in_lockstep_draw_masks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int, int]] = []
    original = Clients._stream

    def noted(self: Clients, name: str, client: int, round: int, step: int) -> torch.Generator:
        if name == "dropout":
            drawn.append((client, round, step))
        return original(self, name, client, round, step)

    monkeypatch.setattr(Clients, "_stream", noted)
    digits = "digits(limit=30, test_limit=10)"
    e = build(cell(norm="fedtan", model="fbn-cnn", dataset=digits, clients=2, batch=4, rounds=1)).experiment
    for _ in train(e):
        pass
    assert {(k, 0, step) for k in range(2) for step in range(2)} <= set(drawn)


def test_hbn_as_released_takes_statistics_of_a_network_with_dropout() -> None:
    released = {"norm": "hbn(stats_mode=repo)", "model": "fbn-cnn", "dataset": "digits(limit=30, test_limit=10)"}
    assert certificates(**released, clients=2, batch=4, rounds=1)["smallest_variance"] is not None


def test_hbn_as_released_tests_with_statistics_of_the_clients_own_factors() -> None:
    def tested(factor: float) -> torch.Tensor:
        e = build(cell(norm="hbn(stats_mode=repo)", rounds=1)).experiment
        for record in train(e):
            before = record.tested
        from robustfl.engine.training import _Loop

        before.personal.parameters.fill_(factor)
        return _Loop(e, lambda message: None).channel.refreshed(before)

    assert not torch.equal(tested(3.0), tested(-3.0))


def test_backdoor_of_nobody_has_no_success() -> None:
    record = run_cell(cell(attack="badnets", f=0), fingerprint="x")
    assert record.metrics.asr is None


def test_cost_is_the_number_of_products_counted_by_hand() -> None:
    told = certificates(
        model="mlp(hidden=(8,))", norm="none", at="users(ids=(0, 1))", objective="at", train_evasion="pgd(steps=3)"
    )
    forward = 64 * 8 + 8 * 10
    step = 2 * forward + 8 * 10  # gradients of all weights, and of all inputs but the images
    crafted = 2 * forward  # no weight's gradient, but the images'
    samples = 300 / 5
    assert told["macs_per_epoch"]["ST"] == samples * step
    assert told["macs_per_epoch"]["AT"] == samples * (2 * step + 3 * crafted)
    assert told["macs_per_epoch"]["mean"] == pytest.approx(samples * (step + 2 / 5 * (step + 3 * crafted)))


def test_cost_is_of_an_average_client_whatever_the_batch_and_leaves_the_experiment_as_it_was() -> None:
    """A batch that no client fills, in a network of 64 · 8 + 8 · 10 products with dropout."""
    settings = {"model": "mlp(hidden=(8,))", "norm": "none", "partition": "dirichlet(alpha=1, min_size=8)"}
    e = build(cell(**settings, batch=256)).experiment
    assert len({len(part) for part in e.parts}) > 1
    dropout = ClientDropout(0.5)
    e.model.add_module("masked", nn.Sequential(dropout))
    e.model.register_forward_hook(lambda module, given, logits: module.masked(logits))
    e.model.eval()
    found = macs_per_epoch(e)
    assert found["mean"] == found["ST"] == pytest.approx(300 / 5 * (2 * (64 * 8 + 8 * 10) + 8 * 10))
    assert not any(m.training for m in e.model.modules())
    assert all(p.grad is None for p in e.model.parameters())
    assert dropout.generators == ()
    e.model.train()
    assert macs_per_epoch(e) == found
    assert all(m.training for m in e.model.modules())


def test_cost_counts_every_replay_of_a_batch() -> None:
    users = {"at": "users(ids=(0, 1))", "algorithm": "fedavg(local_steps=1)", "rounds": 1}
    once, thrice = (certificates(**users, objective=f"free-at(replays_per_batch={m})") for m in (1, 3))
    assert thrice["macs_per_epoch"]["AT"] == pytest.approx(3 * once["macs_per_epoch"]["AT"])
    assert thrice["macs_per_epoch"]["ST"] == once["macs_per_epoch"]["ST"]
