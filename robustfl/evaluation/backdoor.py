"""The success rate of a backdoor."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from robustfl.contracts import Attack
from robustfl.errors import UsageError
from robustfl.evaluation.accuracy import Pixels
from robustfl.passes import evaluating, right


def attack_success(model: nn.Module, pixels: Pixels, labels: Tensor, attack: Attack, *, batch: int) -> float:
    """The share of images of other classes that the model takes for ``attack.target`` once they carry the trigger.

    ``pixels(index)`` gives the images ``[b C H W]`` in [0, 1] for ``labels[index]``. Images of the target class are
    left out, since they would count as success without any backdoor; NaN if there are no others. Logits with NaN are no
    answer. Evaluation mode; the model's mode is as before afterwards. Raises ``UsageError`` for an attack without a
    trigger.
    """
    if not attack.triggers or attack.target is None:
        raise UsageError(f"attack {attack.name!r} has no trigger, so there is no backdoor to measure")
    others = torch.nonzero(labels != attack.target).flatten()
    fooled = 0
    with evaluating(model), torch.no_grad():
        for index in torch.split(others, batch):
            logits = model(attack.trigger(pixels(index)))
            fooled += int(right(logits, torch.full((len(index),), attack.target, device=logits.device)).sum())
    return fooled / len(others) if len(others) else math.nan
