"""A small vision transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Model, Norm
from robustfl.errors import Refused, UsageError
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register


def positions(rows: int, columns: int, width: int) -> Tensor:
    """Sines and cosines of the coordinates of ``rows·columns`` patches, ``[rows·columns width]``.

    With ``q = width/4`` frequencies ``ω_i = 10000^(-i/(q-1))``: ``sin(xω), cos(xω), sin(yω), cos(yω)``.
    """
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    quarter = width // 4
    omega = 10_000.0 ** (-torch.arange(quarter, dtype=torch.float64) / max(1, quarter - 1))
    angles = [axis.flatten()[:, None].double() * omega for axis in (x, y)]
    return torch.cat([f(angle) for angle in angles for f in (torch.sin, torch.cos)], dim=1)


class _Patches(nn.Module):
    """Patches of an image as vectors ``[b tokens width]`` with their positions added."""

    positions: Tensor

    def __init__(self, channels: int, patch: int, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, patch, stride=patch)
        self.register_buffer("positions", positions(*grid, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.project(x).flatten(2).transpose(1, 2)
        return tokens + self.positions.to(tokens.dtype)


class _Block(nn.Module):
    """``x + A(LN(x))``, then ``x + M(LN(x))``: multi-head attention, and two linear layers with a GELU between."""

    def __init__(self, width: int, heads: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                vars(layer)["positions"] = tokens

    def forward(self, x: Tensor) -> Tensor:
        b, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # not torch's fused kernels, some of which add in another order every time on a GPU
        seen = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(b, tokens, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class _Mean(nn.Module):
    """The mean over tokens ``[b tokens width]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


@register("vit", version=1)
@dataclass(frozen=True)
class Vit(Model):
    """A vision transformer: patches, fixed sine-cosine positions, pre-norm blocks, LayerNorm, mean of patches, linear.

    Every block is ``x + A(LN(x))`` and ``x + M(LN(x))`` with ``heads``-head attention ``A`` and ``M`` of ``mlp`` times
    the width. Its LayerNorms are its own, so it is used with ``norm=none``. Images must be a multiple of ``patch``.
    Defaults on 3×32×32 images and 10 classes: 64 patches, 1,197,450 trainable.

    >>> Vit(patch=4, depth=2).depth
    2

    Reference: Dosovitskiy et al., An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale, ICLR
    2021, arXiv:2010.11929; mean of patches and fixed positions of Beyer, Zhai, Kolesnikov, Better plain ViT baselines
    for ImageNet-1k, 2022, arXiv:2205.01580.
    Notes: weights are torch's defaults. Attention is not dropped out. Outputs are logits.
    """

    paper: ClassVar[str] = "@dosovitskiy2021image; @beyer2022better (positions, mean over patches)"

    patch: int = param(4, ge=1, doc="height and width of a patch")
    width: int = param(128, ge=4, doc="entries of a patch's vector")
    depth: int = param(6, ge=1, doc="blocks")
    heads: int = param(4, ge=1, doc="heads of attention")
    mlp: float = param(4.0, gt=0, doc="hidden width of a block's linear layers, in widths")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads or self.width % 4:
            raise UsageError(f"Vit: width={self.width} must be a multiple of heads={self.heads} and of 4")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=self.patch)
        channels, height, width = shape
        if height % self.patch or width % self.patch:
            raise Refused(f"vit: images of {height}×{width} pixels are no multiple of patch={self.patch}")
        grid, hidden = (height // self.patch, width // self.patch), math.ceil(self.mlp * self.width)
        blocks = [_Block(self.width, self.heads, hidden, math.prod(grid)) for _ in range(self.depth)]
        patches = _Patches(channels, self.patch, self.width, grid)
        return Network(patches, *blocks, nn.LayerNorm(self.width), _Mean(), nn.Linear(self.width, classes))
