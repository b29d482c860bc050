"""Fully connected networks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.network import Network, require
from robustfl.parameters import param
from robustfl.registry import register


@register("mlp", version=1)
@dataclass(frozen=True)
class Mlp(Model):
    """Flatten, then for each width a linear layer, norm, ReLU; a linear layer to the logits.

    28×28 images and one hidden layer of 30: 23,920 trainable, 60 running values with batch norm.

    >>> Mlp(hidden=(64, 32))
    Mlp(hidden=(64, 32))

    Reference: Wang, Shi, Chang, Why Batch Normalization Damage Federated Learning on Non-IID Data?, IEEE Transactions
    on Neural Networks and Learning Systems 2025, arXiv:2301.02982 (width confirmed by its traffic table).
    Notes: the source states no activation; ReLU after the norm is ours. Outputs are logits.
    """

    paper: ClassVar[str] = "@wang2025batch"

    hidden: tuple[int, ...] = param((30,), ge=1, doc="widths of the hidden layers")

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes)
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(shape)
        for following in self.hidden:
            layers += [nn.Linear(width, following), norm.layer(following), nn.ReLU()]
            width = following
        return Network(*layers, nn.Linear(width, classes))
