"""Clients that take their local steps side by side: the same numbers as one after another, and who may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robustfl.contracts import LocalWork
from robustfl.federation import gradients, local_steps, train
from robustfl.federation.gradients import at_once, client_losses, reference_gradients
from robustfl.federation.local_steps import Walk
from robustfl.federation.own_weights import own_weights
from robustfl.federation.shared_layers import Unsupported
from robustfl.federation.statistics import begin, collect, resize
from robustfl.norms.layers import OwnBatchNorm
from robustfl.randomness import stream
from robustfl.registry import create, entries
from robustfl.scenarios.build import build
from robustfl.scenarios.expand import refusal
from robustfl.scenarios.spec import Cell
from robustfl.vectors import Layout, flatten_parameters, layout_of

BASE = {"dataset": "digits(limit=300, test_limit=40)", "model": "digits-cnn", "norm": "fbn", "clients": 6, "rounds": 3,
        "batch": 8, "dtype": "float64", "evasions": [], "algorithm": "fedavg"}  # fmt: skip
MOVING = "momentum=0.9, weight_decay=1e-3, clip_norm=1"
Groups = list[list[int]]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """The places of all groups that walk side by side."""
    seen: Groups = []
    original = Walk._together

    def noted(self: Walk, places: list[int]) -> None:
        original(self, places)
        seen.append(places)

    monkeypatch.setattr(Walk, "_together", noted)
    return seen


def end(**settings: object) -> tuple[Tensor, Tensor, float]:
    """Parameters, statistics and loss of the last round."""
    torch.set_num_threads(1)
    record = list(train(build(Cell.of({**BASE, **settings})).experiment))[-1]
    return record.state.theta.clone(), record.state.statistics.clone(), record.loss


def agree(**settings: object) -> None:
    for fast, slow in zip(end(**settings), end(**settings, engine="reference"), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [
        f"fedavg(local_steps=3, {MOVING})",
        "fedavg(local_steps=3, momentum=0.5, keep_momentum=true)",
        "fedprox(local_steps=3, mu=0.5)",
        "fedprox(local_steps=3, mu=0.5, legacy_unsquared=true)",
        "scaffold(local_steps=3)",
        "fedsam(local_steps=3, rho=0.5)",
        "fedacg(local_steps=3)",
        "fedmeta(local_steps=4)",
        "fedavgm(local_steps=3)",
        "fedadam(local_steps=3)",
    ],
)
def test_algorithms_walk_side_by_side_to_the_same_place(algorithm: str, groups: Groups) -> None:
    agree(algorithm=algorithm, attack="foe", f=1, defense="nnm+median")
    assert groups == [[0, 1, 2, 3, 4]] * 3 or groups == [[0, 1, 2, 3, 4, 5]] * 3


def walks(norm: str) -> bool:
    """Whether clients with this norm walk side by side on the digits network."""
    apart = {"fedtan", "fedtan-ii", "fedavg-alg2", "hbn", "fedwon"}
    return norm not in apart and not create("norm", norm).private


STEPPING = "fedavg(local_steps=3)"
NORMS = [e.name for e in entries("norm") if refusal(Cell.of({"norm": e.name, "algorithm": STEPPING})) is None]


@pytest.mark.parametrize("norm", NORMS)
def test_norms_keep_clients_apart_by_themselves_or_walk_alone(norm: str, groups: Groups) -> None:
    agree(norm=norm, algorithm=STEPPING, model="simple-cnn" if norm == "in" else "digits-cnn")
    assert bool(groups) == walks(norm), groups


@pytest.mark.parametrize(
    "more",
    [
        {"partition": "dirichlet(alpha=1)", "algorithm": "fedavg(epochs=2)"},  # batches and steps of every size
        {"model": "fbn-cnn", "dataset": "digits(limit=60, test_limit=20)", "batch": 2, "rounds": 1},  # dropout
        {"flip": True, "crop": 1},
        {"f": 2, "attack": "dba"},
        {"f": 2, "attack": "model-replacement(alpha=0.5)"},
        {"participation": 0.5, "algorithm": "scaffold"},
        {"model": "mlp(hidden=(8,))", "norm": "none"},
        {"objective": "wsm", "partition": "dirichlet(alpha=1)"},
        {"norm": "fixbn(switch=1)"},
    ],
    ids=lambda more: next(iter(more)) + "-" + str(next(iter(more.values()))),
)
def test_settings_make_no_difference_to_walking_side_by_side(
    more: dict[str, Any], groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "SIDE_BY_SIDE", 10**9)
    monkeypatch.setattr(gradients, "LARGEST_WEIGHTS", 10**9)
    agree(**more)
    assert groups


def test_only_clients_with_equally_many_steps_walk_together(groups: Groups) -> None:
    e = build(Cell.of({**BASE, "partition": "dirichlet(alpha=1)", "rounds": 1})).experiment
    list(train(e))
    steps = [e.algorithm.steps(len(part), 8) for part in e.parts]
    assert len(set(steps)) > 1
    assert all(len({steps[place] for place in places}) == 1 for places in groups)


@pytest.mark.parametrize("more", [{"objective": "at", "at": "all"}, {"norm": "fedbn"}, {"engine": "reference"},
                                  {"algorithm": "moon(mu=1)", "norm": "none"}])  # fmt: skip
def test_who_must_walk_alone_does(more: dict[str, Any], groups: Groups) -> None:
    end(**more, rounds=1)
    assert groups == []


def test_an_algorithm_that_does_not_say_so_itself_is_never_given_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass inherits ``local`` but may do in it what only makes sense for one client."""
    parent = type(create("algorithm", "fedavg"))
    e = build(Cell.of({**BASE, "rounds": 1})).experiment

    @dataclass(frozen=True)
    class Own(parent):  # type: ignore[misc, valid-type]
        def corrected(self, gradient: Tensor, theta: Tensor, work: LocalWork) -> Tensor:
            assert gradient.dim() == theta.dim() == 1
            return super().corrected(gradient, theta, work)

    object.__setattr__(e, "algorithm", Own())
    list(train(e))


def test_a_layer_that_does_not_say_so_itself_keeps_clients_alone(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Squared(OwnBatchNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.weight

    norm = type(create("norm", "naive-bn"))
    monkeypatch.setattr(norm, "layer", lambda self, channels: Squared(channels, momentum=0.1, eps=1e-5))
    agree(model="mlp(hidden=(8,))", norm="naive-bn", algorithm="fedavg(local_steps=2)")
    assert groups == []


def test_a_gpu_is_told_about_who_walks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    e = build(Cell.of({**BASE, "norm": "fedwon", "rounds": 2})).experiment
    said: list[str] = []
    list(train(e, warn=said.append))
    assert said == []
    monkeypatch.setattr(type(e), "device", property(lambda self: torch.device("cuda")))
    from robustfl.federation.clients import Clients

    clients = Clients(e, said.append)
    clients.walk_alone("why")
    assert said == ["clients take their local steps one after another (why)"]
    assert not clients.side_by_side


# --- the layers ------------------------------------------------------------------------------------------------------


def network(norm: str, model: str = "digits-cnn") -> tuple[nn.Module, Layout, Tensor]:
    scheme, architecture = create("norm", norm), create("model", model)
    made = architecture.build(scheme, shape=(1, 8, 8), classes=10).double()
    architecture.initialise(made, stream(0, "init"))
    layout = layout_of(made)
    return made, layout, flatten_parameters(made, layout)


@pytest.mark.parametrize("sizes", [(5, 5, 5), (3, 6, 2)])
@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "gn", "none"])
def test_every_row_is_the_gradient_at_its_own_model(norm: str, sizes: tuple[int, ...]) -> None:
    model, layout, theta = network(norm)
    draw = torch.Generator().manual_seed(0)
    thetas = theta + 0.1 * torch.randn((3, layout.d), generator=draw, dtype=torch.float64)
    x = torch.rand((sum(sizes), 1, 8, 8), generator=draw, dtype=torch.float64)
    y = torch.randint(10, (sum(sizes),), generator=draw)
    found, kept = torch.full_like(thetas, torch.nan), theta.clone()
    begin(model, (1, 1, 1))
    resize(model, sizes)
    with own_weights(model, layout, thetas, sizes, found):
        losses = client_losses(nn.functional.cross_entropy(model(x), y, reduction="none"), sizes)
        losses.sum().backward()
    reports = collect(model, layout, clients=3)
    assert torch.equal(theta, kept)
    for k, (inputs, labels) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        theta.copy_(thetas[k])
        row = torch.empty((1, layout.d), dtype=torch.float64)
        done = reference_gradients(model, layout, inputs, labels, sizes[k : k + 1], out=row)
        torch.testing.assert_close(found[k], row[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(losses[k].detach(), done.losses[0])
        torch.testing.assert_close(reports.rows[k], done.reports.rows[0])
        assert torch.equal(reports.counts[k], done.reports.counts[0])


@pytest.mark.parametrize("sizes", [(4, 4), (3, 5)])
def test_convolutions_keep_their_groups_strides_and_dilation(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), nn.Conv2d(6, 6, 1, groups=6)
    ).double()
    layout = layout_of(model)
    theta = flatten_parameters(model, layout)
    thetas, x = torch.rand((2, layout.d), dtype=torch.float64), torch.rand((8, 4, 7, 6), dtype=torch.float64)
    found = torch.empty_like(thetas)
    with own_weights(model, layout, thetas, sizes, found):
        y = model(x)
        y.square().sum().backward()
    for k, (inputs, out) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        theta.copy_(thetas[k])
        expected = model(inputs)
        torch.testing.assert_close(out.detach(), expected.detach())
        row = torch.cat([g.flatten() for g in torch.autograd.grad(expected.square().sum(), list(model.parameters()))])
        torch.testing.assert_close(found[k], row)


def test_layers_are_as_before_afterwards_also_after_an_error() -> None:
    model, layout, theta = network("fbn")
    before = {name: id(p) for name, p in model.named_parameters()}
    with pytest.raises(Unsupported, match="not the clients' samples"), \
            own_weights(model, layout, theta.repeat(2, 1), (2, 2), theta.new_empty(2, layout.d)):  # fmt: skip
        model(torch.rand((3, 1, 8, 8), dtype=torch.float64))
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert all("forward" not in vars(m) for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.layer.weight


def hooked() -> nn.Module:
    model = nn.Linear(3, 2)
    model.weight.register_hook(lambda gradient: gradient * 2)
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Loose(), "no layer's weight or bias"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "mixes the clients' samples"),
        (nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), "LayerNorm does not know"),
        (hooked(), "hook"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(model: nn.Module, why: str) -> None:
    layout = layout_of(model)
    theta = flatten_parameters(model, layout)
    with pytest.raises(Unsupported, match=why), \
            own_weights(model, layout, theta.repeat(2, 1), (2, 2), theta.new_empty(2, layout.d)):  # fmt: skip
        model(torch.rand(4, 3)).sum().backward()


def test_a_weight_used_outside_its_layer_is_noticed() -> None:
    """Inside the layer it is every client's own, outside it would be the common one."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    for model in (Tied(), Twice()):
        layout = layout_of(model)
        theta = flatten_parameters(model, layout)
        with pytest.raises(Unsupported), \
                own_weights(model, layout, theta.repeat(2, 1), (2, 2), theta.new_empty(2, layout.d)):  # fmt: skip
            model(torch.rand(4, 3)).sum().backward()


def test_how_many_walk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layout, theta = network("gn")
    widest = max(m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)) * 64
    few = gradients.SIDE_BY_SIDE // widest
    assert at_once(model, layout.d, 64, few, theta) == 2**24 // (8 * layout.d)
    assert at_once(model, layout.d, 64, few + 1, theta) == 1
    assert at_once(model, 2**30, 64, few, theta) == 1
    monkeypatch.setattr(gradients, "free_memory", lambda device: 10**9)
    on_gpu = torch.empty(1, device="meta")
    counts = [at_once(model, layout.d, 64, b, on_gpu) for b in (1, 2, 10**6)]
    assert counts[0] > counts[1] > counts[2] == 1
    assert at_once(model, 10 * layout.d, 64, 1, on_gpu) < counts[0]


def test_groups_are_no_larger_than_pays(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_steps, "at_once", lambda *args: 4)
    agree(algorithm="fedavg(local_steps=2)")
    assert groups == [[0, 1, 2, 3], [4, 5]] * 3
