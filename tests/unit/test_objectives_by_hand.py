"""Gradients of the adversarial objectives, by autograd from their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.branches import ADVERSARIAL, CLEAN, through
from robustfl.contracts import Task
from robustfl.federation.statistics import begin
from robustfl.registry import create

EPS = 0.1


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    norm = create("norm", "dual-bn(local=true)").layer(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), norm, nn.Tanh(), nn.Linear(5, 3)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    for branch, shift in ((norm.clean, 0.5), (norm.adversarial, -0.5)):
        branch.running_mean.fill_(shift)
        branch.running_var.copy_(torch.rand(5, generator=generator, dtype=torch.float64) + 0.1)
    begin(model, None)
    return model.train()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(8, 1, 2, 2, generator=generator, dtype=torch.float64), torch.arange(8) % 3


def task(adversarial: bool, *, round: int = 0) -> Task:
    fgsm = create("evasion", f"fgsm(eps={EPS})")
    return Task(
        round=round, adversarial=adversarial, prior=torch.ones(3) / 3, evasion=fgsm, generator=torch.Generator()
    )


def taken(spec: str, given: Task) -> Tensor:
    model, (x, y) = network(), batch()
    create("objective", spec).backward(model, x, y, given)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])


def loss_of(model: nn.Module, x: Tensor, y: Tensor, branch: str, *, frozen: bool = False) -> Tensor:
    with through(model, branch, frozen=frozen):
        return F.cross_entropy(model(x), y)


def slope(model: nn.Module, x: Tensor, y: Tensor, branch: str = ADVERSARIAL) -> Tensor:
    """The input's gradient through a branch in evaluation mode."""
    inputs = x.clone().requires_grad_(True)
    found: Tensor = torch.autograd.grad(loss_of(model.eval(), inputs, y, branch), inputs)[0]
    model.train()
    return found


@pytest.mark.parametrize(("spec", "weight"), [("at", 0.5), ("at(weight=0.2)", 0.2), ("pnc(lam=0.2, warmup=0)", 0.5)])
def test_at_users_mix_clean_and_adversarial_loss_each_through_its_branch(spec: str, weight: float) -> None:
    model, (x, y) = network(), batch()
    clean = loss_of(model, x, y, CLEAN)
    # What the client has seen so far counts while it crafts, which the first clean batch does not touch.
    perturbed = (x + EPS * slope(model, x, y).sign()).clamp(0, 1)
    wrong = (x + EPS * slope(model, x, y, CLEAN).sign()).clamp(0, 1)
    assert not torch.equal(perturbed, wrong)
    whole = (1 - weight) * clean + weight * loss_of(model, perturbed, y, ADVERSARIAL)
    torch.testing.assert_close(taken(spec, task(True)), gradient(model, whole), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lam", [0.5, 0.8])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_st_users_add_a_clipped_calibration_through_the_frozen_branch(lam: float, clip: float | None) -> None:
    model, (x, y) = network(), batch()
    noisy = gradient(model, lam * loss_of(model, x, y, ADVERSARIAL, frozen=True))
    if clip is not None:
        assert float(noisy.norm()) > clip
        noisy = noisy * clip / noisy.norm()
    expected = (1 - lam) * gradient(model, loss_of(model, x, y, CLEAN)) + noisy
    spec = f"pnc(lam={lam}, clip={'none' if clip is None else clip}, warmup=3)"
    torch.testing.assert_close(taken(spec, task(False, round=3)), expected, rtol=1e-10, atol=1e-12)
    alone = gradient(model, loss_of(model, x, y, CLEAN))
    torch.testing.assert_close(taken(spec, task(False, round=2)), alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", ["at", "free-at", "fedrob"])
def test_st_users_train_on_clean_inputs_alone(spec: str) -> None:
    model, (x, y) = network(), batch()
    alone = gradient(model, loss_of(model, x, y, CLEAN))
    torch.testing.assert_close(taken(spec, task(False)), alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("black_and_white", [False, True])
def test_free_noise_climbs_the_loss_it_has_just_been_trained_on(black_and_white: bool) -> None:
    model, (x, y) = network(), batch()
    x = x.round() if black_and_white else x  # half of the noise leads out of the pixels' range
    given, objective = task(True), create("objective", "free-at(eps=0.05, step=0.04)")
    noise = torch.zeros_like(x)
    for _ in range(3):
        inputs = (x + noise).clamp(0, 1).requires_grad_(True)
        (up,) = torch.autograd.grad(loss_of(model, inputs, y, ADVERSARIAL), inputs)
        noise = (noise + 0.04 * up.sign()).clamp(-0.05, 0.05)
        objective.backward(model, x, y, given)
        assert torch.equal(given.notes["noise"], noise)


def test_fedrob_trains_on_the_affine_map_two_penalised_steps_from_the_identity() -> None:
    model, (x, y), lam = network(), batch(), 0.7
    linear, shift = torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    model.eval()
    for _ in range(2):
        linear, shift = linear.requires_grad_(True), shift.requires_grad_(True)
        loss = loss_of(model, (x.flatten(1) @ linear.T + shift).view(x.shape), y, ADVERSARIAL)
        penalty = lam * ((linear - torch.eye(4)).square().sum() + shift.square().sum())
        up = torch.autograd.grad(loss - penalty, (linear, shift))
        linear, shift = ((old + step / (2 * lam)).detach() for old, step in zip((linear, shift), up, strict=True))
    model.train()
    moved = (x.flatten(1) @ linear.T + shift).view(x.shape)
    expected = gradient(model, loss_of(model, moved, y, ADVERSARIAL))
    torch.testing.assert_close(taken(f"fedrob(lam={lam})", task(True)), expected, rtol=1e-10, atol=1e-12)
