"""Choosing the branch of a model's branched normalization layers; other models have one branch only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from robustfl.contracts import BranchedLayer

CLEAN, ADVERSARIAL = BranchedLayer.branches


def branched(model: nn.Module) -> bool:
    """True if the model has layers with branches."""
    return any(isinstance(m, BranchedLayer) for m in model.modules())


@contextmanager
def through(model: nn.Module, branch: str, *, frozen: bool = False) -> Iterator[None]:
    """Within, forwards take ``branch``; ``frozen``: with its statistics also in training, which then see nothing."""
    layers = [m for m in model.modules() if isinstance(m, BranchedLayer)]
    before = [(m.branch, m.frozen_branch) for m in layers]
    try:
        for layer in layers:
            layer.branch, layer.frozen_branch = branch, frozen
        yield
    finally:
        for layer, (old, was_frozen) in zip(layers, before, strict=True):
            layer.branch, layer.frozen_branch = old, was_frozen
