"""FedWon: standardised weights in place of normalization layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.norms.standardised import standardise
from robustfl.parameters import param
from robustfl.registry import register


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

    >>> from robustfl.norms.standardised import standardised
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
