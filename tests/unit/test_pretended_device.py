"""Rounds on a device that is not the CPU (``tests.pretend``): nothing is mixed with tensors of the CPU.

Code takes another way there (whole columns, no C code, reports copied at once), and has to arrive at the same model.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.federations import federation
from robustfl.contracts import Aggregator, Propagation, StatisticsLayer
from robustfl.engine import train
from robustfl.gradients import channels_last
from robustfl.layer_kinds import convolution
from robustfl.registry import create, entries
from tests.pretend import DEVICE, HOST, Pretend


def names(kind: str, *without: str) -> list[str]:
    return [e.name for e in entries(kind) if e.name not in without and not issubclass(e.cls, Propagation)]


def pipelines() -> list[str]:
    found = [(e.name, e.cls) for e in entries("defense") if not issubclass(e.cls, Propagation)]
    return [name if issubclass(cls, Aggregator) else f"{name}+trimmed-mean" for name, cls in found]


TRUSTED = ("fltrust", "flare")
"""Rules that look at data of the server's own."""


def trained(device: torch.device, objective: str = "ce", uneven: bool = False, **methods: str) -> dict[str, Tensor]:
    """What two measured rounds of seven clients, one of them Byzantine, end with; ``uneven``: one has less data."""
    with Pretend() if device == DEVICE else nullcontext():
        e = federation("digits-cnn", (1, 8, 8), n=7, f=1, batch=3, rounds=2, device=device, **methods)
        if methods.get("defense") in TRUSTED:
            e = replace(e, root=torch.arange(3, device=device))
        if uneven:
            e = replace(e, parts=(e.parts[0][:4], *e.parts[1:]))
        if objective != "ce":
            evasion = create("evasion", "pgd(steps=2)")
            e = replace(e, objective=create("objective", objective), adversarial=frozenset({0, 3}), evasion=evasion)
        *_, last = train(e, measure=lambda round: True, local=lambda round: round == 2)
        assert {e.flat.device, last.state.theta.device} == {device}
        assert last.state.statistics.device == HOST
        end = {"model": e.flat, "statistics": last.state.statistics, "loss": torch.tensor(last.loss)}
        end["tested"] = (last.tested or last.state).statistics
        if (own := last.state.personal) is not None:
            end |= {"own parameters": own.parameters, "own statistics": own.statistics}
        return end


def same_on_the_device(objective: str = "ce", uneven: bool = False, **methods: str) -> None:
    chosen = {"norm": "fbn", "defense": "nnm+trimmed-mean", "attack": "sf"} | methods
    here, there = (trained(device, objective, uneven, **chosen) for device in (HOST, DEVICE))
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("defense", [*pipelines(), "median(weighted=true)", "trimmed-mean(weighted=true)"])
def test_every_defense(defense: str) -> None:
    more = {"algorithm": "fedavg(local_steps=1)"} if "weighted" in defense else {}
    more |= {"norm": "gn"} if defense in TRUSTED else {}  # no statistics: the server has none to compare with
    same_on_the_device(defense=defense, attack="alie(z=1)", **more)


@pytest.mark.slow
@pytest.mark.parametrize("attack", names("attack"))
def test_every_attack(attack: str) -> None:
    same_on_the_device(attack=attack)


# The first sees one value in hidden layers.
NORMS = [*names("norm", "in", "centralised-bn"), "dual-bn(local=true)", "hbn(stats_mode=eval)"]


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm(norm: str) -> None:
    same_on_the_device(norm=norm)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_norms_whose_clients_take_several_steps_of_unequal_number(norm: str) -> None:
    same_on_the_device(norm=norm, algorithm="fedavg(epochs=2)", uneven=True)


def test_representations_of_clients_with_statistics_of_their_own() -> None:
    same_on_the_device(norm="fedbn", algorithm="moon(local_steps=2)")


def test_the_oracle_of_normalization() -> None:
    same_on_the_device(norm="centralised-bn", attack="none", defense="mean")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", names("algorithm"))
def test_every_algorithm(algorithm: str) -> None:
    private = "examples" in create("algorithm", algorithm).asks  # of single examples, which batch norm would mix
    same_on_the_device(algorithm=algorithm, norm="gn" if private else "fbn")


@pytest.mark.parametrize("objective", names("objective", "ce"))
def test_every_objective(objective: str) -> None:
    branched = create("objective", objective).needs_branches
    same_on_the_device(objective=objective, norm="dual-bn" if branched else "fbn")


def test_weight_gradients_of_large_images_one_client_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustfl.layer_kinds.LARGE", 0)
    same_on_the_device(norm="gn")


def convolved(device: torch.device, sizes: tuple[int, ...]) -> list[Tensor]:
    """The gradients of a convolution that two clients share, by its input, weights and biases."""
    draw = torch.Generator().manual_seed(2)
    x, weight, bias = (torch.randn(shape, generator=draw) for shape in ((sum(sizes), 2, 5, 5), (3, 2, 3, 3), (3,)))
    with Pretend() if device == DEVICE else nullcontext():
        leaves = [
            channels_last(x.to(device)).requires_grad_(),
            weight.to(device).expand(2, -1, -1, -1, -1).requires_grad_(),
            bias.to(device).expand(2, -1).requires_grad_(),
        ]
        y = convolution(*leaves, ((1, 1), (1, 1), (1, 1), 1), sizes)
        return [t.to(HOST).contiguous() for t in torch.autograd.grad(y.square().sum(), leaves)]


@pytest.mark.parametrize("sizes", [(3, 3), (2, 3)])
def test_convolutions_of_large_images_with_equal_and_unequal_batches(sizes, monkeypatch):
    monkeypatch.setattr("robustfl.layer_kinds.LARGE", 0)
    torch.testing.assert_close(convolved(DEVICE, sizes), convolved(HOST, sizes), rtol=1e-4, atol=1e-4)


def normalised(norm: str, device: torch.device, shape: tuple[int, ...], alike: bool) -> list[Tensor]:
    """Output, gradients and report of a training forward of three clients of unequal size, in float64."""
    draw = torch.Generator().manual_seed(1)
    x, outer = (torch.randn(shape, generator=draw, dtype=torch.float64) + 3 for _ in range(2))
    mean, variance = torch.randn(2, generator=draw), 1 + torch.rand(2, generator=draw)
    rows = 1 + torch.rand((1 if alike else 3, 2), generator=draw, dtype=torch.float64)
    with Pretend() if device == DEVICE else nullcontext():
        layer = create("norm", norm).layer(2).double().to(device)
        if isinstance(layer, StatisticsLayer):
            layer.running_mean.copy_(mean.to(device))
            layer.running_var.copy_(variance.to(device))
        layer.begin((4, 2, 3))
        given = [rows.to(device).expand(3, -1).requires_grad_(), (rows - 1).to(device).expand(3, -1).requires_grad_()]
        entry = channels_last(x.to(device)).requires_grad_()
        y = layer.normalised(entry, *given)
        found = [y, *torch.autograd.grad(y, [entry, *given], outer.to(device))]
        if isinstance(layer, StatisticsLayer):
            found += layer.report()[:2]
        return [t.detach().to(HOST).contiguous() for t in found]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("shape", [(9, 2), (9, 2, 3, 4)])
@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "gn(groups=1)", "fedtan"])
def test_formulas_for_clients_of_unequal_size(norm: str, shape: tuple[int, ...], alike: bool) -> None:
    here, there = (normalised(norm, device, shape, alike) for device in (HOST, DEVICE))
    torch.testing.assert_close(there, here, rtol=1e-10, atol=1e-12)
