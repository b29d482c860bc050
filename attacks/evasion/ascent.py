"""The signed (or normalised) gradient ascent of PGD, apart from what PGD does around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .balls import directions, into_ball
from .whitebox import channels_last, cross_entropy, input_gradient, logits_of, per_image


def ascend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    step: float,
    steps: int,
    start: Tensor | None = None,
    keep: str = "last",
    norm: str = "linf",
    targeted: bool = False,
    pixels: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """The PGD iteration from ``start`` (default ``x``) on a model that is already ``frozen``.

    ``targeted``: ``y`` are the classes to go to; ``pixels`` is the range the iterates are clipped to. ``keep="best"``
    returns the iterate of the highest loss (targeted: the lowest), ``last`` the last.
    """
    current = x.detach() if start is None else start.detach().clamp(*pixels)
    current = channels_last(current)
    low, high = (x - eps).clamp_(*pixels), (x + eps).clamp_(*pixels)
    alpha = -step if targeted else step
    best, best_loss = current, None
    for _ in range(steps):
        gradient, loss = input_gradient(model, current, y)
        if keep == "best":
            loss = -loss if targeted else loss
            best, best_loss = (current, loss) if best_loss is None else keep_higher(best, best_loss, current, loss)
        if norm == "linf":
            moved = torch.add(current, gradient.sign_(), alpha=alpha)
            current = torch.minimum(torch.maximum(moved, low, out=moved), high, out=moved)
        else:
            moved = torch.add(current, directions(gradient, norm), alpha=alpha)
            current = into_ball(x, moved, eps, norm, *pixels)
    if keep == "last" or best_loss is None:
        return current
    last = losses_of(model, current, y)
    return keep_higher(best, best_loss, current, -last if targeted else last)[0]


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy per sample ``[b]`` without autograd."""
    return cross_entropy(logits_of(model, x), y)


def keep_higher(old: Tensor, old_loss: Tensor, new: Tensor, new_loss: Tensor) -> tuple[Tensor, Tensor]:
    """Per sample the input of the higher loss, the older one on a tie."""
    return torch.where(per_image(new_loss > old_loss, old), new, old), torch.maximum(old_loss, new_loss)
