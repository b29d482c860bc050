"""Every registered evasion attack keeps the common promises (STYLE 17)."""

from __future__ import annotations

import pytest
import torch

import robustfl
from robustfl.attacks import evasion
from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.registry import create, describe, entries

SPECS = [e.name for e in entries("evasion") if not e.origin]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=SPECS)
def attack(request: pytest.FixtureRequest) -> Evasion:
    return robustfl.evasion(request.param, eps=0.1)


def network(dtype: torch.dtype = torch.float64, device: str = "cpu") -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    for i, parameter in enumerate(model.parameters()):
        torch.nn.init.normal_(parameter, generator=stream(i, "weights"))
    return model.to(device, dtype)


def images(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(4, 3, 2, 2, generator=stream(0, "pixels"), dtype=torch.float64)
    x[0], x[1, 0] = 0.0, 1.0  # on the border of the pixel range
    return x.to(device, dtype), torch.tensor([0, 1, 2, 1], device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", DEVICES)
def test_result_is_an_image_near_the_image_and_of_its_kind(attack: Evasion, dtype: torch.dtype, device: str) -> None:
    x, y = images(dtype, device)
    before = x.clone()
    found = attack.perturb(network(dtype, device), x, y, generator=stream(0, "start", device=device))
    assert (found.shape, found.dtype, found.device) == (x.shape, x.dtype, x.device)
    assert torch.equal(x, before)
    assert not found.requires_grad
    assert float((found - x).abs().max()) <= 0.1 + 1e-6
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert float((found - x).abs().max()) > 0.05


def test_same_generator_same_images(attack: Evasion) -> None:
    x, y = images()
    once, again = (attack.perturb(network(), x, y, generator=stream(3, "start")) for _ in range(2))
    assert torch.equal(once, again)
    torch.testing.assert_close(attack.perturb(network(), x, y), attack.perturb(network(), x, y))


def test_the_loss_does_not_fall(attack: Evasion) -> None:
    (x, y), model = images(), network()
    found = attack.perturb(model, x, y)
    loss = torch.nn.functional.cross_entropy
    assert bool((loss(model(found), y, reduction="none") > loss(model(x), y, reduction="none")).all())


def test_gradients_that_were_there_are_still_there(attack: Evasion) -> None:
    (x, y), model = images(), network()
    model(x).sum().backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    attack.perturb(model, x, y)
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_it_works_where_gradients_are_switched_off(attack: Evasion) -> None:
    (x, y), model = images(), network()
    with torch.no_grad():
        off = attack.perturb(model, x, y)
    assert torch.equal(off, attack.perturb(model, x, y))


def test_an_empty_batch_gives_an_empty_batch(attack: Evasion) -> None:
    x, y = images()
    assert attack.perturb(network(), x[:0], y[:0]).shape == (0, 3, 2, 2)


def test_pixels_outside_their_range_are_refused(attack: Evasion) -> None:
    x, y = images()
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        attack.perturb(network(), x - 0.5, y)


def test_repr_and_description_build_it_again(attack: Evasion) -> None:
    assert eval(repr(attack), vars(evasion)) == attack
    assert create("evasion", describe(attack)) == attack


def test_facts_are_stated(attack: Evasion) -> None:
    assert attack.spec.startswith("§5")
    assert "arXiv" in attack.paper
    assert ">>>" in (type(attack).__doc__ or "")
