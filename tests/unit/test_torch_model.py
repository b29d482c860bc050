"""A plain ``nn.Module`` as a model: what it receives, its norm layers, its first weights, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import robustfl
from robustfl import registry
from robustfl.contracts.torch_model import torch_model
from robustfl.errors import Refused, UsageError
from robustfl.layer_kinds import kind_of
from robustfl.models import Vit
from robustfl.randomness import stream
from robustfl.registry import create, entries, register
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build
from robustfl.testing import check


class PlainNet(nn.Module):
    """A convolution with batch norm, and a linear layer; weights of its own choice."""

    def __init__(self, in_channels, num_classes, width=4, *, pool=None):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.norm = nn.BatchNorm1d(4 * width)
        self.head = nn.Linear(4 * width, num_classes)
        self.pool = nn.AdaptiveAvgPool2d(pool or 2)
        nn.init.normal_(self.head.weight, 3.0, 0.1)

    def forward(self, x):
        return self.head(self.norm(self.pool(self.body(x)).flatten(1)))


def plain_mlp(shape, classes, norm_layer, hidden=5):
    c, h, w = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(c * h * w, hidden), norm_layer(hidden), nn.Linear(hidden, classes))


@pytest.fixture(autouse=True)
def _registered(monkeypatch) -> Iterator[None]:
    monkeypatch.setitem(registry._entries, "model", dict(registry._entries["model"]))
    for name, made in (("plain-net", PlainNet), ("plain-mlp", plain_mlp)):
        assert register(name)(made) is made
    yield
    registry._changed()


def test_a_class_and_a_function_receive_what_the_data_say():
    network = create("model", "plain-net(width=6)").build(robustfl.norm("gn"), shape=(2, 9, 9), classes=7)
    assert (network.body[0].in_channels, network.body[0].out_channels, network.head.out_features) == (2, 6, 7)
    assert network(torch.zeros(3, 2, 9, 9)).shape == (3, 7)
    made = create("model", "plain-mlp").build(robustfl.norm("none"), shape=(1, 4, 4), classes=3)
    assert [type(layer) for layer in made] == [nn.Flatten, nn.Linear, nn.Identity, nn.Linear]


@pytest.mark.parametrize("name", ["naive-bn", "gn", "fbn", "none"])
def test_batch_norm_becomes_the_layer_of_the_scheme(name):
    norm = robustfl.norm(name)
    network = create("model", "plain-net").build(norm, shape=(1, 8, 8), classes=3)
    assert {type(network.norm), type(network.body[1])} == {type(norm.layer(4))}
    assert not network.body[2].inplace


def test_first_weights_are_those_of_the_constructor_drawn_from_the_stream():
    model = create("model", "plain-net")
    network = model.build(robustfl.norm("naive-bn"), shape=(1, 8, 8), classes=3)
    found = []
    for seed in (0, 0, 1):
        model.initialise(network, stream(seed, "init"))
        found.append(copy.deepcopy(network.state_dict()))
        assert abs(float(network.head.weight.detach().mean()) - 3) < 0.2
    assert all(torch.equal(a, b) for a, b in zip(found[0].values(), found[1].values(), strict=True))
    assert not torch.equal(found[0]["head.weight"], found[2]["head.weight"])


def test_it_fits_every_law_and_norm():
    assert [c for c in check(create("model", "plain-net")) if not c.passed] == []
    for norm in ("naive-bn", "gn", "fedfn", "fedbn", "hbn"):
        cell = {"model": "plain-net", "norm": norm, "rounds": 1, "clients": 3, "evasions": [], "batch": 8}
        assert robustfl.run({**cell, "dataset": "digits(limit=60)"}).status == "done"


def test_it_pickles_and_its_parameters_are_in_the_key():
    model = create("model", "plain-net(width=6, pool=2)")
    assert pickle.loads(pickle.dumps(model)) == model
    known = registry.identity(model)
    assert known["params"] == {"width": 6, "pool": 2}
    assert known["origin"]
    assert [e.cls.__doc__ for e in entries("model") if e.name == "plain-net"] == [PlainNet.__doc__]


def test_the_vectors_that_a_linear_layer_serves_count_in_the_memory_of_a_pass():
    made = Vit(patch=2, width=8, heads=2, depth=1).build(robustfl.norm("none"), shape=(1, 8, 8), classes=3)
    register("tokens")(lambda num_classes: nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), Mean(), nn.Linear(5, 3)))
    plain = create("model", "tokens").build(robustfl.norm("none"), shape=(4, 8, 8), classes=3)
    widths = [[kind_of(m).width(m, 64) for m in net.modules() if isinstance(m, nn.Linear)] for net in (made, plain)]
    assert widths == [[16 * 24, 16 * 8, 16 * 32, 16 * 8, 3], [4 * 5, 3]]


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def fixed(width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (fixed, r"returns \(2, 3\) for 2 images \(1, 8, 8\); logits \(2, 10\) are expected; a parameter num_classes"),
        (lambda classes: nn.Linear(9, classes), r"does not take images of the shape \(1, 8, 8\): RuntimeError"),
        (lambda: 3, r"returned a int, not a torch\.nn\.Module"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused(made, message):
    register("misfit")(made)
    with pytest.raises((Refused, UsageError), match=message):
        build(Cell.of({"model": "misfit", "norm": "none"}))


def test_a_network_without_norm_layers_is_refused_with_the_remedy():
    register("misfit")(lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)))
    with pytest.raises(Refused, match=r"misfit has no normalization layers for naive-bn .*; use norm=none"):
        build(Cell.of({"model": "misfit"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda depth: None,
            r"as a model, its parameter 'depth' needs a default; .*classes: num_classes, n_classes, classes",
        ),
        (lambda act=nn.ReLU: None, r"the default of 'act' is a type; parameters are numbers, texts"),
        (lambda build=1: None, r"'build' is a fact of every model"),
    ],
)
def test_parameters_that_nobody_can_give_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        torch_model(make)
