"""Convolutions with standardised weights, in place of normalization layers or under them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.errors import Refused
from robustfl.layer_kinds import Convolution, LayerKind, Rows, layer_kind

GAMMA = math.sqrt(2 / (1 - 1 / math.pi))  # for ReLU


def standardised(weight: Tensor, gamma: float = GAMMA, floor: float = 1e-6) -> Tensor:
    """``γ (W_o - mean)/(σ_o √n_in)`` for every output filter of ``weight [o …]``; biased σ, at least ``floor``."""
    flat = weight.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt().clamp(min=floor)
    return (centred * (gamma / (deviation * math.sqrt(flat.shape[1])))).view_as(weight)


class StandardisedConv2d(nn.Conv2d):
    """A convolution with standardised weights and, if ``gain`` is there, one learnable factor per filter."""

    def __init__(self, like: nn.Conv2d, *, gain: bool) -> None:
        super().__init__(
            like.in_channels, like.out_channels, like.kernel_size,  # type: ignore[arg-type]
            stride=like.stride, padding=like.padding, dilation=like.dilation, groups=like.groups,  # type: ignore[arg-type]
            bias=like.bias is not None, padding_mode=like.padding_mode,
        )  # fmt: skip
        self.weight, self.bias = like.weight, like.bias
        self.gain = nn.Parameter(torch.ones(like.out_channels, 1, 1, 1)) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        weight = standardised(self.weight)
        out: Tensor = self._conv_forward(x, weight if self.gain is None else weight * self.gain, self.bias)
        return out


@layer_kind(StandardisedConv2d)
class StandardisedConvolution(LayerKind):
    """A convolution whose rows are standardised first, which the gradient goes back through."""

    _plain = Convolution()

    def serves(self, layer: Any) -> bool:
        return self._plain.serves(layer)

    def forward(self, layer: Any, x: Tensor, weights: Rows) -> Tensor:
        return self._plain.forward(layer, x, _standardised_rows(weights))

    def own(self, layer: Any, x: Tensor, rows: Rows, sizes: tuple[int, ...]) -> Tensor:
        return self._plain.own(layer, x, _standardised_rows(rows), sizes)

    def shared(self, layer: Any, x: Tensor, rows: Rows, sizes: tuple[int, ...]) -> Tensor:
        return self._plain.shared(layer, x, _standardised_rows(rows), sizes)

    def width(self, layer: Any, pixels: int) -> int:
        return self._plain.width(layer, pixels)


def _standardised_rows(rows: Rows) -> Rows:
    weight = rows["weight"]
    made = standardised(weight.reshape(-1, *weight.shape[-3:])).view_as(weight)
    scaled = {"weight": made * rows["gain"] if "gain" in rows else made}
    return scaled | ({"bias": rows["bias"]} if "bias" in rows else {})


def standardise(network: nn.Module, scheme: str, *, gain: bool = False) -> None:
    """Replace the convolutions of ``network`` by standardised ones, in place. Raises ``Refused`` if there is none."""
    found = [(name, m) for name, m in network.named_modules() if type(m) is nn.Conv2d]
    if not found:
        raise Refused(f"{scheme}: the model has no convolution to standardise")
    for name, layer in found:
        network.set_submodule(name, StandardisedConv2d(layer, gain=gain))
