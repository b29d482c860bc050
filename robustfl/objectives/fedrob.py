"""FedRob: training on the worst affine change of the images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import Objective, Task
from robustfl.contracts.norm import ADVERSARIAL, through
from robustfl.errors import Refused
from robustfl.gradients import evaluating
from robustfl.objectives.adversarial import clean_only, descended
from robustfl.parameters import param
from robustfl.registry import register

_LARGEST = 4096  # pixels; the map has their square entries


@register("fedrob", version=1)
@dataclass(frozen=True)
class FedRob(Objective):
    """AT users train on ``Λx + δ``, the affine map that makes the batch worst under a penalty:

    ``max_{Λ,δ} ℓ(f(Λx + δ)) - λ(‖Λ - I‖² + ‖δ‖²)`` by ascent steps of ``1/(2λ)`` from the identity; ``ℓ`` is the mean
    over the batch, of whose sum the steps would be ``b`` times as long. ST users train on clean inputs. It guards
    against shifts common to a batch, hardly against perturbations made for each image.

    Args:
        lam: λ > 0, weight of the penalty.
        steps: ascent steps ≥ 1.

    Reference: Reisizadeh et al., Robust Federated Learning: The Case of Affine Distribution Shifts, NeurIPS 2020,
    arXiv:2006.08907, Algorithm 1. The code released with Hong et al. takes the mean too; it starts at Λ = 0, which
    erases the image, and goes on from one batch to the next. Here every batch starts at the identity.

    >>> FedRob().ascent
    0.05
    """

    paper: ClassVar[str] = "@reisizadeh2020robust"
    recordable: ClassVar[bool] = True
    needs_adversaries: ClassVar[bool] = True
    asks_evasion: ClassVar[bool] = False
    trains_clean: ClassVar[bool] = False

    lam: float = param(10.0, gt=0.0, doc="λ, weight of the penalty")
    steps: int = param(2, ge=1, doc="ascent steps")

    @property
    def ascent(self) -> float:
        """The step ``1/(2λ)``, with which the penalty pulls all the way back to the identity."""
        return 1 / (2 * self.lam)

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        if not task.adversarial:
            return clean_only(model, x, y)
        pixels = x[0].numel()
        if pixels > _LARGEST:
            raise Refused(
                f"fedrob: images of {pixels} values need a map of {pixels}² entries; at most {_LARGEST} values"
            )
        flat = x.reshape(len(x), pixels)
        extra = torch.zeros((pixels, pixels), dtype=x.dtype, device=x.device)  # Λ - I
        shift = torch.zeros(pixels, dtype=x.dtype, device=x.device)
        trained = [p for p in model.parameters() if p.requires_grad]
        try:
            for p in trained:
                p.requires_grad_(False)
            for _ in range(self.steps):
                moved = (flat + flat @ extra.T + shift).requires_grad_(True)
                with evaluating(model), through(model, ADVERSARIAL):
                    (gradient,) = torch.autograd.grad(F.cross_entropy(model(moved.view(x.shape)), y), moved)
                # Λ - I + (∇ - 2λ(Λ - I))/(2λ) leaves ∇/(2λ).
                extra, shift = gradient.T @ flat * self.ascent, gradient.sum(0) * self.ascent
        finally:
            for p in trained:
                p.requires_grad_(True)
        with through(model, ADVERSARIAL):
            loss = F.cross_entropy(model((flat + flat @ extra.T + shift).view(x.shape)), y)
        return descended(loss)
