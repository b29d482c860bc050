"""The CNN of the bucketing paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import Model, Norm
from robustfl.models.dropout import ClientDropout
from robustfl.models.network import Network, require
from robustfl.registry import register


@register("bucketing-cnn", version=1)
@dataclass(frozen=True)
class BucketingCnn(Model):
    """3×3 convolution 32, norm, ReLU; 3×3 convolution 64, norm, pool 2, dropout ¼; FC 128, ReLU, dropout ½; FC.

    No padding, and no ReLU before the pool. On 1×28×28 images and 10 classes: 1,199,882 trainable entries besides the
    norms' 192 (norm ``none`` is the paper's), and 192 running values with batch norm. Wants at least 6×6 pixels.
    Dropout masks come from the clients' generators (``begin`` on each ``ClientDropout``).

    Reference: Karimireddy, He, Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    arXiv:2006.09365, as its authors released it.
    Notes: outputs are logits. The released first dropout drops whole maps; here it drops single values.
    """

    paper: ClassVar[str] = "@karimireddy2022byzantine"

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        require(self.name, shape, classes, least=6)
        channels, height, width = shape
        features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
        return Network(
            nn.Conv2d(channels, 32, 3), norm.layer(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3), norm.layer(64), nn.MaxPool2d(2), ClientDropout(0.25),
            nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), ClientDropout(0.5), nn.Linear(128, classes),
        )  # fmt: skip
