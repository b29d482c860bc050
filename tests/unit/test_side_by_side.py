"""Clients that take their local steps side by side: the same numbers as one after another, and who may."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robustfl import gradients
from robustfl.contracts import Tag
from robustfl.engine import clients, local_training, train
from robustfl.gradients import Plan, Unsupported, at_once, batched, channels_last, client_means
from robustfl.layer_kinds import TABLE, LayerKind, Rows, layer_kind
from robustfl.layout import Layout, flatten_parameters, layout_of
from robustfl.norms.layers import OwnBatchNorm
from robustfl.randomness import stream
from robustfl.registry import create, entries
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.refusals import refusal
from tests.passes import plain_gradients, shared_gradients

BASE = {"dataset": "digits(limit=300, test_limit=40)", "model": "digits-cnn", "norm": "fbn", "clients": 6, "rounds": 3,
        "batch": 8, "dtype": "float64", "evasions": [], "algorithm": "fedavg"}  # fmt: skip
Groups = list[list[int]]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """The places of all groups that walk side by side."""
    seen: Groups = []
    original = local_training._walk_group

    def noted(clients: Any, ids: Any, places: list[int], *rest: Any, **more: Any) -> bool:
        kept = original(clients, ids, places, *rest, **more)
        if len(places) > 1:
            seen.append(places)
        return kept

    monkeypatch.setattr(local_training, "_walk_group", noted)
    return seen


def end(**settings: object) -> tuple[Tensor, Tensor, float]:
    """Parameters, statistics and loss of the last round."""
    torch.set_num_threads(1)
    record = list(train(build(Cell.of({**BASE, **settings})).experiment))[-1]
    return record.state.theta.clone(), record.state.statistics.clone(), record.loss


def agree(**settings: object) -> None:
    for fast, slow in zip(end(**settings), end(**settings, engine="reference"), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-7, atol=1e-8)


def walks(norm: str) -> bool:
    """Whether clients with this norm walk side by side on the digits network."""
    apart = {"fedtan", "fedtan-ii", "fedavg-alg2"}
    return norm not in apart and not create("norm", norm).private & {Tag.MEAN, Tag.VARIANCE}


STEPPING = "fedavg(local_steps=3)"
NORMS = [e.name for e in entries("norm") if refusal(Cell.of({"norm": e.name, "algorithm": STEPPING})) is None]


@pytest.mark.parametrize("norm", NORMS)
def test_norms_keep_clients_apart_by_themselves_or_walk_alone(norm: str, groups: Groups) -> None:
    end(norm=norm, algorithm=STEPPING, model="simple-cnn" if norm == "in" else "digits-cnn", rounds=1)
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
def test_settings_make_no_difference_to_walking_side_by_side(more, groups, monkeypatch):
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


@pytest.mark.parametrize("more", [{"objective": "at", "at": "all"}, {"norm": "fedbn"}, {"engine": "reference"}])
def test_who_must_walk_alone_does(more: dict[str, Any], groups: Groups) -> None:
    end(**more, rounds=1)
    assert groups == []


def test_a_layer_that_is_not_in_the_table_itself_keeps_clients_alone(groups, monkeypatch):
    class Squared(OwnBatchNorm):
        def forward(self, x: Tensor) -> Tensor:
            squared: Tensor = super().forward(x) * self.weight
            return squared

    norm = type(create("norm", "naive-bn"))
    monkeypatch.setattr(norm, "layer", lambda self, channels: Squared(channels, momentum=0.1, eps=1e-5))
    agree(model="mlp(hidden=(8,))", norm="naive-bn", algorithm="fedavg(local_steps=2)")
    assert groups == []


def test_who_walks_alone_for_want_of_a_layer_kind_is_told_so_once() -> None:
    said: list[str] = []
    list(train(build(Cell.of({**BASE, "norm": "fedwon(clip=0.01)", "rounds": 2})).experiment, warn=said.append))
    assert said == ["clients run one after another (1.0: a hook on its gradients sees one model at a time)"]


@pytest.mark.parametrize("algorithm", ["dsgd(momentum=0.9)", "fedavg(local_steps=2)"])
@pytest.mark.parametrize("sizes", ["iid", "dirichlet(alpha=1)"])
@pytest.mark.parametrize("most", [1, 4])
def test_groups_of_any_size_come_to_the_same(algorithm, sizes, most, groups, monkeypatch):
    monkeypatch.setattr(clients, "at_once", lambda *args, **more: most)
    agree(algorithm=algorithm, partition=sizes, f=1, attack="foe", defense="median")
    assert max((len(places) for places in groups), default=1) <= most


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
    rows = []
    for compute in (plain_gradients, shared_gradients):
        found, kept = torch.full_like(thetas, torch.nan), theta.clone()
        rows.append((found, compute(model, layout, x, y, sizes, thetas=thetas, out=found)))
        assert torch.equal(theta, kept)
    (slow, first), (fast, second) = rows
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(second.losses, first.losses)
    torch.testing.assert_close(second.reports.rows, first.reports.rows)
    assert torch.equal(second.reports.counts, first.reports.counts)


@pytest.mark.parametrize("alike", [False, True], ids=["own models", "one model"])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 5)])
def test_convolutions_keep_their_groups_strides_and_dilation(sizes: tuple[int, ...], alike: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), nn.Conv2d(6, 6, 1, groups=6)
    ).double()
    layout = layout_of(model)
    theta = flatten_parameters(model, layout)
    thetas = torch.rand((1 if alike else 2, layout.d), dtype=torch.float64).expand(2, -1)
    x, found = torch.rand((8, 4, 7, 6), dtype=torch.float64), torch.empty((2, layout.d), dtype=torch.float64)
    made: list[Tensor] = []

    def losses() -> Tensor:
        made.append(model(x))
        return torch.stack([part.square().sum() for part in made[0].split(list(sizes))])

    batched(Plan(model, layout), thetas, sizes, losses, out=found)
    y = made[0]
    for k, (inputs, out) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        theta.copy_(thetas[k])
        expected = model(inputs)
        torch.testing.assert_close(out.detach(), expected.detach())
        row = torch.cat([g.flatten() for g in torch.autograd.grad(expected.square().sum(), list(model.parameters()))])
        torch.testing.assert_close(found[k], row)


def tried(model: nn.Module, layout: Layout, theta: Tensor, x: Tensor) -> None:
    """A pass of two clients with models of their own and two samples each."""
    thetas = theta.repeat(2, 1)
    plan, found = Plan(model, layout), torch.empty_like(thetas)
    batched(plan, thetas, (2, 2), lambda: client_means(model(x).sum(1), (2, 2)), out=found)


def test_layers_are_as_before_afterwards_also_after_an_error() -> None:
    model, layout, theta = network("fbn")
    before = {name: id(p) for name, p in model.named_parameters()}
    with pytest.raises(Unsupported, match="not the clients' samples"):
        tried(model, layout, theta, torch.rand((3, 1, 8, 8), dtype=torch.float64))
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert all("forward" not in vars(m) for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.layer.weight


def test_a_weight_used_outside_its_layer_is_noticed() -> None:
    """Inside the layer it is every client's own, outside it would be the common one."""
    model = Tied()
    layout = layout_of(model)
    with pytest.raises(Unsupported, match="outside its own layer"):
        tried(model, layout, flatten_parameters(model, layout), torch.rand(4, 3))


def test_a_weight_that_two_layers_share_is_every_clients_own_in_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.second(self.first(x)))

    model = Twice().double()
    compared(model, torch.rand((5, 3), dtype=torch.float64), (2, 3))


def compared(model: nn.Module, x: Tensor, sizes: tuple[int, ...]) -> None:
    """Both passes agree, at one model and at one for each client."""
    layout = layout_of(model)
    theta, draw = flatten_parameters(model, layout), torch.Generator().manual_seed(1)
    moved = theta + 0.1 * torch.randn((len(sizes), layout.d), generator=draw, dtype=theta.dtype)
    y = torch.arange(len(x)) % 2
    for thetas in (theta.expand(len(sizes), -1), moved):
        rows = [torch.empty((len(sizes), layout.d), dtype=theta.dtype) for _ in range(2)]
        for out, compute in zip(rows, (plain_gradients, shared_gradients), strict=True):
            compute(model, layout, x, y, sizes, thetas=thetas, out=out)
        torch.testing.assert_close(rows[1], rows[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [(3, 3), (2, 4)])
@pytest.mark.parametrize("norm", ["fedwon", "fedwon(gain=true)"])
def test_standardised_convolutions_run_together(norm: str, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    scheme = create("norm", norm)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    scheme.adapt(model)
    compared(model.double(), torch.rand((6, 2, 4, 4), dtype=torch.float64), sizes)


class Words(nn.Module):
    """A small transformer: tokens, one attention head, layer normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.first, self.last = (
            nn.Embedding(7, 4),
            nn.LayerNorm(4, eps=0.1),
            nn.LayerNorm([5, 4], bias=False),
        )
        self.asked, self.found, self.told = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.tokens(x))
        shares = torch.softmax(self.asked(x) @ self.found(x).transpose(1, 2), dim=2)
        return torch.as_tensor(self.out(self.last(x + shares @ self.told(x)).mean(1)))


@pytest.mark.parametrize("sizes", [(3, 3), (2, 4), (6,)])
def test_a_transformer_runs_together_by_rows_of_the_table(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    compared(Words().double(), torch.randint(7, (6, 5)), sizes)


@pytest.mark.parametrize("sizes", [(3, 3), (2, 4)])
@pytest.mark.parametrize(
    "layers",
    [
        (nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(20, 2)),
        (nn.Embedding(7, 4), nn.LayerNorm([5, 4], elementwise_affine=False), nn.Flatten(), nn.Linear(20, 2)),
        (nn.Embedding(7, 4), nn.LayerNorm(4), nn.Flatten(2), nn.Linear(4, 2), nn.Flatten(1, -1), nn.Linear(10, 2)),
        (
            nn.Embedding(7, 4),
            nn.Unflatten(2, (2, 2)),
            nn.Flatten(1, 2),
            nn.Linear(2, 2),
            nn.Flatten(),
            nn.Linear(20, 2),
        ),
    ],
    ids=["padding_idx", "no affine", "flat already", "flatten some"],
)
def test_settings_of_layers_are_kept_where_clients_run_together(layers, sizes):
    torch.manual_seed(0)
    compared(copy.deepcopy(nn.Sequential(*layers)).double(), torch.arange(30).remainder(7).view(6, 5), sizes)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Conv2d(2, 2, 3, padding="same"),
        nn.Embedding(7, 4, max_norm=1.0), nn.Embedding(7, 4, scale_grad_by_freq=True),
        nn.Embedding(7, 4, sparse=True),
    ],
    ids=["reflect", "same", "max_norm", "scale_grad_by_freq", "sparse"],
)  # fmt: skip
def test_a_layer_with_settings_that_its_row_does_not_know_is_not_in_the_table(layer: nn.Module) -> None:
    model = nn.Sequential(copy.deepcopy(layer))
    with pytest.raises(Unsupported, match="is not in the table of layer kinds"):
        Plan(model, layout_of(model))


def test_a_model_that_makes_more_samples_of_its_own_is_refused() -> None:
    """Its layers would take the samples that were added for those of the next client."""

    class Mirrored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.inner(torch.cat([x, x.flip(1)]))).view(2, len(x), -1).mean(0)

    model = Mirrored()
    layout = layout_of(model)
    with pytest.raises(Unsupported, match="not the clients' samples"):
        tried(model, layout, flatten_parameters(model, layout), torch.rand(4, 3))


def test_a_new_layer_kind_is_one_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slopes(LayerKind):
        def forward(self, layer: nn.PReLU, x: Tensor, weights: Rows) -> Tensor:
            return nn.functional.prelu(x, weights["weight"])

    monkeypatch.setitem(TABLE, nn.PReLU, Slopes())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2), nn.PReLU()).double()
    compared(model, torch.randn((5, 3), dtype=torch.float64), (2, 3))


def test_a_type_has_one_layer_kind() -> None:
    with pytest.raises(ValueError, match="Linear has a layer kind already"):
        layer_kind(nn.Linear)(type(TABLE[nn.Linear]))


def test_the_gradient_of_flattened_images_has_their_channels_innermost() -> None:
    x = channels_last(torch.rand(4, 3, 5, 5)).requires_grad_()
    flat, weights = nn.Flatten(), torch.rand(4, 75)
    (found,) = torch.autograd.grad((TABLE[nn.Flatten].shared(flat, x, {}, (2, 2)) * weights).sum(), x)
    assert torch.equal(found, weights.view(4, 3, 5, 5))
    assert found.stride() == x.stride()


def test_a_model_without_a_wide_layer_is_bounded_as_one_of_width_one() -> None:
    model, like = nn.LayerNorm(4), torch.empty(1, dtype=torch.float64)
    assert at_once(model, 8, 64, 2, like, alike=True) == gradients.LARGEST_ACTIVATION // (2 * 8)
    assert at_once(model, 8, 64, 2, like, alike=False) == gradients.LARGEST_WEIGHTS // (8 * 8)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv2d(2, 3, 2), (4, 2, 3, 3)), (nn.Linear(3, 2), (4, 3))], ids=["convolution", "linear"]
)
def test_a_second_derivative_of_layers_with_one_model_is_an_error_and_not_a_wrong_number(layer, shape):
    kind, x = TABLE[type(layer)], torch.ones(shape, requires_grad=True)
    rows = {name: p.detach().expand(2, *p.shape).requires_grad_() for name, p in layer.named_parameters()}
    loss = kind.shared(layer, x, rows, (2, 2)).square().sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()  # type: ignore[no-untyped-call]


def test_how_many_walk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layout, theta = network("gn")
    widest = max(m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)) * 64
    few = gradients.SIDE_BY_SIDE // widest

    def many(d: int, batch: int, like: Tensor = theta, *, alike: bool = False) -> int:
        return at_once(model, d, 64, batch, like, alike=alike)

    assert many(layout.d, few) == 2**24 // (8 * layout.d)
    assert many(layout.d, few + 1) == 1
    assert many(2**30, few) == 1
    assert many(2**30, 1, alike=True) == 2**25 // (8 * widest)
    monkeypatch.setattr(gradients, "free_memory", lambda device: 10**9)
    on_gpu = torch.empty(1, device="meta")
    counts = [many(layout.d, b, on_gpu) for b in (1, 2, 10**6)]
    assert counts[0] > counts[1] > counts[2] == 1
    assert many(10 * layout.d, 1, on_gpu) < counts[0] < many(layout.d, 1, on_gpu, alike=True)
