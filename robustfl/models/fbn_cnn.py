"""The CNN of the FBN paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.dropout import ClientDropout
from robustfl.models.network import Network, require
from robustfl.registry import register


@register("fbn-cnn", version=2)
@dataclass(frozen=True)
class FbnCnn(Model):
    """Four 3×3 convolutions (64, 64, 128, 128), each ReLU then norm; pool 2, dropout ¼ after the 2nd and 4th; FC 128.

    The norm comes *after* the ReLU. On 3×32×32 images and 10 classes: 1,310,922 trainable, 768 running values. Wants
    at least 4×4 pixels. Dropout masks come from the clients' generators (``begin`` on each ``ClientDropout``).

    Reference: Guerraoui, Pinot, Rizk, Stephan, Taïani, Overcoming the Challenges of Batch Normalization in Federated
    Learning, 2024, arXiv:2405.14670, Table 1.
    Notes: outputs are logits; the paper's NLL on log-softmax is cross-entropy on them.
    """

    paper: ClassVar[str] = "@guerraoui2024overcoming"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=4)
        channels, height, width = shape
        layers: list[nn.Module] = []
        for first, second in ((channels, 64), (64, 128)):
            layers += [nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), norm.layer(second)]
            layers += [nn.Conv2d(second, second, 3, padding=1), nn.ReLU(), norm.layer(second)]
            layers += [nn.MaxPool2d(2), ClientDropout(0.25)]
        features = 128 * (height // 4) * (width // 4)
        return Network(*layers, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))
