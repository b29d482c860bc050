"""The bounds of what members of plug-ins may return: the last that passes, and the first that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_doors import (
    DRAW,
    LABELS,
    NAN,
    PIXELS,
    X,
    aggregated,
    algorithm,
    attack,
    built,
    fact,
    forged,
    member,
    mixed,
    norm,
    poisoned,
    registered,
    rule,
    served,
    split,
)
from torch import Tensor, nn

from robustfl.contracts import (
    Aggregated,
    Arrays,
    Dataset,
    Evasion,
    Forged,
    Model,
    NormLayer,
    Objective,
    ServerWork,
    StatisticsPass,
)
from robustfl.doors import reported
from robustfl.errors import RobustflError
from robustfl.norms.layers import ServerBatchNorm

pytestmark = pytest.mark.usefixtures("clean_registry")
GRADED = X[0].clone().requires_grad_(True)
EDGES = torch.tensor([0.0, 1.0, 0.5]).repeat(64).view(3, 1, 8, 8)
IMAGES = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
KNOWN = Arrays(IMAGES, np.array([0, 1, 0, 1]), IMAGES, np.array([0, 1, 0, 1]), 2, "f")


class Averaged(nn.Module):
    """The mean over the batch, which stays a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True)


class Deaf(NormLayer):
    """A layer with running statistics that it does not report."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(1))


def linear(*more: nn.Module, **where: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3, **where), *more)


def perturbed(made: Any) -> Any:
    return lambda: registered(Evasion, perturb=member(lambda: made)).perturb(nn.Identity(), made, LABELS)


def stepped(theta: Tensor) -> Any:
    known = {"server_state": member(dict), "server_step": member(lambda: (theta, {"m": X[0]}))}
    return lambda: algorithm(**known).server_step(ServerWork(X[0], X[0], 0.1, {"m": X[0]}))


def per_sample(made: Tensor, *, graded: bool = False) -> Any:
    logits = torch.zeros(3, 4, requires_grad=graded)
    return lambda: registered(Objective, per_sample=member(lambda: made)).per_sample(logits, LABELS, None)


def loaded(**changes: Any) -> Any:
    arrays = Arrays(**{**vars(KNOWN), **changes})
    return lambda: registered(Dataset, load=member(lambda: arrays), fingerprint=member("f")).load(Path())


def initialised(change: Callable[[nn.Module], Any]) -> Any:
    known = {"build": member(linear), "initialise": lambda self, network, **more: (change(network), None)[1]}
    return lambda: registered(Model, **known).initialise(nn.Linear(2, 2), generator=DRAW)


def passes(**settings: Any) -> Any:
    return lambda: norm(statistics_pass=fact(lambda: StatisticsPass(**settings))).statistics_pass


def state(made: Any) -> Any:
    return lambda: algorithm(server_state=member(lambda: made), server_step=member(None)).server_state(X[0])


WRONG: list[tuple[Any, str]] = [
    (lambda: rule(min_clients=member(-1)).min_clients(1), "a whole number ≥ 0, is wanted"),
    (lambda: rule(min_clients=member(True)).min_clients(1), r"min_clients\(\) returned True; the least number"),
    (lambda: rule(refuses=member(" ")).refuses(5, 1), "the reason as a text, or None"),
    (aggregated(Aggregated(GRADED, {})), "the aggregate .* as a dense tensor"),
    (forged(Forged(GRADED.detach()[None].clone().requires_grad_(True), {})), "the rows .* as a dense tensor"),
    (lambda: attack(target=fact(-1)).target, "target returned -1; the number of a class"),
    (lambda: attack(sees_own=fact(1)).sees_own, "sees_own returned 1; True or False"),
    (lambda: attack(inner=property(lambda self: self)).inner, "the attack that it wraps"),
    (lambda: attack(certificate=member({"a": True})).certificate(5, 1), "names to numbers"),
    (lambda: attack(constrain=member(lambda: X[0].double())).constrain(X[0], X[0]), "a gradient, a tensor"),
    (poisoned(PIXELS, LABELS - 1), "labels lie from 0 to 2"),
    (poisoned(PIXELS, LABELS + 1), "labels lie from 0 to 2"),
    (poisoned(PIXELS + 1, LABELS), "pixels are finite and lie in"),
    (perturbed(EDGES * NAN), "its entries are not finite"),
    (perturbed(EDGES + 0.01), "pixels lie in"),
    (perturbed(EDGES - 0.01), "pixels lie in"),
    (mixed(torch.eye(5, dtype=torch.int64)), "finite coefficients"),
    (lambda: algorithm(local=member(lambda: (GRADED, None))).local(None), "tensors that require no gradient"),
    (lambda: algorithm(local=member(lambda: (X, X))).local(None), "remembers is False, so it would be lost"),
    (lambda: algorithm(server=member(None)).server(X[0], X[0], 0.1), "the new model, a tensor"),
    (state({3: X[0]}), "a dict from names to tensors"),
    (state({"m": X[0].double()}), "a dict from names to tensors"),
    (stepped(GRADED), "the model as a tensor that requires no gradient"),
    (served({"m": X[0], "n": X[0]}), "with m in it, are wanted"),
    (lambda: registered(Objective, backward=member(lambda: X[0])).backward(nn.Identity(), X, LABELS, None), "the mean"),
    (lambda: registered(Objective, plain=fact(1)).plain, "plain returned 1; True or False"),
    (per_sample(torch.zeros(3), graded=True), "through which gradients reach the logits"),
    (per_sample(torch.zeros(3).double()), "one loss per sample"),
    (passes(samples=0), "a StatisticsPass is wanted"),
    (passes(samples=True), "a StatisticsPass is wanted"),
    (passes(tolerance=float("inf")), "a StatisticsPass is wanted"),
    (passes(refreshes="some"), "a StatisticsPass is wanted"),
    (lambda: norm(merge=member(None)).merge(X, X, X[0], (), None), "the server's new statistics"),
    (built(linear(device="meta")), "a network with parameters that can be trained"),
    (built(linear().requires_grad_(False)), "a network with parameters that can be trained"),
    (built(nn.Sequential(nn.BatchNorm2d(1), *linear())), "nobody asks BatchNorm2d"),
    (built(nn.Sequential(Deaf(), *linear())), "nobody asks Deaf"),
    (built(linear(Averaged())), r"of two images it makes a tensor \(1, 3\)"),
    (initialised(lambda network: network.requires_grad_(False)), "and weight has others"),
    (initialised(lambda network: network.bias.data.fill_(NAN)), "and bias has others"),
    (split(lambda: [np.arange(6).reshape(2, 3), np.arange(0)]), "an array .* of whole numbers is wanted for client 0"),
    (split(lambda: [np.arange(0), np.arange(3.0)]), "an array .* of whole numbers is wanted for client 1"),
    (split(lambda: [np.arange(3), np.arange(-1, 0)]), "indices of client 1 reach from -1 to -1"),
    (loaded(classes=1), "is no number of classes ≥ 2"),
    (loaded(test_x=IMAGES[:0], test_y=LABELS.numpy()[:0]), r"test_x is an array \(0, 2, 2, 1\)"),
    (loaded(train_x=IMAGES[..., 0]), r"train_x is an array \(4, 2, 2\)"),
    (loaded(test_x=IMAGES / 255), "test_x is an array .* of float64"),
    (loaded(test_y=np.array([0, 1, 0, 1, 0])), "test_y is an array .*; 4 whole numbers are wanted"),
    (loaded(train_y=np.array([0.0, 1.0, 0.0, 1.0])), "train_y is an array .*; 4 whole numbers are wanted"),
    (loaded(test_y=np.array([0, 1, 0, -1])), "test_y reaches from -1 to 1; labels lie from 0 to 1"),
    (loaded(train_y=np.array([0, 1, 0, 2])), "train_y reaches from 0 to 2; labels lie from 0 to 1"),
    (loaded(test_x=IMAGES.astype(np.float32)), "test_x reaches from 0.0 to 15.0; pixels lie in"),
    (loaded(test_x=IMAGES.reshape(4, 4, 1, 1)), r"train images are \(2, 2, 1\), test images \(4, 1, 1\)"),
    (lambda: registered(Dataset, load=member(None), fingerprint=member("a\nb")).fingerprint(Path()), "a digest of the"),
    (lambda: registered(Dataset, load=member(None), fingerprint=member(" a")).fingerprint(Path()), "a digest of the"),
]  # fmt: skip


def test_the_first_value_beyond_a_bound_is_named() -> None:
    for ask, words in WRONG:
        with pytest.raises(RobustflError, match=words):
            ask()


RIGHT: list[Any] = [
    lambda: rule(min_clients=member(0)).min_clients(0), lambda: rule(refuses=member(None)).refuses(5, 1),
    lambda: rule(refuses=member("odd")).refuses(5, 1), lambda: attack(target=fact(0)).target,
    lambda: attack(certificate=member({"a": 1, "b": 0.5})).certificate(5, 1), poisoned(EDGES, LABELS),
    perturbed(EDGES), perturbed(EDGES[:0]), mixed(torch.eye(5)[:3], rows_after=member(3)),
    served({"m": X[0]}), per_sample(torch.zeros(3)), passes(), passes(samples=1, tolerance=0.0),
    lambda: norm().layer(3), built(linear()), split(lambda: [np.arange(6), np.arange(0)]), loaded(),
    loaded(test_x=IMAGES.astype(np.float32) / 15),
]  # fmt: skip


def test_the_last_value_within_a_bound_passes() -> None:
    for ask in RIGHT:
        ask()


@pytest.mark.parametrize(
    "change",
    [
        lambda mean, variance, counts: (mean[0], variance[0], counts[:1]),
        lambda mean, variance, counts: (mean[:, :, None], variance[:, :, None], counts),
        lambda mean, variance, counts: (mean.double(), variance.double(), counts),
        lambda mean, variance, counts: (mean, variance, torch.cat([counts, counts])),
        lambda mean, variance, counts: (mean, variance, counts - 1),
        lambda mean, variance, counts: (mean, variance.clone().requires_grad_(True), counts),
        lambda mean, variance, counts: (mean, variance),
    ],
    ids=["one row", "three axes", "float64", "more counts", "negative counts", "with a gradient", "no counts"],
)
def test_a_report_has_the_form_that_all_have(change: Any) -> None:
    class Other(ServerBatchNorm):
        def report(self) -> Any:
            return change(*super().report())

    with pytest.raises(RobustflError, match=r"Other.report\(\) returned"):
        reported(Other(4, eps=1e-5))
