"""The form of every network: layers one after another, the last linear one of which classifies."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


class Network(nn.Sequential):
    """Layers one after another; entries are named as in any ``nn.Sequential``.

    ``released`` gives the names that released weights have for the layers, where these differ.
    """

    def __init__(self, *layers: nn.Module, released: Mapping[str, str] | None = None) -> None:
        super().__init__(*layers)
        self.released = dict(released or {})

    @property
    def classifier(self) -> nn.Linear:
        """The linear layer that makes the logits; what it receives is the representation.

        It is found anew, because a norm's ``adapt`` may put it inside another module.
        """
        return [m for m in self.modules() if isinstance(m, nn.Linear)][-1]
