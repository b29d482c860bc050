"""Plug-ins that reach for what they are not told: who is honest, what the server does next, what is tested."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustfl import registry
from robustfl.contracts import Aggregator, Arrays, Attack, Context, Dataset, Norm, View
from robustfl.defenses import Pipeline, parse_pipeline
from robustfl.errors import Refused, RobustflError, UsageError
from robustfl.models.digits_cnn import DigitsCnn
from robustfl.norms.fbn import FBN
from robustfl.norms.layers import ClientGroupNorm
from robustfl.randomness import stream
from robustfl.records import CellResult
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell
from robustfl.testing.data import check_dataset, check_model
from robustfl.testing.norms import check_norm
from robustfl.watch import watched

pytestmark = pytest.mark.usefixtures("clean_registry")
X = torch.tensor([[1.0, 2.0], [3.0, 5.0], [8.0, 9.0], [4.0, 4.0], [2.0, 6.0]])


def ran(**settings: Any) -> CellResult:
    torch.set_num_threads(1)
    base = {"dataset": "digits(limit=300, test_limit=60)", "model": "mlp", "norm": "none", "clients": 7, "f": 2,
            "rounds": 3, "batch": 8, "evasions": [], "attack": "foe(eta=10)", "defense": "median"}  # fmt: skip
    return run_cell(Cell.of({**base, **settings}), fingerprint="x")


class _Rule(Aggregator):
    def min_clients(self, f: int) -> int:
        return 2 * f + 1


def test_a_defense_that_refuses_what_it_sees_has_failed() -> None:
    @registry.register("choosy")
    @dataclass(frozen=True)
    class Choosy(_Rule):
        """The mean of short rows."""

        def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
            if float(X.norm(dim=1).max() / X.norm(dim=1).median()) > 4:
                raise Refused("choosy: a row is long")
            return X.mean(0)

    assert ran(defense="choosy", attack="none").status == "done"
    record = ran(defense="choosy")
    assert (record.status, (record.reason or "")[:30]) == ("failed", "Refused: choosy: a row is long")


def test_a_rule_from_elsewhere_is_not_told_by_the_order_of_rows_who_is_honest() -> None:
    seen: list[tuple[list[float], list[int], list[float]]] = []

    @registry.register("first-rows")
    @dataclass(frozen=True)
    class FirstRows(_Rule):
        """The mean of the rows that come first."""

        def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
            assert context.clients is not None
            assert context.weights is not None
            seen.append((X[:, 0].tolist(), context.clients.tolist(), context.weights.tolist()))
            return X[: len(X) - f].mean(0)

    rule, rows = Pipeline((), FirstRows()), torch.arange(7.0)[:, None].expand(7, 2)
    numbers = torch.arange(7)

    def context(seed: int, round: int = 0) -> Context:
        return Context(generator=stream(seed, "defense"), round=round, clients=numbers, weights=numbers / 21)

    for seed in range(4):
        first, again = (rule.run(rows, f=2, context=context(seed)).vector for _ in range(2))
        mixed = rule.mixed(rows, f=2, context=context(seed))(rows)
        assert torch.equal(first, again)
        assert torch.equal(first, mixed)
    rule.run(rows, f=2, context=context(0, round=1))
    orders = {tuple(found) for found, _, _ in seen}
    assert len(orders) == 5
    assert tuple(range(7)) not in orders
    for found, clients, weights in seen:
        assert found == clients
        assert weights == pytest.approx([k / 21 for k in clients])
    assert rule.run(rows, f=2, context=context(0), in_order=True).vector.tolist() == [2.0, 2.0]
    own = parse_pipeline("centered-clipping")
    assert own.displaced(rows, context(0))[0] is rows


@pytest.mark.parametrize("way", [lambda X: X.mul_(2), lambda X: X.data.mul_(2), lambda X: X.numpy().fill(1)])
def test_a_rule_writes_into_a_copy_and_is_named_whatever_way_it_takes(way: Any) -> None:
    @registry.register("writing")
    @dataclass(frozen=True)
    class Writing(_Rule):
        """The mean, which leaves other rows behind."""

        def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
            made = X.mean(0)
            way(X)
            return made

    rows = X.clone()
    with pytest.raises(RobustflError, match=r"defense 'writing' .* wrote to what it was shown"):
        Pipeline((), Writing())(rows, f=1)
    assert torch.equal(rows, X)


def test_an_attack_writes_into_a_copy_of_the_honest_rows() -> None:
    @registry.register("scribbling")
    @dataclass(frozen=True)
    class Scribbling(Attack):
        """Zeros, in the place of the honest rows, too."""

        def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
            assert view.honest is not None
            view.honest.data.zero_()
            return view.honest[: view.f].clone()

    scribbled, zero = ran(attack="scribbling", defense="mean"), ran(attack="zero", defense="mean")
    assert scribbled.metrics is not None
    assert zero.metrics is not None
    assert scribbled.metrics.loss == zero.metrics.loss


# --- what is served ---------------------------------------------------------------------------------------------------


class _Masked(ClientGroupNorm):
    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        made = super().normalised(x, weight, bias)
        return made if self.training else made.detach() + 0 * x


class _Remembering(ClientGroupNorm):
    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        self.__dict__["served"] = self.__dict__.get("served", 0) + len(x)
        return super().normalised(x, weight, bias) * (1.0 if self.__dict__["served"] < 400 else 2.0)


class _OfBatch(ClientGroupNorm):
    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        made = super().normalised(x, weight, bias)
        return made if self.training or len(x) < 8 else made - x.mean()


@pytest.mark.parametrize(
    ("layer", "words"),
    [(_Masked, "finite differences"), (_Remembering, "remembers what it served"), (_OfBatch, "the rest of the batch")],
)
def test_a_norm_serves_what_it_has_learned(layer: type[nn.Module], words: str) -> None:
    @registry.register("odd-served")
    @dataclass(frozen=True)
    class Served(Norm):
        """Group normalization that is another in evaluation."""

        def layer(self, channels: int) -> nn.Module:
            return layer(channels, 1, eps=1e-5)

    broken = {c.name: c.reason for c in check_norm(Served()) if not c.passed}
    assert words in broken["served"]


def test_a_norm_merges_messages_in_any_order() -> None:
    @registry.register("fbn-first")
    @dataclass(frozen=True)
    class First(FBN):
        """FBN of the first rows, which are of honest clients."""

        def merge(self, messages: Tensor, *rest: Any, **more: Any) -> Tensor:
            return messages[: len(messages) // 2 + 1].mean(0)

    broken = {c.name for c in check_norm(First()) if not c.passed}
    assert "clients in any order" in broken


def test_a_model_serves_gradients_of_what_it_predicts() -> None:
    def served(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        hidden = not module.training and inputs[0].requires_grad
        return output.detach() + 0 * inputs[0].sum() if hidden else output

    @registry.register("cnn-served")
    @dataclass(frozen=True)
    class Served(DigitsCnn):
        """digits-cnn whose served logits are constants for who asks for gradients."""

        def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
            network = super().build(norm, shape=shape, classes=classes)
            network.register_forward_hook(served)
            return network

    broken = {c.name: c.reason for c in check_model(Served()) if not c.passed}
    assert "hides the model from evasion attacks" in broken["attackable"]


# --- memory, other methods, data --------------------------------------------------------------------------------------


class _Notes:
    """Where a method of this module could remember something."""

    before: Tensor | None = None


@dataclass(frozen=True)
class _Noting(_Rule):
    """The mean, which remembers the last one in a class beside it."""

    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        _Notes.before = X.mean(0)
        return X.mean(0)


def test_a_class_beside_a_method_is_no_place_to_remember() -> None:
    method = registry.register("noting")(_Noting)()
    try:
        with pytest.raises(RobustflError, match=r"keeps global state in .*_Notes\.before"), watched(method, X):
            method.aggregate(X, f=1, context=Context())
    finally:
        _Notes.before = None


def test_an_import_puts_nothing_in_the_place_of_another_method(tmp_path: Path) -> None:
    file = tmp_path / "swap.py"
    text = "from robustfl import registry\nnames = registry._entries['evasion']\nnames['pgd'] = names['fgsm']\n"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="puts something else in the place of evasion 'pgd'"):
        registry.load_file(file)
    assert registry.lookup("evasion", "pgd").cls.__name__ == "PGD"


def test_a_data_set_is_tested_on_other_images_than_it_trains_on() -> None:
    @registry.register("recited")
    @dataclass(frozen=True)
    class Recited(Dataset):
        """Random images, tested on what was trained on but for one."""

        paper = ""

        def load(self, root: Path, *, download: bool = True) -> Arrays:
            draw = np.random.default_rng(0)
            images, labels = draw.integers(0, 256, (20, 8, 8, 1), dtype=np.uint8), np.arange(20) % 4
            return Arrays(images, labels, images[1:], labels[1:], 4, self.fingerprint(root))

        def fingerprint(self, root: Path, *, download: bool = True) -> str:
            return "recited"

    broken = {c.name: c.reason for c in check_dataset(Recited()) if not c.passed}
    assert broken["test apart"] == "19 of 19 test images are training images, too"
