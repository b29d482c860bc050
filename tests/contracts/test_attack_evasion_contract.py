"""Every registered evasion attack keeps the common promises (STYLE 17)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustfl.contracts import Evasion
from robustfl.randomness import stream
from robustfl.registry import create, describe, entries

ENTRIES = [e for e in entries("evasion") if not e.origin]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=[e.name for e in ENTRIES])
def attack(request: pytest.FixtureRequest) -> Evasion:
    return create("evasion", request.param)


def victim(dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """A small network with batch norm and dropout, in training mode, with gradients of an earlier step."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3)
        ).to(device, dtype)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    return model


def images(dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(5, 1, 4, 4, generator=stream(0, "images"), dtype=torch.float64).round(decimals=2)
    return x.to(device, dtype), torch.tensor([0, 1, 2, 0, 1], device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", DEVICES)
def test_pixels_of_the_inputs_kind_in_the_ball(attack: Evasion, dtype: torch.dtype, device: str) -> None:
    x, y = images(dtype, device)
    out = attack.perturb(victim(dtype, device), x, y, generator=stream(0, "start", device=device))
    assert (out.shape, out.dtype, out.device) == (x.shape, dtype, x.device)
    assert not out.requires_grad
    assert 0.0 <= float(out.min())
    assert float(out.max()) <= 1.0
    assert 0.0 < float((out - x).abs().max()) <= attack.eps + 1e-6


def test_inputs_weights_gradients_and_statistics_are_left_alone(attack: Evasion) -> None:
    model, (x, y) = victim(), images()
    before = (x.clone(), y.clone(), {k: v.clone() for k, v in model.state_dict().items()})
    gradients = [p.grad.clone() for p in model.parameters()]
    attack.perturb(model, x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert all(torch.equal(v, before[2][k]) for k, v in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(m.training for m in model.modules())


def test_the_generator_alone_decides(attack: Evasion) -> None:
    model, (x, y) = victim(), images()

    def run(seed: int | None) -> torch.Tensor:
        torch.manual_seed(seed or 7)
        return attack.perturb(model, x, y, generator=None if seed is None else stream(0, "start"))

    assert torch.equal(run(1), run(2))
    assert torch.equal(run(None), run(None))


def test_it_works_where_gradients_are_off(attack: Evasion) -> None:
    model, (x, y) = victim(), images()
    usual = attack.perturb(model, x, y, generator=stream(0, "start"))
    with torch.no_grad():
        assert torch.equal(attack.perturb(model, x, y, generator=stream(0, "start")), usual)


def test_an_empty_batch_stays_empty(attack: Evasion) -> None:
    x, y = images()
    assert attack.perturb(victim(), x[:0], y[:0]).shape == (0, 1, 4, 4)


def test_repr_and_spec_evaluate_back(attack: Evasion) -> None:
    cls = type(attack)
    assert eval(repr(attack), {cls.__name__: cls}) == attack
    assert create("evasion", describe(attack)) == attack


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_facts_are_stated(entry) -> None:
    assert entry.cls.spec.startswith("§5")
    assert "arXiv" in entry.cls.paper
    assert entry.cls.__doc__
