"""Eight faults that authors of plug-ins make, each told exactly once and by its name; and one cause is one failure."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustfl import registry
from robustfl.branches import ADVERSARIAL, CLEAN, through
from robustfl.contracts import (
    Aggregator,
    Algorithm,
    Arrays,
    Asked,
    Attack,
    Context,
    Dataset,
    Evasion,
    LocalWork,
    Method,
    Model,
    Norm,
    Objective,
    Partition,
    Propagation,
    View,
)  # fmt: skip
from robustfl.data import data_root, dataset_from_spec
from robustfl.parameters import param
from robustfl.testing import Check, check

pytestmark = pytest.mark.usefixtures("clean_registry")
SEEN: list[int] = []


def checks_of(cls: Any) -> list[Check]:
    """The checks of a class, registered as authors do."""
    return check(registry.register(cls.__name__.lower())(dataclass(frozen=True)(cls)))


class Rule(Aggregator):
    """The mean without the ``f`` rows farthest from the median."""

    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        far = (X - X.median(0).values).norm(dim=1)
        return X[far.sort(stable=True).indices[: len(X) - self.left_out(f)]].mean(0) * self.factor()

    def left_out(self, f: int) -> int:
        return f

    def factor(self) -> float:
        return 1.0

    def min_clients(self, f: int) -> int:
        return 2 * f + 1


class IgnoresF(Rule):
    """It leaves nobody out."""

    def left_out(self, f: int) -> int:
        return 0


class FirstRows(Rule):
    """It trusts whoever comes first."""

    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X[: len(X) - f].mean(0)


class Overlaps(Partition):
    """Everybody's part begins before the last one's ends."""

    def split(self, labels: Any, *, clients: int, classes: int, generator: np.random.Generator) -> list[Any]:
        parts = np.array_split(generator.permutation(len(labels)), clients)
        return [parts[0], *(np.append(parts[k - 1][-1], parts[k]) for k in range(1, clients))]


class FromOne(Dataset):
    """The digits with labels from 1."""

    def load(self, root: Path, *, download: bool = True) -> Arrays:
        digits = dataset_from_spec("digits").load(data_root())
        return replace(digits, train_y=digits.train_y + 1, test_y=digits.test_y + 1)

    def fingerprint(self, root: Path, *, download: bool = True) -> str:
        return dataset_from_spec("digits").fingerprint(data_root())


class Centring(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class MixesClients(Model):
    """It subtracts the mean of the batch, which holds the images of several clients."""

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), Centring(), nn.Linear(int(np.prod(shape)), classes))


class Undeclared(Rule):
    """``scale`` can be set by nobody and is in no key."""

    scale = 1.0

    def factor(self) -> float:
        return self.scale


class Leaks(Attack):
    """It reverses the honest mean, a little more with every call."""

    scale: float = param(1.0, gt=0)

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        SEEN.append(1)
        assert view.honest is not None
        return -self.scale * len(SEEN) * view.honest.mean(0).expand(view.f, -1)


class LeavesTheMode(Evasion):
    """It attacks in evaluation mode, and leaves the model there."""

    eps: float = param(0.1, ge=0)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        with torch.enable_grad():
            variable = x.clone().requires_grad_(True)
            model.eval()
            (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(variable), y), variable)
        return (x + self.eps * gradient.sign()).clamp(0, 1).detach()


FAULTS: list[tuple[Any, str, str]] = [
    (Overlaps, "parts", "parts must not overlap"),
    (FromOne, "arrays", "train_y: label 10 of image 9; labels must be in [0, 10)"),
    (MixesClients, "images apart", "depend on the rest of the batch"),
    (Undeclared, "parameters declared", "scale = 1.0 is no parameter and in no key"),
    (Leaks, "no side effects", "test_planted_faults.SEEN"),
    (LeavesTheMode, "model untouched", "mode or hooks of model is not as before"),
]
FACTS: list[tuple[Any, str]] = [(IgnoresF, "ignores f"), (FirstRows, "depends on the order of the rows")]


@pytest.mark.parametrize(("cls", "law", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_told_once_and_by_its_name(cls: Any, law: str, words: str) -> None:
    failures = {c.name: c.reason for c in checks_of(cls) if not c.passed}
    assert list(failures) == [law]
    assert words in failures[law]


@pytest.mark.parametrize(("cls", "words"), FACTS, ids=lambda value: getattr(value, "__name__", ""))
def test_where_rules_may_differ_a_fact_is_told_and_nothing_fails(cls: Any, words: str) -> None:
    checks = checks_of(cls)
    assert [c for c in checks if not c.passed] == []
    assert [c.name for c in checks if words in c.reason and c.reason.startswith("fact: ")] == ["behaviour"]


def test_a_sound_rule_shows_neither() -> None:
    assert [c.reason for c in checks_of(Rule) if not c.passed or c.name == "behaviour"] == [""]


class Clock(Attack):
    """It depends on the time."""

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        assert view.honest is not None
        return view.honest.mean(0).expand(view.f, -1) + time.perf_counter()


class Global(Attack):
    """It draws from torch's global generator."""

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        assert view.honest is not None
        return view.honest.mean(0).expand(view.f, -1) + torch.rand(1, dtype=view.honest.dtype)


class Raises(Rule):
    """It fails where there are attackers."""

    def left_out(self, f: int) -> int:
        if f == 2:
            raise ZeroDivisionError("two attackers")
        return f


@pytest.mark.parametrize(("cls", "law"), [(Clock, "deterministic"), (Global, "no side effects"), (Raises, "runs")])
def test_one_cause_is_one_failure_and_the_rest_names_it(cls: Any, law: str) -> None:
    checks = checks_of(cls)
    assert [c.name for c in checks if not c.passed] == [law]
    others = [c for c in checks if c.because]
    assert others
    assert {c.because for c in others} == {law}


class Descent(Algorithm):
    """One gradient step a client; parts are planted by what derives from it."""

    def steps(self, samples: int, batch: int) -> int:
        return 1

    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        return work.gradient(work.theta), None

    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        return theta - lr * aggregate


class Ascent(Descent):
    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        return theta + lr * aggregate


class NormOverAll(Descent):
    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        gradient = work.gradient(work.theta)
        return gradient / gradient.norm().clamp(min=1), None


class TakesTwo(Descent):
    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        return work.gradient(work.theta) + work.gradient(work.theta), None


class InPlace(Descent):
    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        return theta.sub_(aggregate, alpha=lr)


class Keeps(Descent):
    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        gradient = work.gradient(work.theta)
        return gradient, gradient


class TwoOfOne(Descent):
    @property
    def asks(self) -> frozenset[Asked]:
        return frozenset({"one_batch"})

    def steps(self, samples: int, batch: int) -> int:
        return 2


class Plain(Objective):
    """Cross-entropy; parts are planted by what derives from it."""

    plain: ClassVar[bool] = True


class BatchMean(Plain):
    def per_sample(self, logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits - logits.mean(0), y, reduction="none")


class OtherBackward(Plain):
    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Any) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class Attached(Objective):
    """It returns a loss that holds the graph."""

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Any) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss


class SamePixels(Objective):
    """Made for AT users, and the same for all."""

    needs_adversaries: ClassVar[bool] = True


class AdversarialAlone(Objective):
    """AT users train one branch, and it does not say so."""

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Any) -> Tensor:
        with through(model, ADVERSARIAL if task.adversarial else CLEAN):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class Lonely(AdversarialAlone):
    """Everybody trains the clean branch, and it denies it."""

    trains_clean: ClassVar[bool] = False

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Any) -> Tensor:
        return super().backward(model, x, y, replace(task, adversarial=False))


class Compares(Propagation):
    """It says that it looks at no statistics, and does."""

    compares: ClassVar[bool] = False

    def weights(self, sources: Tensor, target: Tensor, layers: Any) -> Tensor:
        return torch.softmax(-(sources - target).norm(dim=1), 0)


@pytest.mark.parametrize(
    ("cls", "law", "words"),
    [
        (Ascent, "learns", "is a sign wrong?"),
        (NormOverAll, "clients apart", "gradient.norm(dim=-1"),
        (TakesTwo, "steps", "local takes 2 batches, steps says 1"),
        (TwoOfOne, "steps", "asks names 'one_batch', and steps(40, 16) is 2"),
        (InPlace, "inputs untouched", "work.theta was written to"),
        (Keeps, "runs", "remembers is False"),
        (BatchMean, "samples apart", "holds the samples of all clients"),
        (OtherBackward, "samples apart", "the mean of per_sample is"),
        (Attached, "shape, dtype and device", "return it with .detach()"),
        (SamePixels, "roles", "train alike"),
        (AdversarialAlone, "clean branch", "trains_clean is True, but batches of AT users never go through"),
        (Lonely, "clean branch", "trains_clean is False, but batches of AT users train"),
        (Compares, "weights", "compares is False"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_of_algorithms_objectives_and_propagations_are_found(cls: type[Method], law: str, words: str) -> None:
    cls.__doc__ = cls.__doc__ or "Planted."
    failures = {c.name: c.reason for c in checks_of(cls) if not c.passed}
    assert list(failures) == [law]
    assert words in failures[law]


@pytest.mark.parametrize("cls", [Descent, Plain])
def test_what_is_sound_passes(cls: Any) -> None:
    assert [c for c in checks_of(cls) if not c.passed] == []
