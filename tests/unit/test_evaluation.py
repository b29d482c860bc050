"""Accuracy, backdoors, traffic and the portrait of statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl.contracts import Attack, Evasion
from robustfl.errors import RobustflError, UsageError
from robustfl.evaluation import Traffic, evaluation_batch, robust_accuracy, standard_accuracy, traffic
from robustfl.evaluation.accuracy import attack_success
from robustfl.layout import Layout, layout_of
from robustfl.registry import create
from robustfl.scenarios import Cell, run_cell
from robustfl.scenarios.bn_statistics import components
from robustfl.scenarios.expand import fingerprints


def linear() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model that says class 1 where the pixel exceeds ½."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0], [2.0]]))
        model[1].bias.copy_(torch.tensor([0.0, -1.0]))
    x = torch.tensor([0.1, 0.45, 0.6, 0.9, 0.95]).view(5, 1, 1, 1)
    return model, x, torch.tensor([0, 0, 1, 1, 0])


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_standard_accuracy_counts_every_sample_once(batch: int) -> None:
    model, x, y = linear()
    found = standard_accuracy(model, lambda i: x[i], y, batch=batch)
    assert found.hits.tolist() == [True, True, True, True, False]
    assert found.value == 0.8
    assert found.per_class(3) == [2 / 3, 1.0, None]
    expected = nn.functional.cross_entropy(model(x), y).item()
    assert found.loss == pytest.approx(expected, rel=1e-6)


def test_robust_accuracy_is_that_on_perturbed_inputs() -> None:
    model, x, y = linear()
    attack = create("evasion", "fgsm(eps=0.07)")
    found = robust_accuracy(model, lambda i: x[i], y, attack, batch=2, generator=torch.Generator())
    assert found.hits.tolist() == [True, False, True, True, False]


@pytest.mark.parametrize(("dtype", "fitting"), [(torch.float32, 128), (torch.float64, 64)])
def test_batch_size_is_the_power_of_two_whose_activations_fit_64_mebibytes(dtype: torch.dtype, fitting: int) -> None:
    """Two layers put out 64·32·32 numbers each: half a mebibyte an image in single precision."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()).to(dtype)
    assert evaluation_batch(model, torch.zeros(1, 3, 32, 32, dtype=dtype)) == fitting
    assert not any(m._forward_hooks for m in model.modules())


@dataclass(frozen=True)
class Relabels(Evasion):
    """Leaves the images alone and writes to the labels."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        y.fill_(0)
        return x.clone()


def test_an_attack_that_writes_to_its_labels_is_told() -> None:
    model, x, y = linear()
    with pytest.raises(RobustflError, match="wrote to what it was shown"):
        robust_accuracy(model, lambda i: x[i], y, Relabels(), batch=2, generator=torch.Generator())


X = torch.zeros(5, 1, 4, 4)
Y = torch.tensor([0, 1, 2, 1, 2])


class Corner(nn.Module):
    """Says ``fooled`` where the lower right pixel is bright, else class 1; notes how it was called."""

    def __init__(self, fooled: int = 2) -> None:
        super().__init__()
        self.fooled, self.batches, self.modes = fooled, [], []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        self.modes.append((self.training, torch.is_grad_enabled()))
        says = torch.where(x[:, 0, -1, -1] > 0.5, self.fooled, 1)
        return nn.functional.one_hot(says, 3).float()


def success(model: nn.Module, attack: Attack | str, labels: Tensor = Y, batch: int = 2) -> float:
    chosen = robustfl.attack(attack) if isinstance(attack, str) else attack
    return attack_success(model, lambda index: X[index], labels, chosen, batch=batch)


def test_a_model_with_the_backdoor_is_always_fooled() -> None:
    model = Corner()
    assert success(model, "badnets(target=2, size=1)") == 1.0
    assert sum(model.batches) == 3  # the two images of class 2 are not asked about
    assert max(model.batches) == 2


def test_images_that_are_taken_for_the_target_anyway_count_as_fooled_too() -> None:
    # Without a bright corner the model says 1: all three images of other classes.
    assert success(Corner(), "badnets(target=1, size=1, value=0)") == 1.0
    assert success(Corner(fooled=0), "badnets(target=2, size=1)") == 0.0


def test_logits_with_nan_are_no_answer() -> None:
    class Broken(Corner):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * math.nan

    assert success(Broken(), "badnets(target=0, size=1)") == 0.0


def test_nothing_is_left_of_images_of_the_target_class_alone() -> None:
    assert math.isnan(success(Corner(), "badnets(target=1)", torch.ones(5, dtype=torch.int64)))


def test_evaluation_mode_without_gradients_and_the_old_mode_afterwards() -> None:
    model = Corner().train()
    success(model, "badnets(size=1)")
    assert set(model.modes) == {(False, False)}
    assert model.training


@pytest.mark.parametrize(
    "spec", ["timed(badnets(target=2, size=1))", "model-replacement(badnets(target=2, size=1))",
             "opt(neurotoxin(badnets(target=2, size=1)))"],
)  # fmt: skip
def test_wrapped_backdoors_have_the_trigger_and_target_of_what_they_wrap(spec: str) -> None:
    assert success(Corner(), spec) == 1.0


@pytest.mark.parametrize("spec", ["sf", "label-flip(source=1, target=2)", "timed(sf)"])
def test_attacks_without_a_trigger_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="has no trigger"):
        success(Corner(), spec)


CLIENTS = 5


def layout(model: str, shape: tuple[int, int, int], norm: str = "naive-bn") -> Layout:
    with torch.random.fork_rng(devices=[]):
        return layout_of(create("model", model).build(create("norm", norm), shape=shape, classes=10))


RESNET = layout("resnet20", (3, 32, 32))
MLP = layout("mlp", (1, 28, 28))


def total(norm: str, of: Layout, rounds: int) -> tuple[float, int, int]:
    """MiB, exchanges and extra numbers of all rounds."""
    made = create("norm", norm)
    each = [traffic(made, of, round=t, rounds=rounds) for t in range(rounds)]
    return (
        sum(t.mebibytes(CLIENTS) for t in each),
        sum(t.exchanges for t in each),
        sum(t.exchanged for t in each),
    )


@pytest.mark.parametrize(
    ("switch", "gibibytes", "extra_rounds", "extra_bytes"),
    [(1000, 60.6563, 85.07, 0.1014), (2000, 60.7178, 91.94, 0.2027), (4000, 60.8408, 95.80, 0.4045),
     (10_000, 61.2100, 98.28, 1.0051)],
)  # fmt: skip
def test_table_4_totals_of_cifar(switch: int, gibibytes: float, extra_rounds: float, extra_bytes: float) -> None:
    rounds = 10_000
    mebibytes, exchanges, _ = total(f"fedtan-ii(switch_round={switch})", RESNET, rounds)
    plain = total("naive-bn", RESNET, rounds)[0]
    assert mebibytes / 1024 == pytest.approx(gibibytes, rel=2e-5)
    assert 100 * (exchanges - rounds) / exchanges == pytest.approx(extra_rounds, abs=5e-3)
    # The printed shares come from rounded totals.
    assert 100 * (mebibytes - plain) / mebibytes == pytest.approx(extra_bytes, abs=2e-4)


@pytest.mark.parametrize(
    ("switch", "gigabit", "extra_rounds", "extra_bits"),
    [
        (10, 2.1388, 5.66, 0.0100),
        (50, 2.1397, 23.08, 0.0501),
        (100, 2.1408, 37.50, 0.1002),
        (500, 2.1493, 75.0, 0.4992),
    ],
)
def test_table_5_totals_of_mnist(switch: int, gigabit: float, extra_rounds: float, extra_bits: float) -> None:
    """Its unit is 2^30 bit, its base leaves the 60 statistics out, and its FedTAN row omits its own extra traffic."""
    rounds = 500
    _, exchanges, extra = total(f"fedtan-ii(switch_round={switch})", MLP, rounds)
    base = MLP.d * rounds
    assert (base + extra) * 32 * (CLIENTS + 1) / 2**30 == pytest.approx(gigabit, abs=6e-5)
    assert 100 * (exchanges - rounds) / exchanges == pytest.approx(extra_rounds, abs=5e-3)
    assert 100 * extra / (base + extra) == pytest.approx(extra_bits, abs=6e-5)


@pytest.mark.parametrize(
    ("norm", "sent"), [("fedbn", 269_722 - 1_376), ("silobn", 269_722), ("singlenet", 0), ("hbn", 269_722 + 1_376)]
)
def test_private_entries_are_not_sent(norm: str, sent: int) -> None:
    assert traffic(create("norm", norm), layout("resnet20", (3, 32, 32), norm)).each_way == sent


def test_forward_half_alone_exchanges_half_and_talks_twice_per_layer() -> None:
    found = traffic(create("norm", "fedavg-alg2"), layout("resnet20", (3, 32, 32), "fedavg-alg2"))
    assert found == Traffic(269_722, 1_376, 1_376, 1 + 2 * 19)


SMALL: dict[str, Any] = {
    "model": "digits-cnn(hidden=8)", "norm": "fbn", "clients": 6, "rounds": 1, "batch": 8,
    "evasions": (),
}  # fmt: skip
DOMAINS = tuple(f"digits-domain(limit=240, test_limit=60, style={style})" for style in ("textured", "shifted"))
PROPAGATED = {
    "norm": "dual-bn(local=true)", "algorithm": "fedavg", "objective": "pnc", "propagation": "fedrbn",
    "at": "ratio(rho=0.5)", "domains": DOMAINS, "model": "digits(channels=(4,4,4), hidden=(8,8))",
    "scaling": "unit", "train_evasion": "fgsm",
}  # fmt: skip


def ran(**settings: Any) -> dict[str, Any]:
    """The certificates of one tiny cell, on the handwritten digits unless it has domains."""
    cell = Cell.model_validate(SMALL | settings)
    found = run_cell(cell, fingerprint=fingerprints([cell], None)[cell])
    assert found.status == "done", found.reason
    return found.certificates


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    rows = torch.randn((7, 12), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    placed = components(rows)
    assert placed is not None
    points, shares = placed
    centred = rows.numpy() - rows.numpy().mean(axis=0)
    u, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points.numpy()), np.abs(u[:, :2] * sizes[:2]), atol=1e-12)
    np.testing.assert_allclose(shares.numpy(), (sizes**2 / (sizes**2).sum())[:2], atol=1e-12)
    assert (points.gather(0, points.abs().argmax(dim=0)[None]) > 0).all()


@pytest.mark.parametrize("rows", [
    torch.ones((4, 3)), torch.tensor([[0.0, 1.0], [float("nan"), 1.0], [2.0, 1.0]]),
    torch.tensor([[0.0, 1.0], [1e200, 1.0], [2.0, 1.0]], dtype=torch.float64),  # their squares are not finite
])  # fmt: skip
def test_equal_and_non_finite_statistics_have_no_picture(rows: torch.Tensor) -> None:
    assert components(rows) is None


def test_honest_participants_reports_are_placed_and_byzantine_ones_are_not() -> None:
    found = ran(attack="sf", f=2, f_declared=2)
    placed = found["bn_statistics"]
    assert sorted([*placed["clients"], *found["byzantine"]]) == [0, 1, 2, 3, 4, 5]
    assert len(placed["points"]) == 4
    assert placed["entries"] == 2 * (16 + 8)


def test_norms_without_statistics_leave_no_picture() -> None:
    assert "bn_statistics" not in ran(norm="gn")


def test_private_statistics_are_those_of_all_clients_by_domain_and_role() -> None:
    placed = ran(**PROPAGATED)["bn_statistics"]
    assert placed["clients"] == [*range(6), *range(6)]
    assert placed["branches"] == ["clean"] * 6 + ["adversarial"] * 6
    assert {g.split(" · ")[0] for g in placed["groups"]} == set(DOMAINS)
    assert {g.split(" · ")[1] for g in placed["groups"]} == {"AT", "ST"}
    alone = ran(**PROPAGATED | {"propagation": "none"})["bn_statistics"]
    adversarial = [g for g, b in zip(alone["groups"], alone["branches"], strict=True) if b == "adversarial"]
    assert adversarial
    assert all(g.endswith("AT") for g in adversarial)
