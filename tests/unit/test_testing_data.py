"""The contract suite finds planted faults in partitions, data sets and models, and passes robustfl's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustfl import registry
from robustfl.contracts import Arrays, Dataset, Method, Model, Norm, Partition
from robustfl.data import data_root, dataset_from_spec
from robustfl.errors import UsageError
from robustfl.testing import check

pytestmark = pytest.mark.usefixtures("clean_registry")


def broken(method: Method) -> dict[str, str]:
    """The laws that do not hold, with what was seen."""
    return {c.name: c.reason for c in check(method) if not c.passed}


class Even(Partition):
    """Every client the same number of samples."""

    def split(self, labels: Any, *, clients: int, classes: int, generator: np.random.Generator) -> list[Any]:
        return list(self.change(np.array_split(generator.permutation(len(labels)), clients)))

    def change(self, parts: list[Any]) -> list[Any]:
        return parts


class Shared(Even):
    def change(self, parts: list[Any]) -> list[Any]:
        return [np.append(parts[0], parts[1][0]), *parts[1:]]


class Beyond(Even):
    def change(self, parts: list[Any]) -> list[Any]:
        return [parts[0] + 400, *parts[1:]]


class Missing(Even):
    def change(self, parts: list[Any]) -> list[Any]:
        return parts[:-1]


class Drawn(Even):
    def split(self, labels: Any, *, clients: int, classes: int, generator: np.random.Generator) -> list[Any]:
        return list(np.array_split(np.random.permutation(len(labels)), clients))


class Known(Dataset):
    """The digits, changed."""

    def load(self, root: Path, *, download: bool = True) -> Arrays:
        return self.change(dataset_from_spec("digits").load(data_root()))

    def fingerprint(self, root: Path, *, download: bool = True) -> str:
        return dataset_from_spec("digits").fingerprint(data_root())

    def change(self, arrays: Arrays) -> Arrays:
        return arrays


class FromOne(Known):
    def change(self, arrays: Arrays) -> Arrays:
        return replace(arrays, train_y=arrays.train_y + 1, test_y=arrays.test_y + 1)


class Centred(Known):
    def change(self, arrays: Arrays) -> Arrays:
        return replace(arrays, train_x=arrays.train_x.astype(np.float32) / 128 - 1)


class OtherDigest(Known):
    def change(self, arrays: Arrays) -> Arrays:
        return replace(arrays, fingerprint="other")


class Mixes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Linear(Model):
    """One layer."""

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *self.more(), nn.Linear(int(np.prod(shape)), self.width(classes)))

    def more(self) -> list[nn.Module]:
        return []

    def width(self, classes: int) -> int:
        return classes


class Mixing(Linear):
    def more(self) -> list[nn.Module]:
        return [Mixes()]


class Narrow(Linear):
    def width(self, classes: int) -> int:
        return classes - 1


class Undrawn(Linear):
    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        del network, generator


class OtherNorm(Linear):
    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(shape[0]), super().build(norm, shape=shape, classes=classes))


class NotANumber(Linear):
    def more(self) -> list[nn.Module]:
        return [Undefined()]


class Undefined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0 - x / 0


class Nothing(Linear):
    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> Any:
        return None


FAULTS = [
    (OtherNorm, "norms", "nobody asks BatchNorm2d for its running statistics"),
    (NotANumber, "logits", "its logits are not finite"),
    (Nothing, "runs", "build returned None; a module is needed"),
    (Shared, "disjoint", "as does client 0; parts must not overlap"),
    (Beyond, "parts", "client 0 has indices from 4"),
    (Missing, "parts", "a list of 4 for 5 clients"),
    (Drawn, "no global randomness", "the global generator of numpy"),
    (FromOne, "labels", "train_y reaches from 1 to 10; 10 classes are 0 to 9"),
    (Centred, "images", "train_x reaches from -1"),
    (OtherDigest, "fingerprint", "load() says 'other'"),
    (Mixing, "images apart", "depend on the rest of the batch"),
    (Narrow, "logits", "gave (3, 9); logits (3, 10)"),
    (Undrawn, "initialised", "which a constructor drew; draw it in initialise"),
]


@pytest.mark.parametrize(("cls", "law", "words"), FAULTS, ids=[cls.__name__ for cls, _, _ in FAULTS])
def test_a_planted_fault_is_found(cls: Any, law: str, words: str) -> None:
    made = registry.register(cls.__name__.lower())(dataclass(frozen=True)(cls))
    found = broken(made())
    assert words in found[law]


@pytest.mark.parametrize("cls", [Even, Known, Linear])
def test_what_is_sound_passes(cls: Any) -> None:
    made = registry.register(cls.__name__.lower() + "-sound")(dataclass(frozen=True)(cls))
    assert broken(made()) == {}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        *(("partition", spec) for spec in ("iid", "dirichlet(alpha=1)", "gamma(gamma=0.5)", "classes(k=2)")),
        *(("dataset", spec) for spec in ("digits", "digits-domain")),
        *(("model", spec) for spec in ("mlp", "digits-cnn", "simple-cnn", "resnet20", "fbn-cnn")),
    ],
)
def test_robustfls_own_pass(kind: str, spec: str) -> None:
    assert broken(registry.create(kind, spec)) == {}


def test_a_data_set_that_is_not_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUSTFL_DATA", str(tmp_path))
    checks = {c.name: c for c in check(registry.create("dataset", "cifar10"))}
    assert checks["images"].passed
    assert checks["images"].reason.startswith("not looked at: ")
    assert checks["images"].because == "its files"


def test_a_file_that_a_parameter_names_has_to_be_there() -> None:
    with pytest.raises(UsageError, match=r"there is no file .*typo\.npz"):
        check(registry.create("dataset", "npz(path=typo.npz)"))
