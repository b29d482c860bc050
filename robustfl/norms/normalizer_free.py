"""Schemes without a normalization layer: none, FedFN, and FedWon with its standardised convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.errors import Refused
from robustfl.layer_kinds import Convolution, LayerKind, Rows, layer_kind
from robustfl.parameters import param
from robustfl.registry import register

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


@register("none", version=1)
@dataclass(frozen=True)
class NoNorm(Norm):
    """No normalization: the layer is the identity, ``y = x``.

    Deep networks then train slowly or not at all with the step sizes that normalization allows.

    >>> NoNorm().layer(3)
    Identity()
    """

    cost: ClassVar[str] = "no statistics to send"

    def layer(self, channels: int) -> nn.Module:
        return nn.Identity()


def feature_norm(h: Tensor, scale: float = 1.0) -> Tensor:
    """``scale · h/‖h‖₂`` for every row of ``h [b d]``; a zero row stays zero."""
    h = h.to(torch.promote_types(h.dtype, torch.float32))  # in training in bfloat16 the length would be half a % off
    unit: Tensor = h / h.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return scale * unit


class FeatureNorm(nn.Module):
    """``feature_norm``, times √d if ``by_width``."""

    def __init__(self, by_width: bool) -> None:
        super().__init__()
        self.by_width = by_width

    def forward(self, h: Tensor) -> Tensor:
        return feature_norm(h, math.sqrt(h.shape[1]) if self.by_width else 1.0)


@register("fedfn", version=1)
@dataclass(frozen=True)
class FedFN(Norm):
    """No normalization layers; the feature vector is put on a sphere: ``h ← s·h/‖h‖₂``.

    Deep networks without normalization layers train slowly; the sphere only tames the last ones.

    Args:
        position: ``classifier``: before the last linear layer; ``flatten``: before the first (as Chen et al. 2025 do).
        scale: ``1`` or ``sqrt-d``, the square root of the feature's width.

    Reference: Kim et al., FedFN: Feature Normalization for Alleviating Data Heterogeneity Problem in Federated
    Learning, NeurIPS Workshops 2023, arXiv:2311.13267.

    >>> import torch
    >>> feature_norm(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    paper: ClassVar[str] = "@kim2023fedfn"

    position: str = param("classifier", choices=("classifier", "flatten"), doc="before the last or first linear layer")
    scale: str = param("1", choices=("1", "sqrt-d"), doc="length of the normalised feature")

    def layer(self, channels: int) -> nn.Module:
        return nn.Identity()

    def adapt(self, network: nn.Module) -> None:
        """Put the feature normalization before its linear layer."""
        linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
        if not linear:
            raise Refused("fedfn: the model has no linear layer to normalise features for")
        name, layer = linear[-1 if self.position == "classifier" else 0]
        network.set_submodule(name, nn.Sequential(FeatureNorm(self.scale == "sqrt-d"), layer))


def clipped_by_unit(gradient: Tensor, weight: Tensor, lam: float, eps: float = 1e-3) -> Tensor:
    """Adaptive clipping: each output unit's gradient is at most ``λ max(‖W_o‖, eps)`` long."""
    rest = list(range(1, gradient.dim()))
    bound = lam * torch.linalg.vector_norm(weight, dim=rest, keepdim=True).clamp(min=eps)
    norm = torch.linalg.vector_norm(gradient, dim=rest, keepdim=True)
    clipped: Tensor = torch.where(norm > bound, gradient * (bound / norm.clamp(min=1e-30)), gradient)
    return clipped


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

    >>> from robustfl.norms.normalizer_free import standardised
    >>> round(float(standardised(torch.tensor([[1.0, 2.0, 3.0]])).norm()), 4)  # γ
    1.7129
    """

    paper: ClassVar[str] = "@zhuang2024fedwon"

    gain: bool = param(False, doc="a learnable factor per filter")
    clip: float | None = param(None, gt=0, doc="λ of adaptive gradient clipping")

    def layer(self, channels: int) -> nn.Module:
        return nn.Identity()

    def adapt(self, network: nn.Module) -> None:
        """Replace the convolutions and, with ``clip``, bound the gradients of all weights but the last layer's."""
        standardise(network, "fedwon", gain=self.gain)
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
