"""The form of every network, and dropout whose masks come from one named stream per client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustfl.errors import Refused, RobustflError, UsageError


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


class ClientDropout(nn.Module):
    """Inverted dropout with probability ``p``; in training it needs ``begin`` first.

    The batch holds the samples of ``len(generators)`` clients one after another, ``sizes`` of each (``None``: one
    client, all samples). Each client's mask is drawn from its own generator, so masks do not depend on who else is
    in the batch. Where ``masks`` is set it says which booleans to keep, for an input of this layer and shape.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UsageError(f"ClientDropout: p={p!r} must be ≥ 0, < 1")
        self.p = p
        self.sizes: tuple[int, ...] | None = None
        self.generators: tuple[torch.Generator, ...] = ()
        self.masks: Callable[[ClientDropout, torch.Size], Tensor] | None = None

    def begin(self, sizes: tuple[int, ...] | None, generators: tuple[torch.Generator, ...]) -> None:
        """Set whose samples the next training forwards hold."""
        self.sizes, self.generators = sizes, generators

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if not self.generators:
            raise RobustflError("ClientDropout: begin() must name the clients' generators before a training forward")
        if self.masks is None:
            keep = self.drawn(torch.empty(x.shape, dtype=torch.bool, device=x.device))
        else:
            keep = self.masks(self, x.shape)
        scale = torch.empty_like(x, requires_grad=False).copy_(keep).div_(1.0 - self.p)
        return x * scale

    def drawn(self, keep: Tensor) -> Tensor:
        """Fill the booleans ``keep``, contiguous, with the next mask, whatever the layout of the input is."""
        sizes = self.sizes or (len(keep),)
        for part, generator in zip(torch.split(keep, list(sizes)), self.generators, strict=True):
            _draw(part, self.p, generator)
        return keep

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _draw(keep: Tensor, p: float, generator: torch.Generator) -> None:
    """Fill the booleans ``keep``, true with probability ``1 - p``; one draw makes eight where ``256 p`` is whole."""
    threshold = 256.0 * p
    if threshold != int(threshold) or keep.device.type != "cpu":
        keep.bernoulli_(1.0 - p, generator=generator)
        return
    words = torch.empty(-(-keep.numel() // 8), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    bytes_ = words.view(torch.uint8)[: keep.numel()].view(keep.shape)
    torch.ge(bytes_, int(threshold), out=keep)


def seed_dropout(network: nn.Module) -> None:
    """Replace every ``nn.Dropout`` of ``network`` by ``ClientDropout``, in place."""
    for module in network.modules():
        for name, child in list(module._modules.items()):  # with every name of a layer that has several
            if isinstance(child, nn.Dropout):
                setattr(module, name, ClientDropout(child.p))
