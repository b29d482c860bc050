"""Projected gradient descent in the L∞ ball (SPEC §5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.parameters import check, param
from robustfl.randomness import stream
from robustfl.registry import register

from .whitebox import check_pixels, frozen, input_gradient


@register("pgd", version=1)
@dataclass(frozen=True)
class PGD(Evasion):
    """Signed gradient ascent on the cross-entropy, projected after every step:

    ``x_0 = clip_[0,1](x + U(-ε, ε))``, ``x ← clip_[0,1](clip_ε(x + α sign ∇CE))``.

    Misled by vanishing or masked gradients: a model that looks robust here need not be.

    Args:
        eps: radius ε ≥ 0 of the L∞ ball in pixel units of [0, 1]; 8/255 as in Hong et al. 2023.
        steps: iterations n ≥ 1; 7 there.
        step: step size α ≥ 0; None takes ``step_rule``, which follows ε.
        step_rule: ``paper`` is ε/4, which is 2/255 at the paper's ε of 8/255; ``released`` is that of the code
            released with Hong et al., ``min(1.25ε, ε + 4/255) / n``.
        random_start: start uniformly in the ball instead of at the image.
        restarts: random starts per image; the one of highest loss is kept.
        keep: ``last`` iterate, or the ``best`` (highest loss) on the way.

    Reference: Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018,
    arXiv 1706.06083, Section 2.1.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> PGD(eps=0.1, step=0.05, random_start=False).perturb(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor([[0.4000, 0.6000]])
    """

    paper: ClassVar[str] = (
        "Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018, arXiv 1706.06083"
    )
    spec: ClassVar[str] = "§5.1"

    eps: float = param(8 / 255, ge=0.0, doc="radius of the L∞ ball in pixel units")
    steps: int = param(7, ge=1, doc="iterations")
    step: float | None = param(None, ge=0.0, doc="step size; None takes step_rule")
    step_rule: str = param("paper", choices=("paper", "released"), doc="ε/4, or the released one, when step is None")
    random_start: bool = param(True, doc="start uniformly in the ball")
    restarts: int = param(1, ge=1, doc="random starts; the highest loss wins")
    keep: str = param("last", choices=("last", "best"), doc="which iterate to return")

    def __post_init__(self) -> None:
        check(self)
        if self.restarts > 1 and not self.random_start:
            raise UsageError(f"PGD: restarts={self.restarts} without random_start would repeat one run")

    @property
    def step_size(self) -> float:
        """α."""
        if self.step is not None:
            return self.step
        return released_step(self.eps, self.steps) if self.step_rule == "released" else self.eps / 4

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        check_pixels(x, self.name)
        if generator is None:
            generator = stream(0, "pgd", device=x.device)
        best, best_loss = x, None
        with frozen(model):
            for _ in range(self.restarts):
                start = self._start(x, generator)
                found = ascend(
                    model, x, y, eps=self.eps, step=self.step_size, steps=self.steps, start=start, keep=self.keep
                )
                if self.restarts == 1:
                    return found
                loss = _losses(model, found, y)
                if best_loss is None:
                    best, best_loss = found, loss
                else:
                    best, best_loss = _keep_higher(best, best_loss, found, loss)
        return best

    def _start(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if not self.random_start:
            return x
        noise = torch.empty(x.shape, dtype=x.dtype, device=generator.device)
        return x + noise.uniform_(-self.eps, self.eps, generator=generator).to(x.device)


def released_step(eps: float, steps: int) -> float:
    """``min(1.25ε, ε + 4/255) / n``."""
    return min(1.25 * eps, eps + 4 / 255) / steps


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
) -> Tensor:
    """The PGD iteration from ``start`` (default ``x``) on a model that is already ``frozen``."""
    low, high = (x - eps).clamp_(0.0, 1.0), (x + eps).clamp_(0.0, 1.0)
    current = (x if start is None else start).clamp(0.0, 1.0).detach()
    best, best_loss = current, None
    for _ in range(steps):
        gradient, loss = input_gradient(model, current, y)
        if keep == "best":
            best, best_loss = (current, loss) if best_loss is None else _keep_higher(best, best_loss, current, loss)
        moved = torch.add(current, gradient.sign_(), alpha=step)
        current = torch.minimum(torch.maximum(moved, low, out=moved), high, out=moved)
    if keep == "last" or best_loss is None:
        return current
    return _keep_higher(best, best_loss, current, _losses(model, current, y))[0]


def _losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y, reduction="none")


def _keep_higher(old: Tensor, old_loss: Tensor, new: Tensor, new_loss: Tensor) -> tuple[Tensor, Tensor]:
    """Per sample the input of the higher loss, the older one on a tie."""
    better = new_loss > old_loss
    return torch.where(better.view(-1, *(1,) * (old.dim() - 1)), new, old), torch.maximum(old_loss, new_loss)
