"""FedRBN's user step: adversarial training, and pseudo-noise calibration where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import Objective, Task
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, through
from robustfl.objectives.adversarial import clean_and_adversarial, clean_only, descended
from robustfl.parameters import param
from robustfl.registry import register


def shorten(gradients: Sequence[Tensor], bound: float) -> None:
    """Scale gradients, in place and all alike, so that together they are no longer than ``bound``."""
    norm = torch.stack([g.norm() for g in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(bound / norm.clamp(min=bound))


@register("pnc", version=1)
@dataclass(frozen=True)
class PseudoNoiseCalibration(Objective):
    """AT users: ``½(ℓ(f_c(x)) + ℓ(f_a(x_adv)))``. ST users: ``(1-λ) ℓ(f_c(x)) + λ ℓ(f_a(x))``.

    For ST users the adversarial branch is that propagated to them, with statistics frozen, so that clean inputs look
    like noise there. It needs branches (``dual-bn(local=true)``) and a propagation: without one the branch holds
    (0, 1) and teaches nothing.

    Args:
        lam: λ in [0, 1]; 0.5 in the paper. With 0 ST users train on clean inputs only.
        clip: bound on the norm of the second term's gradient, over all parameters; None switches clipping off.
        warmup: rounds at the start in which λ is 0; 10 are the rounds 0 to 9. The released code compares ``round > 10``
            and takes eleven, which is ``warmup=11`` here.

    Reference: Hong et al., Federated Robustness Propagation: Sharing Adversarial Robustness in Heterogeneous Federated
    Learning, AAAI 2023, arXiv:2106.10196, equation 4; clipping and warm-up are on by default as in the released code.

    >>> shorten(gradients := [torch.tensor([15.0, 20.0])], 10.0)
    >>> gradients[0].round(decimals=3)
    tensor([6., 8.])
    """

    paper: ClassVar[str] = "@hong2023federated"
    recordable: ClassVar[bool] = True
    needs_adversaries: ClassVar[bool] = True
    needs_branches: ClassVar[bool] = True

    lam: float = param(0.5, ge=0.0, le=1.0, doc="λ, share of the calibration loss of ST users")
    clip: float | None = param(10.0, gt=0.0, doc="bound on the norm of its gradient")
    warmup: int = param(10, ge=0, doc="rounds with λ = 0 at the start")

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        if task.adversarial:
            return clean_and_adversarial(model, x, y, task, 0.5)
        if self.lam == 0.0 or task.round < self.warmup:
            return clean_only(model, x, y)
        with through(model, CLEAN):
            clean = (1 - self.lam) * F.cross_entropy(model(x), y)
        with through(model, ADVERSARIAL, frozen=True):
            noisy = self.lam * F.cross_entropy(model(x), y)
        loss = clean + noisy
        if self.clip is None:
            return descended(loss)
        noisy.backward()  # type: ignore[no-untyped-call]
        shorten([p.grad for p in model.parameters() if p.grad is not None], self.clip)
        clean.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
