"""Losses that attacks climb besides the cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from robustfl.errors import UsageError

_TINY = 1e-12


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio ``-(z_y - max_{i≠y} z_i) / (z_(1) - z_(3))`` of each sample ``[b]``.

    Unlike the cross-entropy it does not change when the logits are shifted or scaled, so no model hides behind large
    ones. Positive where the sample is misclassified. Raises ``UsageError`` for fewer than 3 classes.

    Reference: Croce, Hein, Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks, ICML 2020, arXiv:2003.01690, equation 6.

    >>> dlr(torch.tensor([[4.0, 1.0, 2.0]]), torch.tensor([0])).round(decimals=3)
    tensor([-0.6670])
    """
    _require(logits, 3)
    ranked = logits.topk(3, dim=1).values
    return -margin(logits, y) / (ranked[:, 0] - ranked[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """``-(z_y - z_t) / (z_(1) - ½(z_(3) + z_(4)))`` of each sample ``[b]``; equation 7 there.

    Raises ``UsageError`` for fewer than 4 classes.
    """
    _require(logits, 4)
    ranked = logits.topk(4, dim=1).values
    return -(_at(logits, y) - _at(logits, target)) / (ranked[:, 0] - (ranked[:, 2] + ranked[:, 3]) / 2 + _TINY)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """``z_y - max_{i≠y} z_i`` of each sample ``[b]``: negative where it is misclassified."""
    return _at(logits, y) - others(logits, y).amax(1)


def others(logits: Tensor, y: Tensor) -> Tensor:
    """The logits with -∞ in place of the class ``y``."""
    return logits.scatter(1, y[:, None], -torch.inf)


def _at(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None]).squeeze(1)


def _require(logits: Tensor, classes: int) -> None:
    if logits.shape[1] < classes:
        raise UsageError(f"this difference of logits ratio needs at least {classes} classes, not {logits.shape[1]}")
