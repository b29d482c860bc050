"""The form of every network: layers one after another, the last linear one of which classifies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from robustfl.errors import Refused


class Network(nn.Sequential):
    """Layers one after another; entries are named as in any ``nn.Sequential``.

    ``released`` gives the names that released weights have for the layers, where these differ.
    """

    def __init__(self, *layers: nn.Module, released: Mapping[str, str] | None = None) -> None:
        super().__init__(*layers)
        self.released = dict(released or {})


def require(model: str, shape: tuple[int, int, int], classes: int, *, least: int = 1) -> None:
    """Refuse images smaller than ``least`` on a side, and fewer than two classes."""
    channels, height, width = shape
    if channels < 1 or min(height, width) < least:
        raise Refused(
            f"model {model!r} needs images [C H W] of at least {least}×{least} pixels; this data set has {shape}"
        )
    if classes < 2:
        raise Refused(f"model {model!r} needs at least 2 classes; this data set has {classes}")


def classifier(model: nn.Module) -> nn.Linear:
    """The last linear layer of any model, which makes the logits; raises ``Refused`` where there is none.

    It is found anew every time, because a norm's ``adapt`` may put it inside another module.
    """
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise Refused(f"{type(model).__name__} has no linear layer, so its representation is unknown")
    return linear[-1]


@contextmanager
def representing(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within, what the classifier receives in each forward is kept, ``[b k]``: the representation of the inputs."""
    seen: list[Tensor] = []
    last = classifier(model)
    handle = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(1).to(last.weight.dtype)))
    try:
        yield seen
    finally:
        handle.remove()
