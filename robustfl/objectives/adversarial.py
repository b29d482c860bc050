"""Adversarial training: with PGD, for free, on affine changes (FedRob), beside pseudo-noise (FedRBN)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import Objective, Task
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, through
from robustfl.errors import Refused
from robustfl.gradients import evaluating
from robustfl.parameters import param
from robustfl.registry import register


def descended(loss: Tensor) -> Tensor:
    """Backward of a loss, which is returned without its graph."""
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def clean_and_adversarial(model: nn.Module, x: Tensor, y: Tensor, task: Task, weight: float) -> Tensor:
    """Backward of ``(1-w) ℓ(f_c(x)) + w ℓ(f_a(x_adv))``; the loss."""
    with through(model, CLEAN):
        clean = F.cross_entropy(model(x), y)
    with through(model, ADVERSARIAL):
        perturbed = task.evasion.perturb(model, x, y, generator=task.generator)
        adversarial = F.cross_entropy(model(perturbed), y)
    return descended((1 - weight) * clean + weight * adversarial)


def clean_only(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Backward of ``ℓ(f_c(x))``; the loss."""
    with through(model, CLEAN):
        loss = F.cross_entropy(model(x), y)
    return descended(loss)


@register("at", version=1)
@dataclass(frozen=True)
class AdversarialTraining(Objective):
    """AT users: ``(1-w) ℓ(f_c(x)) + w ℓ(f_a(x_adv))``, half and half by default; ST users: ``ℓ(f_c(x))``.

    ``x_adv`` comes from the scenario's ``train_evasion`` through the adversarial branch in evaluation mode; models
    without branches have one for both. With ``naive-bn`` this is FATAvg (FATProx with ``fedprox``, FATMeta with
    ``fedmeta``), with ``fedbn`` FATBN, with ``dual-bn`` FATAvg+DBN. Few AT users among many hardly help the rest.

    Args:
        weight: w in [0, 1] of the adversarial loss.

    Reference: Zizzo et al., FAT: Federated Adversarial Training, 2020, arXiv:2012.01791, as compared with in Hong et
    al., Federated Robustness Propagation: Sharing Adversarial Robustness in Heterogeneous Federated Learning, AAAI
    2023, arXiv:2106.10196.

    >>> AdversarialTraining().weight
    0.5
    """

    paper: ClassVar[str] = "@hong2023federated (baselines FAT*)"
    recordable: ClassVar[bool] = True
    needs_adversaries: ClassVar[bool] = True

    weight: float = param(0.5, ge=0.0, le=1.0, doc="share of the adversarial loss")

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        if task.adversarial:
            return clean_and_adversarial(model, x, y, task, self.weight)
        return clean_only(model, x, y)


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
        legacy_digits_clip: the threat model of the Digits code released with Hong et al., as ``pgd`` has it: images
            as 2x - 1, clipped to [0, 1], ε and α in that unit, half as long in pixels.

    Reference: Shafahi et al., Adversarial Training for Free!, NeurIPS 2019, arXiv:1904.12843, Algorithm 1.

    >>> FreeAdversarialTraining().replays
    4
    """

    paper: ClassVar[str] = "@shafahi2019adversarial"
    recordable: ClassVar[bool] = True
    needs_adversaries: ClassVar[bool] = True
    asks_evasion: ClassVar[bool] = False
    trains_clean: ClassVar[bool] = False

    replays_per_batch: int = param(4, ge=1, doc="m, local steps on every batch")
    eps: float = param(4 / 255, ge=0.0, doc="ε, bound on the noise in pixel units")
    step: float = param(4 / 255, ge=0.0, doc="α, step of the noise in pixel units")
    legacy_digits_clip: bool = param(False, doc="train on 2x - 1 clipped to [0, 1] (released Digits code)", later=True)

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
        low, high, unit = (0.5, 1.0, 0.5) if self.legacy_digits_clip else (0.0, 1.0, 1.0)
        inputs = (x + unit * part).clamp(low, high).requires_grad_(True)
        with through(model, ADVERSARIAL):
            loss = F.cross_entropy(model(inputs), y)
        loss.backward()  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        moved = (part + self.step * inputs.grad.sign()).clamp(-self.eps, self.eps)
        task.notes["noise"] = torch.cat([moved, noise[len(x) :]])
        return loss.detach()


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
