"""Channel normalization as the model's first layer, so that attacks work in pixel space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import Arrays
from robustfl.errors import UsageError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_KNOWN: dict[str, Statistics] = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "tiny-imagenet": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
_BLOCK = 2048


class Normalize(nn.Module):
    """``(x - mean) / std`` per channel for pixels ``[b C H W]`` in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise UsageError(f"Normalize: mean={mean!r} and std={std!r} must be of one length, std > 0")
        # In float64 until the model is cast, so that a float64 model divides by the numbers written here.
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def channel_statistics(arrays: Arrays, name: str = "") -> Statistics:
    """Mean and standard deviation of every channel in [0, 1].

    The customary constants for the data sets that have them, else computed from the training images. A
    constant channel gets 1 as its deviation.
    """
    channels = arrays.train_x.shape[-1]
    known = _KNOWN.get(name)
    if known is not None and len(known[0]) == channels:
        return known
    total, squares, count = np.zeros(channels), np.zeros(channels), 0
    for start in range(0, len(arrays.train_x), _BLOCK):
        images = arrays.train_x[start : start + _BLOCK]
        # Long rows first, channels last: sums over an axis of three values are slow. Squares of uint8 sums stay exact.
        wide = images.reshape(len(images), -1).astype(np.uint32 if images.dtype == np.uint8 else np.float64)
        total += wide.sum(0).reshape(-1, channels).sum(0)
        squares += np.square(wide).sum(0).reshape(-1, channels).sum(0)
        count += wide.size // channels
    scale = 255.0 if arrays.train_x.dtype == np.uint8 else 1.0
    mean = total / count / scale
    std = np.sqrt(np.maximum(squares / count / scale**2 - mean**2, 0))
    std[std < 1e-6] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())
