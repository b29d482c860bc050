"""Mistakes of plug-ins that laws of the contract suite find in what they serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from robustfl import registry
from robustfl.contracts import Arrays, Dataset, Norm
from robustfl.models.digits_cnn import DigitsCnn
from robustfl.norms.fbn import FBN
from robustfl.norms.layers import ClientGroupNorm
from robustfl.testing.data import check_dataset, check_model
from robustfl.testing.norms import check_norm

pytestmark = pytest.mark.usefixtures("clean_registry")


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
