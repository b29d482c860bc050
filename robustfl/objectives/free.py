"""Free adversarial training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.branches import ADVERSARIAL, through
from robustfl.contracts import Objective, Task
from robustfl.objectives.adversarial import clean_only
from robustfl.parameters import param
from robustfl.registry import register


@register("free-at", version=1)
@dataclass(frozen=True)
class FreeAdversarialTraining(Objective):
    """AT users replay each batch m times; one backward gives the weights' gradient and moves the noise:

    ``loss = ℓ(f(clip_[0,1](x + δ)))``, ``δ ← clip_ε(δ + α sign ∇_x loss)``. The noise goes on from batch to batch and
    starts at zero every round. ST users train on clean inputs, once per batch. Divide the rounds by m for equal cost.
    Small m gives weak examples. A replay is a batch to the algorithm: both batches of ``fedmeta`` are the same where m
    is even, and both gradients of ``fedsam`` move the noise.

    Args:
        replays_per_batch: m ≥ 1.
        eps: ε ≥ 0, bound on the noise in pixel units (4/255 in the code released with Hong et al.).
        step: α ≥ 0 in pixel units.

    Reference: Shafahi et al., Adversarial Training for Free!, NeurIPS 2019, arXiv:1904.12843, Algorithm 1.

    >>> FreeAdversarialTraining().replays
    4
    """

    paper: ClassVar[str] = "@shafahi2019adversarial"
    needs_adversaries: ClassVar[bool] = True
    asks_evasion: ClassVar[bool] = False
    trains_clean: ClassVar[bool] = False

    replays_per_batch: int = param(4, ge=1, doc="m, local steps on every batch")
    eps: float = param(4 / 255, ge=0.0, doc="ε, bound on the noise in pixel units")
    step: float = param(4 / 255, ge=0.0, doc="α, step of the noise in pixel units")

    @property
    def replays(self) -> int:
        return self.replays_per_batch

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        if not task.adversarial:
            return clean_only(model, x, y)
        noise = task.notes.get("noise")
        if noise is None:
            noise = torch.zeros_like(x)
        # The last batch of an epoch may be smaller than the noise, and the first of a round than the next ones.
        if len(noise) < len(x):
            noise = torch.cat([noise, torch.zeros_like(x[len(noise) :])])
        part = noise[: len(x)]
        inputs = (x + part).clamp(0.0, 1.0).requires_grad_(True)
        with through(model, ADVERSARIAL):
            loss = F.cross_entropy(model(inputs), y)
        loss.backward()  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        moved = (part + self.step * inputs.grad.sign()).clamp(-self.eps, self.eps)
        task.notes["noise"] = torch.cat([moved, noise[len(x) :]])
        return loss.detach()
