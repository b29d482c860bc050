"""What somebody who writes a first plug-in gets wrong is refused or told, and never silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from robustfl import defense, run
from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.layer_kinds import TABLE, LayerKind, layer_kind
from robustfl.registry import create, load_file, register
from robustfl.testing import Check, check

pytestmark = pytest.mark.usefixtures("clean_registry")

HEAD = """
from dataclasses import dataclass
import torch
from torch import nn
from robustfl.contracts import *
from robustfl.norms.layers import OwnBatchNorm
from robustfl.registry import register
"""
STATEFUL = """
@register("slip", version=1)
@dataclass(frozen=True)
class Slip(Algorithm):
    def steps(self, samples, batch): return 1
    def local(self, work): return work.gradient(work.theta), None
    def server(self, theta, aggregate, lr): return theta - lr * aggregate
    def server_state(self, theta): return {"m": theta}
    def %s(self, work): return work.theta, {"m": work.aggregate}
"""
NORM = """
class Layer(OwnBatchNorm):
    def report(self):
        mean, variance, counts = super().report()
        return %s

@register("slip", version=1)
@dataclass(frozen=True)
class Slip(Norm):
    def layer(self, channels): return Layer(channels, momentum=1.0, eps=1e-5)
    def merge(self, messages, counts, previous, layers, defense): return %s
"""
EVASION = """
@register("slip", version=1)
@dataclass(frozen=True)
class Slip(Evasion):
    def perturb(self, model, x, y, *, generator=None):
        own = torch.Generator()
        draws = %s
        step = 0.1 * torch.rand(x.shape, generator=draws, dtype=x.dtype).sub(0.5)
        return (x + step).clamp(0, 1)
"""
RULE = """
@register("slip", version=1)
@dataclass(frozen=True)
class Slip(Aggregator):
    def aggregate(self, X, *, f, context): return X.mean(0) + context.state.get("v", 0.0)
    def min_clients(self, f): return 2 * f + 1
"""
MODEL = """
class Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(%s)
    def forward(self, x): return x * self.weight

@register("slip", version=1)
@dataclass(frozen=True)
class Slip(Model):
    def build(self, norm, *, shape, classes):
        pixels = shape[0] * shape[1] * shape[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), norm.layer(8), Scale(8), nn.Linear(8, classes))
"""
KIND = """
from robustfl.layer_kinds import LayerKind, layer_kind
@layer_kind(Scale)
class Kind(LayerKind):
    def forward(self, layer, x, weights): return x * weights["weight"] * %s
"""


def loaded(tmp_path: Path, text: str) -> type[Any]:
    file = tmp_path / "slip.py"
    file.write_text(HEAD + text, encoding="utf-8")
    (entry,) = load_file(file)
    return entry.cls


def checked(cls: type[Any], law: str) -> Check:
    (found,) = (c for c in check(cls) if c.name == law)
    return found


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("server_setp", "'server_setp' is no part of its contract; did you mean 'server_step'"),
        ("_later", "it has a server_state and no server_step"),
    ],
)
def test_a_server_whose_state_nobody_would_use_is_refused(step: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        loaded(tmp_path, STATEFUL % step)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("work.gradient(work.theta), None", "work.gradient(work.theta).mean(0), None", "returned a tensor (650,)"),
        ("work.gradient(work.theta), None", "work.gradient(work.theta)", "returned Tensor, not a pair (messages"),
        ('work.theta, {"m": work.aggregate}', "work.theta", "returned Tensor, not a pair (the model"),
        ('work.theta, {"m": work.aggregate}', "work.theta.mean(), {}", "server_step() returned a tensor ()"),
    ],
)
def test_what_torch_would_stretch_to_fit_is_no_message_and_no_model(right, wrong, words, tmp_path):
    assert STATEFUL.count(right) == 1
    loaded(tmp_path, (STATEFUL % "server_step").replace(right, wrong))
    record = run({"algorithm": "slip", "model": "mlp(hidden=())", "norm": "none", "rounds": 1, "evasions": []})
    assert record.status == "failed"
    assert "algorithm 'slip' (slip.py" in str(record.reason)
    assert words in str(record.reason)


def test_knowledge_that_is_none_is_refused() -> None:
    base = type(create("attack", "sf"))
    cls = type("Slip", (base,), {"knowledge": "omnisicent", "__module__": __name__})
    with pytest.raises(UsageError, match="omnisicent'; did you mean 'omniscient'"):
        register("slip")(cls)
    assert issubclass(cls, Attack)


@pytest.mark.parametrize(("report", "fact"), [
    ("mean, variance, counts", False), ("mean, variance + mean.square(), counts", True),
])  # fmt: skip
def test_a_second_moment_in_the_place_of_a_variance_is_told(report: str, fact: bool, tmp_path: Path) -> None:
    cls = loaded(tmp_path, NORM % (report, "defense.mixed(messages)(messages)"))
    assert ("not for E[x²]" in checked(cls, "report").reason) == fact
    assert checked(cls, "merge").reason == ""


def test_a_merge_that_does_not_ask_the_rule_is_told(tmp_path: Path) -> None:
    cls = loaded(tmp_path, NORM % ("mean, variance, counts", "messages.mean(0)"))
    assert "never asks defense.mixed" in checked(cls, "merge").reason


def test_a_state_that_is_never_handed_back_is_told(tmp_path: Path) -> None:
    assert "the state 'v'" in checked(loaded(tmp_path, RULE), "state").reason


@pytest.mark.parametrize(("kind", "words"), [("", "one after another"), (KIND % "1", "all clients in one pass")])
def test_a_model_is_told_how_its_clients_run(kind: str, words: str, tmp_path: Path) -> None:
    assert words in checked(loaded(tmp_path, MODEL % "torch.ones(channels)" + kind), "clients in one pass").reason


def test_a_layer_kind_that_computes_something_else_breaks_the_law(tmp_path: Path) -> None:
    cls = loaded(tmp_path, MODEL % "torch.ones(channels)" + KIND % "1.01")
    found = checked(cls, "clients in one pass")
    assert not found.passed
    assert "its row in the table of layer kinds does not compute" in found.reason


def test_what_a_constructor_draws_depends_on_the_seed_alone(tmp_path: Path) -> None:
    from robustfl.scenarios import Cell
    from robustfl.scenarios.build import _network

    loaded(tmp_path, MODEL % "torch.randn(channels)")

    def drawn(seed: int) -> torch.Tensor:
        cell = Cell(model="slip", norm="gn(groups=1)", seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.seed()
            network = _network(cell, create("model", "slip"), create("norm", cell.norm), (1, 8, 8), 10)
        return network[3].weight.detach()  # type: ignore[index, union-attr, no-any-return]

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("what", ["PReLU", nn.PReLU(), LayerKind])
def test_a_layer_kind_is_for_types_of_layers(what: Any) -> None:
    with pytest.raises(UsageError, match="takes types of layers"):
        layer_kind(what)
    with pytest.raises(UsageError, match="must derive from LayerKind"):
        layer_kind(nn.PReLU)(nn.Module)  # type: ignore[type-var]
    assert nn.PReLU not in TABLE


def test_dictionaries_and_iterators_are_told_what_to_become() -> None:
    model = nn.Linear(2, 2)
    for rows in ([dict(model.state_dict())] * 3, [model.parameters() for _ in range(3)]):
        with pytest.raises(UsageError, match=r"list\(x.values\(\)\)"):
            defense("median")(rows, f=1)


@pytest.mark.parametrize("setting", [
    {"evasions": ["slip"]}, {"evasions": ["fgsm", "worst(of=fgsm+slip)"]},
    {"evasions": ["fgsm"], "train_evasion": "slip", "at": "users(ids=(0,))", "objective": "at"},
])  # fmt: skip
def test_an_evasion_draws_from_what_it_is_given(setting: dict[str, Any], tmp_path: Path) -> None:
    loaded(tmp_path, EVASION % "generator")
    cell = {"dataset": "digits", "model": "mlp", "norm": "none", "clients": 3, "rounds": 1, "ra_limit": 20}
    assert run({**cell, **setting}).status == "done"


def test_a_file_beside_a_plug_in_is_not_imported_and_the_error_says_why(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"it imports beside \(.*beside.py\), whose code .* put it into slip.py, or make"
    ):
        loaded(tmp_path, "from beside import x\n")
