"""No normalization at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Norm
from robustfl.registry import register


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
        """The identity."""
        del channels
        return nn.Identity()
