"""The success of a backdoor is counted on stamped images of other classes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.evaluation.accuracy import attack_success

X = torch.zeros(5, 1, 4, 4)
Y = torch.tensor([0, 1, 2, 1, 2])


class Corner(nn.Module):
    """Says ``fooled`` where the lower right pixel is bright, else class 1; notes how it was called."""

    def __init__(self, fooled: int = 2) -> None:
        super().__init__()
        self.fooled, self.batches, self.modes = fooled, [], []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        self.modes.append((self.training, torch.is_grad_enabled()))
        says = torch.where(x[:, 0, -1, -1] > 0.5, self.fooled, 1)
        return nn.functional.one_hot(says, 3).float()


def success(model: nn.Module, attack: Attack | str, labels: Tensor = Y, batch: int = 2) -> float:
    chosen = robustfl.attack(attack) if isinstance(attack, str) else attack
    return attack_success(model, lambda index: X[index], labels, chosen, batch=batch)


def test_a_model_with_the_backdoor_is_always_fooled() -> None:
    model = Corner()
    assert success(model, "badnets(target=2, size=1)") == 1.0
    assert sum(model.batches) == 3  # the two images of class 2 are not asked about
    assert max(model.batches) == 2


def test_images_that_are_taken_for_the_target_anyway_count_as_fooled_too() -> None:
    # Without a bright corner the model says 1: all three images of other classes.
    assert success(Corner(), "badnets(target=1, size=1, value=0)") == 1.0
    assert success(Corner(fooled=0), "badnets(target=2, size=1)") == 0.0


def test_a_share_of_the_images() -> None:
    class Half(Corner):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            logits[::2] = torch.tensor([1.0, 0.0, 0.0])
            return logits

    assert success(Half(), "badnets(target=2, size=1)", batch=4) == pytest.approx(1 / 3)


def test_logits_with_nan_are_no_answer() -> None:
    class Broken(Corner):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * math.nan

    assert success(Broken(), "badnets(target=0, size=1)") == 0.0


def test_nothing_is_left_of_images_of_the_target_class_alone() -> None:
    assert math.isnan(success(Corner(), "badnets(target=1)", torch.ones(5, dtype=torch.int64)))


def test_evaluation_mode_without_gradients_and_the_old_mode_afterwards() -> None:
    model = Corner().train()
    success(model, "badnets(size=1)")
    assert set(model.modes) == {(False, False)}
    assert model.training


@pytest.mark.parametrize(
    "spec", ["timed(badnets(target=2, size=1))", "model-replacement(badnets(target=2, size=1))",
             "opt(neurotoxin(badnets(target=2, size=1)))"],
)  # fmt: skip
def test_wrapped_backdoors_have_the_trigger_and_target_of_what_they_wrap(spec: str) -> None:
    assert success(Corner(), spec) == 1.0


@pytest.mark.parametrize("spec", ["sf", "label-flip(source=1, target=2)", "timed(sf)"])
def test_attacks_without_a_trigger_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="has no trigger"):
        success(Corner(), spec)
