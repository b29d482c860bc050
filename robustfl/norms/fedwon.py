"""FedWon: standardised weights in place of normalization layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.errors import Refused
from robustfl.layer_kinds import Convolution, Rows, layer_kind
from robustfl.parameters import param
from robustfl.registry import register

GAMMA = math.sqrt(2 / (1 - 1 / math.pi))  # for ReLU


def standardised(weight: Tensor, gamma: float = GAMMA, floor: float = 1e-6) -> Tensor:
    """``γ (W_o - mean)/(σ_o √n_in)`` for every output filter of ``weight [o …]``; biased σ, at least ``floor``."""
    flat = weight.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt().clamp(min=floor)
    return (centred * (gamma / (deviation * math.sqrt(flat.shape[1])))).view_as(weight)


def clipped_by_unit(gradient: Tensor, weight: Tensor, lam: float, eps: float = 1e-3) -> Tensor:
    """Adaptive clipping: each output unit's gradient is at most ``λ max(‖W_o‖, eps)`` long."""
    rest = list(range(1, gradient.dim()))
    bound = lam * torch.linalg.vector_norm(weight, dim=rest, keepdim=True).clamp(min=eps)
    norm = torch.linalg.vector_norm(gradient, dim=rest, keepdim=True)
    clipped: Tensor = torch.where(norm > bound, gradient * (bound / norm.clamp(min=1e-30)), gradient)
    return clipped


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
class StandardisedConvolution(Convolution):
    """A convolution whose rows are standardised first, which the gradient goes back through."""

    def forward(self, layer: Any, x: Tensor, weights: Rows) -> Tensor:
        return self.own(layer, x, {name: weight[None] for name, weight in weights.items()}, (len(x),))

    def own(self, layer: Any, x: Tensor, rows: Rows, sizes: tuple[int, ...]) -> Tensor:
        return super().own(layer, x, self._rows(rows), sizes)

    def shared(self, layer: Any, x: Tensor, rows: Rows, sizes: tuple[int, ...]) -> Tensor:
        return super().shared(layer, x, self._rows(rows), sizes)

    def _rows(self, rows: Rows) -> Rows:
        weight = rows["weight"]
        made = standardised(weight.flatten(0, 1)).view_as(weight)
        scaled = {"weight": made * rows["gain"] if "gain" in rows else made}
        return scaled | ({"bias": rows["bias"]} if "bias" in rows else {})


@register("fedwon", version=1)
@dataclass(frozen=True)
class FedWon(Norm):
    """No normalization layers; every convolution uses ``Ŵ_o = γ(W_o − mean)/(σ_o √n_in)``, ``γ = √(2/(1−1/π))``.

    Statistics are those of each filter over its ``n_in`` entries, so nothing depends on a batch. Linear layers stay as
    they are; without activations that halve the variance γ is off.

    Args:
        gain: a learnable factor per filter.
        clip: λ > 0 of adaptive gradient clipping per output unit, the last layer excepted, or None; 0.01 in NFNets.

    Reference: Zhuang, Lyu, FedWon: Triumphing Multi-domain Federated Learning Without Normalization, ICLR 2024,
    arXiv:2306.05879; Brock, De, Smith, Characterizing Signal Propagation to Close the Performance Gap in Unnormalized
    ResNets, ICLR 2021, arXiv:2101.08692; Brock, De, Smith, Simonyan, High-Performance Large-Scale Image Recognition
    Without Normalization, ICML 2021, arXiv:2102.06171.

    >>> round(float(standardised(torch.tensor([[1.0, 2.0, 3.0]])).norm()), 4)  # γ
    1.7129
    """

    paper: ClassVar[str] = "@zhuang2024fedwon"

    gain: bool = param(False, doc="a learnable factor per filter")
    clip: float | None = param(None, gt=0, doc="λ of adaptive gradient clipping")

    def layer(self, channels: int) -> nn.Module:
        """The identity."""
        del channels
        return nn.Identity()

    def adapt(self, network: nn.Module) -> None:
        """Replace the convolutions and, with ``clip``, bound the gradients of all weights but the last layer's."""
        found = [(name, m) for name, m in network.named_modules() if type(m) is nn.Conv2d]
        if not found:
            raise Refused("fedwon: the model has no convolution to standardise")
        for name, layer in found:
            parent, _, leaf = name.rpartition(".")
            owner: Any = network.get_submodule(parent) if parent else network
            setattr(owner, leaf, StandardisedConv2d(layer, gain=self.gain))
        if self.clip is None:
            return
        layers = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        for module in layers[:-1]:
            module.weight.register_hook(_Clip(module.weight, self.clip))  # type: ignore[no-untyped-call]


class _Clip:
    """A gradient hook; a class so that models pickle."""

    def __init__(self, weight: Tensor, lam: float) -> None:
        self.weight, self.lam = weight, lam

    def __call__(self, gradient: Tensor) -> Tensor:
        return clipped_by_unit(gradient, self.weight.detach(), self.lam)
