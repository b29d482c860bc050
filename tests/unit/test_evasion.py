"""FGSM and PGD: the ball, the gradient, what they leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion import PGD
from robustfl.errors import UsageError
from robustfl.evaluation import robust_accuracy, standard_accuracy

ATTACKS = ["fgsm", "pgd", "pgd(keep=best, restarts=2)", "pgd(random_start=false)", "pgd(step_rule=released)"]


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


@pytest.mark.parametrize("spec", ATTACKS)
@pytest.mark.parametrize("raises", [False, True])
def test_mode_flags_and_gradients_come_back(spec: str, raises: bool) -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.inner = nn.Linear(4, 2), nn.Sequential(nn.Dropout(0.5))
            self.linear.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            if raises:
                raise RuntimeError("no")
            return self.linear(self.inner(x))

    model = Stubborn().train()
    model.inner.eval()
    x, y = torch.full((3, 4), 0.5), torch.tensor([0, 1, 0])
    if raises:
        with pytest.raises(RuntimeError, match="no"):
            robustfl.evasion(spec).perturb(model, x, y)
    else:
        robustfl.evasion(spec).perturb(model, x, y)
    assert model.training
    assert model.linear.training
    assert not model.inner.training
    assert (model.linear.weight.requires_grad, model.linear.bias.requires_grad) == (True, False)
    assert model.linear.weight.grad is None
    assert not x.requires_grad


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
