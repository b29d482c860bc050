"""FGSM, PGD and MIA: the ball, the gradient, targets, and the released Digits pipeline."""

from __future__ import annotations

import copy

import evasion_model
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion import PGD
from robustfl.attacks.evasion.balls import into_ball, noise_in
from robustfl.attacks.evasion.image_draws import Draws
from robustfl.attacks.evasion.targets import aim
from robustfl.errors import UsageError
from robustfl.evaluation import robust_accuracy, standard_accuracy
from robustfl.randomness import stream

ATTACKS = [
    "fgsm",
    "pgd",
    "pgd(keep=best, restarts=2)",
    "pgd(random_start=false)",
    "pgd(step_rule=released)",
    "mia",
    "mia(decay=0)",
]


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network that has learnt which half of an image is brighter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, 4, 4, generator=generator)
    y = (x[:, :, :2].mean((1, 2, 3)) > x[:, :, 2:].mean((1, 2, 3))).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, x, y


@pytest.mark.parametrize("spec", ATTACKS)
@pytest.mark.parametrize("eps", [0.03, 0.3])
def test_never_outside_the_ball_or_the_pixel_range(spec: str, eps: float, trained: tuple[nn.Module, ...]) -> None:
    model, x, y = trained
    adversarial = robustfl.evasion(spec, eps=eps).perturb(model, x, y)
    assert float((adversarial - x).abs().max()) <= eps + 1e-6
    assert float(adversarial.min()) >= 0.0
    assert float(adversarial.max()) <= 1.0


@pytest.mark.parametrize("spec", ATTACKS)
def test_the_loss_of_a_trained_model_rises(spec: str, trained: tuple[nn.Module, ...]) -> None:
    model, x, y = trained
    adversarial = robustfl.evasion(spec, eps=0.1).perturb(model, x, y)
    with torch.no_grad():
        assert F.cross_entropy(model(adversarial), y) > 2 * F.cross_entropy(model(x), y)


@pytest.mark.parametrize("spec", ATTACKS)
def test_radius_zero_changes_nothing(spec: str, trained: tuple[nn.Module, ...]) -> None:
    model, x, y = trained
    attack = robustfl.evasion(spec, eps=0)
    assert torch.equal(attack.perturb(model, x, y), x)
    settings = {"batch": 64, "generator": torch.Generator().manual_seed(0)}
    robust = robust_accuracy(model, lambda i: x[i], y, attack, **settings)
    assert robust.value == standard_accuracy(model, lambda i: x[i], y, batch=64).value


def test_robust_accuracy_falls_with_the_radius(trained: tuple[nn.Module, ...]) -> None:
    model, x, y = trained
    values = []
    for eps in (0.0, 0.02, 0.05, 0.1, 0.3):
        attack = robustfl.evasion("pgd", eps=eps, steps=20, step=eps / 8, random_start=False)
        generator = torch.Generator().manual_seed(0)
        values.append(robust_accuracy(model, lambda i: x[i], y, attack, batch=64, generator=generator).value)
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.9 > 0.1 > values[-1]


def test_the_best_iterate_is_kept_and_restarts_help(trained: tuple[nn.Module, ...]) -> None:
    model, x, y = trained

    def loss(spec: str) -> torch.Tensor:
        attack = robustfl.evasion(spec, eps=0.1, step=0.15, steps=3)
        adversarial = attack.perturb(model, x, y, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            return F.cross_entropy(model(adversarial), y, reduction="none")

    assert bool((loss("pgd(keep=best)") >= loss("pgd")).all())
    assert bool((loss("pgd(restarts=3)") >= loss("pgd")).all())


def test_a_zero_gradient_moves_nothing() -> None:
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.tensor([[0.5, 0.5]])
    assert torch.equal(robustfl.evasion("fgsm", eps=0.1).perturb(model, x, torch.tensor([0])), x)


def test_samples_do_not_influence_each_other(trained: tuple[nn.Module, ...]) -> None:
    model, x, y = trained
    attack = robustfl.evasion("pgd", eps=0.1, random_start=False)
    together = attack.perturb(model, x[:8], y[:8])
    alone = torch.cat([attack.perturb(model, x[i : i + 1], y[i : i + 1]) for i in range(8)])
    torch.testing.assert_close(together, alone)


def test_the_step_follows_the_radius_unless_it_is_given() -> None:
    def size(**params: object) -> float:
        attack = robustfl.evasion("pgd", **params)
        assert isinstance(attack, PGD)
        return attack.step_size

    assert size() == pytest.approx(2 / 255)
    assert size(eps=0.1) == pytest.approx(0.025)
    assert size(eps=0.1, step=0.01) == 0.01
    assert size(eps="8/255", steps=7, step_rule="released") == pytest.approx(10 / 255 / 7)
    assert size(eps="32/255", steps=1, step_rule="released") == pytest.approx(36 / 255)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("pgd(eps=-0.1)", "eps=-0.1 must be ≥ 0"),
        ("pgd(steps=0)", "steps=0 must be ≥ 1"),
        ("pgd(keep=first)", "best, last"),
        ("pgd(restarts=2, random_start=false)", "random_start"),
        ("pgd(epsilon=1)", "did you mean 'eps'"),
        ("pgd(norm=l1)", "norm='l1' is not allowed"),
        ("pgd(eps=inf)", "eps=inf"),
        ("mia(decay=-1)", "decay=-1.0 must be ≥ 0"),
        ("fgsm(target=1)", "target=1 is ignored unless targeted=True"),
        ("pgd(targeted=true, target=-1)", "target=-1 must be ≥ 0"),
        ("mia(legacy_digits_clip=true, norm=l2)", "norm='l2' has no counterpart"),
    ],
)
def test_wrong_parameters_are_refused(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        robustfl.evasion(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize("x", [torch.full((1, 4), 1.5), torch.full((1, 4), float("nan")), torch.ones(1, 4).long()])
def test_inputs_outside_pixel_space_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        robustfl.evasion("pgd").perturb(nn.Linear(4, 2), x, torch.tensor([0]))


# --- L2 --------------------------------------------------------------------------------------------------------------


def two_classes() -> nn.Module:
    """Logits are the two pixels."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    return model


@pytest.mark.parametrize("spec", ["fgsm", "pgd(steps=1, step=0.1, random_start=false)", "mia(steps=1, step=0.1)"])
def test_a_euclidean_step_goes_along_the_gradient(spec: str) -> None:
    found = robustfl.evasion(spec, eps=0.1, norm="l2").perturb(
        two_classes(), torch.tensor([[0.5, 0.5]]), torch.tensor([0])
    )
    torch.testing.assert_close(found, torch.tensor([[0.5 - 0.1 / 2**0.5, 0.5 + 0.1 / 2**0.5]]))


def test_projection_on_the_euclidean_ball_shortens_the_move() -> None:
    x = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.9, 0.5]])
    moved = torch.tensor([[0.8, 0.9], [0.5, 0.6], [1.2, 0.5]])
    expected = torch.tensor([[0.5 + 0.12, 0.5 + 0.16], [0.5, 0.6], [1.0, 0.5]])
    torch.testing.assert_close(into_ball(x, moved, 0.2, "l2"), expected)


def test_random_starts_fill_the_ball_evenly() -> None:
    x = torch.zeros(4000, 3)
    euclidean = noise_in(Draws(stream(0), 4000), x, 2.0, "l2").norm(dim=1)
    assert float(euclidean.max()) <= 2.0
    # A share r³ of the ball lies within a share r of its radius.
    assert float((euclidean < 1.0).double().mean()) == pytest.approx(1 / 8, abs=0.02)
    cube = noise_in(Draws(stream(0), 4000), x, 2.0, "linf")
    assert float(cube.abs().max()) <= 2.0
    assert float((cube.abs().amax(1) < 1.0).double().mean()) == pytest.approx(1 / 8, abs=0.02)


# --- momentum --------------------------------------------------------------------------------------------------------


def test_momentum_adds_gradients_of_equal_length() -> None:
    class Turning(nn.Module):
        """Its gradient in x is (-1, 1) until the first pixel falls below ½, and (8, 0) from then on."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.where(x[:, :1] < 0.5, 8 * x[:, :1], x[:, 1:] - x[:, :1])
            return torch.cat([torch.zeros_like(first), first], 1)

    # g = (-½, ½) s, then (½, ½) s for μ = 1: the second pixel goes on, the first returns; for μ = 3 it does not.
    x, y = torch.tensor([[0.55, 0.5]]), torch.tensor([0])
    once = robustfl.evasion("mia", eps=0.3, steps=2, step=0.1).perturb(Turning(), x, y)
    torch.testing.assert_close(once, torch.tensor([[0.55, 0.7]]))
    heavy = robustfl.evasion("mia", eps=0.3, steps=2, step=0.1, decay=3).perturb(Turning(), x, y)
    torch.testing.assert_close(heavy, torch.tensor([[0.35, 0.7]]))


# --- targets ---------------------------------------------------------------------------------------------------------

TARGETED = ["fgsm", "pgd", "mia", "pgd(norm=l2, eps=1)", "pgd(restarts=2)", "pgd(keep=best)"]


@pytest.mark.parametrize("spec", TARGETED)
def test_targeted_attacks_go_to_their_class_and_spare_its_images(spec: str) -> None:
    model, x, y = evasion_model.trained()
    attack = robustfl.evasion(spec, **({} if "eps" in spec else {"eps": 0.3}), targeted=True, target=3)
    found = attack.perturb(model, x, y)
    assert torch.equal(found[y == 3], x[y == 3])
    with torch.no_grad():
        before, after = F.log_softmax(model(x), 1)[:, 3], F.log_softmax(model(found), 1)[:, 3]
    assert float((after > before)[y != 3].double().mean()) > (0.8 if attack.name == "fgsm" else 0.97)


def test_restarts_and_the_best_iterate_bring_targeted_attacks_nearer() -> None:
    model, x, y = evasion_model.trained()

    def reached(spec: str) -> torch.Tensor:
        attack = robustfl.evasion(spec, eps=0.1, step=0.15, steps=3, targeted=True, target=3)
        with torch.no_grad():
            return F.log_softmax(model(attack.perturb(model, x, y, generator=stream(1))), 1)[:, 3]

    assert bool((reached("pgd(restarts=3)") >= reached("pgd")).all())
    assert bool((reached("pgd(keep=best)") >= reached("pgd")).all())


def test_the_default_target_is_the_least_likely_other_class() -> None:
    model = nn.Linear(3, 3, bias=False)
    nn.init.eye_(model.weight)
    x, y = torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.5, 0.1]]), torch.tensor([0, 2])
    assert aim(model, x, y, None, "pgd").tolist() == [2, 1]
    found = robustfl.evasion("fgsm", eps=0.1, targeted=True).perturb(model, x, y)
    torch.testing.assert_close(found, torch.tensor([[0.8, 0.4, 0.2], [0.8, 0.6, 0.0]]))


def test_a_target_that_is_no_class_is_refused() -> None:
    with pytest.raises(UsageError, match="target=2 of 2 classes; the last one is 1"):
        robustfl.evasion("pgd", targeted=True, target=2).perturb(
            two_classes(), torch.tensor([[0.5, 0.5]]), torch.tensor([0])
        )


# --- what defaults do, spelt out -------------------------------------------------------------------------------------


def written_out(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, start: torch.Tensor, eps: float, step: float, steps: int
) -> torch.Tensor:
    """The released loop: start in the ball, step, clip to the ball, clip to [0, 1]."""
    found = start.clamp(0, 1)
    for _ in range(steps):
        found = found.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(found), y, reduction="sum"), found)
        delta = (found.detach() + step * gradient.sign() - x).clamp(-eps, eps)
        found = (x + delta).clamp(0, 1)
    return found.detach()


def test_pgd_is_the_loop_of_its_equation() -> None:
    model, x, y = evasion_model.trained()
    x, y = x[:8].double(), y[:8]
    model = copy.deepcopy(model).double()
    eps = 8 / 255
    noise = torch.empty_like(x).uniform_(-eps, eps, generator=stream(5))
    expected = written_out(model, x, y, x + noise, eps, 2 / 255, 7)
    found = robustfl.evasion("pgd").perturb(model, x, y, generator=stream(5))
    torch.testing.assert_close(found, expected)


def test_the_released_digits_pipeline_clips_normalized_images() -> None:
    model, x, y = evasion_model.trained()
    x, y = x[:8].double(), y[:8]
    model = copy.deepcopy(model).double()
    eps, step = 8 / 255, 1.43 / 255
    u = 2 * x - 1
    noise = torch.empty_like(x).uniform_(-eps / 2, eps / 2, generator=stream(5))
    on_normalized = nn.Sequential(Halved(), model)
    expected = (written_out(on_normalized, u, y, u + 2 * noise, eps, step, 7) + 1) / 2
    attack = robustfl.evasion("pgd", eps=eps, step=step, legacy_digits_clip=True)
    found = attack.perturb(model, x, y, generator=stream(5))
    torch.testing.assert_close(found, expected)
    assert float(found[x == 0].min()) == 0.5


class Halved(nn.Module):
    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return (u + 1) / 2


@pytest.mark.parametrize("spec", ["fgsm", "mia(steps=1)"])
def test_the_released_digits_pipeline_moves_black_to_mid_grey(spec: str) -> None:
    found = robustfl.evasion(spec, eps=0.1, legacy_digits_clip=True).perturb(
        two_classes(), torch.tensor([[0.0, 0.8]]), torch.tensor([0])
    )
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.85]]))
