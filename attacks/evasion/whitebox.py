"""White-box access to a model without side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustfl.errors import UsageError
from robustfl.gradients import channels_last, evaluating


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode with weight gradients off; mode and flags come back, also after an exception.

    Without weight gradients a backward pass stops at the layers' inputs, which saves about a third of its time.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model):
        try:
            for parameter in trained:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)


def gradient_of(model: nn.Module, x: Tensor, losses: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient with respect to ``x`` of the sum of ``losses(logits) [b]``, the losses and the logits ``[b c]``.

    The sum keeps samples apart: each one's gradient is that of its own loss, whatever the batch.
    """
    with torch.inference_mode(False), torch.enable_grad():
        variable = x.detach().clone().requires_grad_(True)
        logits = model(variable.clone())  # a model may write to its input, and autograd allows no writing to a leaf
        each = losses(logits)
        found = torch.autograd.grad(each.sum(), variable, allow_unused=True)[0] if each.requires_grad else None
        if found is None:
            raise UsageError(
                "the model's outputs do not depend on its inputs for autograd (no_grad, detach, numpy?): there is no "
                "gradient to follow; square and lsa need none"
            )
        gradient: Tensor = found
        if 0 in gradient.stride():  # of a sum over pixels: one entry stands for many, and attacks work in place
            gradient = gradient.clone()
    return gradient, each.detach(), logits.detach()


def input_gradient(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the summed cross-entropy with respect to ``x`` and the loss per sample ``[b]``."""
    gradient, losses, _ = gradient_of(model, x, lambda logits: cross_entropy(logits, y))
    return gradient, losses


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each sample ``[b]``."""
    return nn.functional.cross_entropy(logits, y, reduction="none")


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """Logits ``[b c]`` without autograd."""
    with torch.no_grad():
        output: Tensor = model(x.clone())  # a model may write to its input
    return output


def take(x: Tensor, rows: Tensor) -> Tensor:
    """The images ``x[rows]``, channels innermost."""
    return channels_last(x.index_select(0, rows))


def per_image(values: Tensor, x: Tensor) -> Tensor:
    """``values [b]`` in a shape that broadcasts over the images ``x``."""
    return values.view(-1, *(1,) * (x.dim() - 1))


def check_pixels(x: Tensor, attack: str) -> None:
    """Raise ``UsageError`` unless ``x`` is floating-point with values in [0, 1]."""
    if not x.is_floating_point():
        raise UsageError(f"{attack}: inputs of dtype {x.dtype} must be floating-point pixels in [0, 1]")
    if x.numel() and not (float(x.min()) >= 0.0 and float(x.max()) <= 1.0):  # false for NaN too
        raise UsageError(
            f"{attack}: inputs reach from {float(x.min()):g} to {float(x.max()):g}; attacks work on pixels in [0, 1], "
            "so put the normalization into the model"
        )


def check_labels(x: Tensor, y: Tensor, attack: str) -> None:
    """Raise ``UsageError`` unless there is one whole number per input."""
    if y.dim() != 1 or len(y) != len(x) or y.is_floating_point() or y.dtype == torch.bool:
        raise UsageError(
            f"{attack}: labels of shape {tuple(y.shape)} and dtype {y.dtype} must be {len(x)} class numbers, one per "
            "input"
        )


def check_images(x: Tensor, attack: str) -> None:
    """Raise ``UsageError`` unless ``x`` has the axes of images."""
    if x.dim() != 4:
        raise UsageError(f"{attack}: inputs of shape {tuple(x.shape)} must be images [b C H W]")
