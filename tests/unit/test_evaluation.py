"""Accuracy: hits, classes, users, and a model left as it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from robustfl.contracts import Evasion
from robustfl.errors import RobustflError
from robustfl.evaluation import evaluation_batch, mean_over_users, robust_accuracy, standard_accuracy
from robustfl.registry import create


def linear() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model that says class 1 where the pixel exceeds ½."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0], [2.0]]))
        model[1].bias.copy_(torch.tensor([0.0, -1.0]))
    x = torch.tensor([0.1, 0.45, 0.6, 0.9, 0.95]).view(5, 1, 1, 1)
    return model, x, torch.tensor([0, 0, 1, 1, 0])


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_standard_accuracy_counts_every_sample_once(batch: int) -> None:
    model, x, y = linear()
    found = standard_accuracy(model, lambda i: x[i], y, batch=batch)
    assert found.hits.tolist() == [True, True, True, True, False]
    assert found.value == 0.8
    assert found.per_class(3) == [2 / 3, 1.0, None]
    expected = nn.functional.cross_entropy(model(x), y).item()
    assert found.loss == pytest.approx(expected, rel=1e-6)


def test_robust_accuracy_is_that_on_perturbed_inputs() -> None:
    model, x, y = linear()
    attack = create("evasion", "fgsm(eps=0.07)")
    found = robust_accuracy(model, lambda i: x[i], y, attack, batch=2, generator=torch.Generator())
    assert found.hits.tolist() == [True, False, True, True, False]


def test_the_mode_of_every_module_comes_back() -> None:
    model, x, y = linear()
    model.train()
    model[1].eval()
    standard_accuracy(model, lambda i: x[i], y, batch=2)
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_users_count_alike_whatever_their_size() -> None:
    assert mean_over_users([0.9, 0.8, 0.7]) == pytest.approx(0.8)
    assert math.isnan(mean_over_users([]))


def test_batch_size_follows_the_activations() -> None:
    small = evaluation_batch(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(1, 1, 8, 8))
    large = evaluation_batch(nn.Sequential(nn.Conv2d(3, 512, 3, padding=1)), torch.zeros(1, 3, 64, 64))
    assert small == 1024
    assert large == 16


@pytest.mark.parametrize(("dtype", "fitting"), [(torch.float32, 128), (torch.float64, 64)])
def test_batch_size_is_the_power_of_two_whose_activations_fit_64_mebibytes(dtype: torch.dtype, fitting: int) -> None:
    """Two layers put out 64·32·32 numbers each: half a mebibyte an image in single precision."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()).to(dtype)
    assert evaluation_batch(model, torch.zeros(1, 3, 32, 32, dtype=dtype)) == fitting
    assert not any(m._forward_hooks for m in model.modules())


@dataclass(frozen=True)
class Relabels(Evasion):
    """Leaves the images alone and writes to the labels."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        y.fill_(0)
        return x.clone()


def test_an_attack_that_writes_to_its_labels_is_told() -> None:
    model, x, y = linear()
    with pytest.raises(RobustflError, match="wrote to what it was shown"):
        robust_accuracy(model, lambda i: x[i], y, Relabels(), batch=2, generator=torch.Generator())
