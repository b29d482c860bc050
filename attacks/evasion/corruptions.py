"""Common corruptions: noise, blur and changes of light, which look at no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import Evasion
from robustfl.parameters import param
from robustfl.randomness import stream
from robustfl.registry import register

from .whitebox import check_images, check_pixels

Corrupted = Callable[[Tensor, float, torch.Generator], Tensor]


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(x, device=generator.device).normal_(generator=generator).to(x.device)


def _uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(x, device=generator.device).uniform_(generator=generator).to(x.device)


def _poisson(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.poisson(x.to(generator.device), generator=generator).to(x.device)


def _impulses(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    hit, white = _uniform(x, generator) < share, _uniform(x, generator) < 0.5
    return torch.where(hit, white.to(x.dtype), x)


def _brighter(x: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """The value V of HSV, the largest channel, raised at the same hue and saturation."""
    del generator
    value = x.amax(1, keepdim=True)
    raised = (value + by).clamp(max=1.0)
    return torch.where(value > 0, x * (raised / value.clamp_min(torch.finfo(x.dtype).tiny)), raised)


def _blurred(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """A Gaussian filter cut off at four standard deviations; pixels beyond the border are those of the border."""
    del generator
    radius, channels = int(4 * sigma + 0.5), x.shape[1]
    places = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    weights = torch.exp(-0.5 * (places / sigma) ** 2)
    kernel = (weights / weights.sum()).expand(channels, 1, -1)
    wide = F.pad(x, (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(wide, kernel[:, :, None, :], groups=channels), kernel[..., None], groups=channels)


CORRUPTIONS: dict[str, tuple[tuple[float, ...], Corrupted]] = {
    "gaussian-noise": ((0.04, 0.06, 0.08, 0.09, 0.10), lambda x, c, g: x + c * _normal(x, g)),
    "shot-noise": ((500, 250, 100, 75, 50), lambda x, c, g: _poisson(c * x, g) / c),
    "impulse-noise": ((0.01, 0.02, 0.03, 0.05, 0.07), _impulses),
    "speckle-noise": ((0.06, 0.10, 0.12, 0.16, 0.20), lambda x, c, g: x + c * x * _normal(x, g)),
    "gaussian-blur": ((0.4, 0.6, 0.7, 0.8, 1.0), _blurred),
    "brightness": ((0.05, 0.10, 0.15, 0.20, 0.30), _brighter),
    "contrast": ((0.75, 0.50, 0.40, 0.30, 0.15), lambda x, c, g: torch.lerp(x.mean((2, 3), keepdim=True), x, c)),
}
"""Per type the numbers of the severities 1 to 5 for CIFAR-10, and what they do to pixels before these are clipped."""


@register("corruption", version=1)
@dataclass(frozen=True)
class Corruption(Evasion):
    """A common corruption of CIFAR-10-C, clipped to [0, 1]; it looks at neither model nor label.

    ``gaussian-noise``: ``x + N(0, c²)``. ``shot-noise``: ``Poisson(c·x)/c``. ``impulse-noise``: a share c of entries
    becomes 0 or 1. ``speckle-noise``: ``x + x·N(0, c²)``. ``gaussian-blur``: standard deviation c, in pixels.
    ``brightness``: c is added to the value of HSV. ``contrast``: ``(x - m)·c + m`` with each channel's mean m.

    Args:
        type: the corruption.
        severity: 1 (mild) to 5 (strong), c as for CIFAR-10; larger images suffer less from the same noise and blur.

    Reference: Hendrycks, Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations,
    ICLR 2019, arXiv:1903.12261, and their released code for CIFAR-10-C.
    Notes: pixels are not cut down to bytes, as those of the released data set are. Its other types need images of frost
    or draws of other libraries, and are left out.

    >>> x, y = torch.tensor([[[[0.2, 0.6]]]]), torch.tensor([0])
    >>> Corruption(type="contrast", severity=2).perturb(nn.Identity(), x, y)
    tensor([[[[0.3000, 0.5000]]]])
    """

    paper: ClassVar[str] = "@hendrycks2019benchmarking"
    cost: ClassVar[str] = "no pass through the model"
    adversarial: ClassVar[bool] = False

    type: str = param("gaussian-noise", choices=tuple(CORRUPTIONS), doc="the corruption")
    severity: int = param(3, ge=1, le=5, doc="strength")

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        check_images(x, self.name)
        check_pixels(x, self.name)
        strengths, corrupted = CORRUPTIONS[self.type]
        draws = generator or stream(0, self.name, device=x.device)
        with torch.no_grad():
            return corrupted(x.detach(), strengths[self.severity - 1], draws).clamp(0.0, 1.0)
