"""Networks from elsewhere in cells: clients that their layers mix, and what layers keep to themselves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl.contracts import Model, Norm, NormLayer, Tag
from robustfl.engine.one_pass import Mixed, in_one_pass
from robustfl.errors import UsageError
from robustfl.gradients import Plan, Unsupported
from robustfl.layer_kinds import LayerKind, Rows, Sizes, layer_kind, per_sample
from robustfl.layout import Layout
from robustfl.models.network import Network
from robustfl.norms.layers import OwnBatchNorm
from robustfl.records import CellResult
from robustfl.registry import create, register
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build
from robustfl.testing import check_model, check_norm

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=50)", "clients": 4, "rounds": 2, "batch": 8, "evasions": [],
    "partition": "dirichlet(alpha=1)", "algorithm": "fedavg(local_steps=2)", "norm": "none", "dtype": "float64",
}  # fmt: skip
"""No client has as many images as another."""
ALONE = "clients run one after another (clients in one pass have other"


class Centred(nn.Module):
    """Mixes clients: takes the mean over whoever is in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True) if self.training else x


class Scale(nn.Module):
    """In training it halves, which ``ScaleKind`` does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * (0.5 if self.training else 1.0)


class Longest(nn.Module):
    """Remembers in a buffer, for evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("longest", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.longest.copy_(torch.maximum(self.longest, x.detach().abs().max()))
            return x
        return x / self.longest


class Counting(nn.Module):
    """Remembers in an attribute."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls / 100)


class Noisy(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._own = random.Random()

    def forward(self, x: Tensor) -> Tensor:
        return x * self._own.random()


class Unset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float("nan")))

    def forward(self, x: Tensor) -> Tensor:
        return x


class ScaleKind(LayerKind):
    """The row of ``Scale``: right in evaluation."""

    def forward(self, layer: nn.Module, x: Tensor, rows: Rows) -> Tensor:
        return x * rows["weight"]

    def own(self, layer: nn.Module, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        return x * per_sample(rows["weight"], sizes)[:, None]


@pytest.fixture(autouse=True)
def kinds(clean_registry: None) -> None:
    layer_kind(Scale)(ScaleKind)


@dataclass(frozen=True)
class With(Model):
    """A hidden layer, and one of the above behind it."""

    layer: ClassVar[type[nn.Module]] = nn.Identity

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        features = shape[0] * shape[1] * shape[2]
        return Network(nn.Flatten(), nn.Linear(features, 8), self.layer(), nn.ReLU(), nn.Linear(8, classes))


def model_with(layer: type[nn.Module]) -> Model:
    cls = type("WithOne", (With,), {"layer": layer, "__module__": __name__, "__qualname__": "WithOne"})
    return register("with-one")(dataclass(frozen=True)(cls))()


def ran(layer: type[nn.Module], **more: Any) -> CellResult:
    model_with(layer)
    return robustfl.run({**SMALL, "model": "with-one", **more})


class TwoLayers(nn.Module):
    """Two layers that hold its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def test_a_row_is_for_a_layer_that_holds_its_parameters_itself() -> None:
    cell = {**SMALL, "model": "with-one"}
    model_with(TwoLayers)
    inside = Plan(*_built(cell))
    assert len(inside.layers) >= 4  # its layers have rows of their own
    layer_kind(TwoLayers)(ScaleKind)
    with pytest.raises(Unsupported, match="TwoLayers has a row in the table of layer kinds and layers within"):
        Plan(*_built(cell))


def _built(cell: dict[str, Any]) -> tuple[nn.Module, Layout]:
    experiment = build(Cell.of(cell)).experiment
    return experiment.model, experiment.layout


@pytest.mark.parametrize("layer", [Centred, Scale])
def test_clients_whom_a_pass_would_mix_run_one_after_another(layer: type[nn.Module]) -> None:
    model_with(layer)
    heard: list[str] = []
    cells = ({**SMALL, "model": "with-one", "engine": way} for way in ("fast", "reference"))
    fast, plain = (robustfl.run(cell, on_note=heard.append) for cell in cells)
    assert any(words.removeprefix("warning: ").startswith(ALONE) for words in heard)
    assert any(words.startswith(ALONE) for words in fast.certificates["warnings"])
    assert fast.metrics.loss == pytest.approx(plain.metrics.loss, rel=1e-12)


def test_sound_layers_from_elsewhere_compute_together() -> None:
    assert not ran(nn.Identity).certificates["warnings"]


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Longest, "buffer 1.2.longest changes in training"),
        (Counting, "a layer remembers between clients, or draws from a generator of its own"),
        (Noisy, "a layer remembers between clients, or draws from a generator of its own"),
        (Unset, "parameter 1.2.weight of model 'with-one' is not finite before training"),
    ],
)
def test_what_a_layer_keeps_to_itself_ends_its_cell(layer: type[nn.Module], words: str, engine: str) -> None:
    found = ran(layer, engine=engine)
    assert found.status == "failed"
    assert words in str(found.reason)


def test_steps_in_lock_step_are_refused_where_clients_would_be_mixed() -> None:
    @register("mixing-norm")
    @dataclass(frozen=True)
    class Mixing(type(create("norm", "fedtan"))):  # type: ignore[misc]
        def adapt(self, network: nn.Module) -> None:
            network.append(Centred())

    found = robustfl.run({**SMALL, "model": "mlp", "norm": "mixing-norm", "algorithm": "fedavg"})
    assert found.status == "refused"
    assert "lock-step, which this model does not allow: clients in one pass" in str(found.reason)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Centred, "clients in one pass have other"),
        (Scale, "clients in one pass have other"),
        (Longest, "buffer 2.longest changes"),
    ],
)
def test_the_law_of_one_pass_sees_it_too(layer: type[nn.Module], words: str) -> None:
    (law,) = [check for check in check_model(model_with(layer)) if check.name == "clients in one pass"]
    assert words in law.reason


def test_one_machine_mixes_clients() -> None:
    network = create("model", "digits-cnn").build(create("norm", "centralised-bn"), shape=(1, 8, 8), classes=10)
    with pytest.raises(Mixed, match="clients in one pass have other losses"):
        in_one_pass(network, torch.rand(5, 1, 8, 8), 10)


def test_the_weights_of_a_norms_layer_kind_are_tried_apart() -> None:
    class Layer(nn.GroupNorm, NormLayer):
        def __init__(self, channels: int) -> None:
            super().__init__(1, channels)

    @layer_kind(Layer)
    class Mean(LayerKind):
        def forward(self, layer: nn.Module, x: Tensor, rows: Rows) -> Tensor:
            return torch.group_norm(x, 1, rows["weight"], rows["bias"])

        def own(self, layer: nn.Module, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
            return torch.group_norm(x, 1, rows["weight"].mean(0), rows["bias"].mean(0))

    @register("mean-of-clients")
    @dataclass(frozen=True)
    class MeanOfClients(Norm):
        def layer(self, channels: int) -> nn.Module:
            return Layer(channels)

    (law,) = [check for check in check_norm("mean-of-clients") if check.name == "clients in one pass"]
    assert "clients in one pass have other" in law.reason


# --- facts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [["affine"], frozenset({"mean"})])
def test_facts_of_a_class_are_looked_at_where_it_is_registered(value: object) -> None:
    @dataclass(frozen=True)
    class Told(Norm):
        private: ClassVar[Any] = value

        def layer(self, channels: int) -> nn.Module:
            return nn.Identity()

    with pytest.raises(UsageError, match=r"Told: private must be a set of robustfl"):
        register("told")(Told)
    Told.private = frozenset({Tag.AFFINE})
    assert create("norm", register("told")(Told)().name).private == {Tag.AFFINE}


def test_statistics_that_nobody_merges_are_an_error() -> None:
    @register("unmerged")
    @dataclass(frozen=True)
    class Unmerged(Norm):
        def layer(self, channels: int) -> nn.Module:
            return OwnBatchNorm(channels, momentum=0.1, eps=1e-5)

    found = robustfl.run({**SMALL, "model": "mlp", "norm": "unmerged"})
    assert found.status == "failed"
    assert "nobody merges what its layers report" in str(found.reason)

    @register("kept")
    @dataclass(frozen=True)
    class Kept(Unmerged):
        private: ClassVar[frozenset[Tag]] = frozenset({Tag.MEAN, Tag.VARIANCE})

    assert robustfl.run({**SMALL, "model": "mlp", "norm": "kept"}).status == "done"


def test_counts_of_values_are_whole() -> None:
    class Half(OwnBatchNorm):
        def report(self) -> tuple[Tensor, Tensor, Tensor]:
            mean, variance, counts = super().report()
            return mean, variance, counts / 16

    @register("half")
    @dataclass(frozen=True)
    class Halved(type(create("norm", "naive-bn"))):  # type: ignore[misc]
        def layer(self, channels: int) -> nn.Module:
            return Half(channels, momentum=0.1, eps=1e-5)

    found = robustfl.run({**SMALL, "model": "mlp", "norm": "half"})
    assert found.status == "failed"
    assert "whole numbers on the CPU" in str(found.reason)


def test_a_class_made_in_a_namespace_without_a_name_is_registered() -> None:
    code = (
        "from dataclasses import dataclass\nfrom robustfl.contracts import Attack\n"
        "from robustfl.registry import register\n"
        "@register('nameless')\n@dataclass(frozen=True)\nclass Nameless(Attack):\n"
        "    def forge(self, view, *, generator):\n        return -view.honest.mean(0).expand(view.f, -1)\n"
    )
    exec(code, {})
    assert robustfl.forge("nameless", torch.ones(3, 2), f=1).tolist() == [[-1.0, -1.0]]
