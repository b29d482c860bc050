"""A3FL: a trigger that is fitted to the received model, and to one that unlearns it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from robustfl.parameters import param
from robustfl.registry import register

from .backdoors import Backdoor, fits
from .poisoning import check_images

_MOMENTUM, _DECAY = 0.9, 5e-4
"""Of the steps that unlearn, as in the authors' code."""


@register("a3fl", version=1)
@dataclass(frozen=True)
class A3FL(Backdoor):
    """The attackers fit the pixels of a square to the received model, so that it survives a model that unlearns it.

    Every round, before they train on stamped batches as in ``badnets``, ``steps`` times

        δ ← clip_[0,1](δ - α sign ∇_δ [L(x ⊕ δ, target; θ_t) + λ sim(θ', θ_t) L(x ⊕ δ, target; θ')])

    with the cosine similarity ``sim`` of all parameters, and ``θ'`` the received model ``θ_t`` after ``adv_epochs``
    steps on ``x ⊕ δ`` with the right labels: how the others would train against the trigger. ``δ`` goes on from the
    round before, from grey at first; tests carry the last one. A square of a few pixels can do little to a model that
    has not learnt it, so it does more beside ``model-replacement`` and late in training.

    Args:
        target: class ≥ 0 that stamped images are given; 0.
        fraction: share ``ρ`` of a batch in (0, 1]; 1/4, the source's.
        size: side ≥ 1 of the square in pixels; 3, so that it fits 8 × 8 images (the source: 5 on CIFAR-10).
        margin: pixels ≥ 0 between it and the upper left corner; 0 (the source: 2).
        steps: steps ≥ 1 of the trigger a round; 10 (the source: 200 passes over all data).
        trigger_lr: step ``α`` > 0 in pixels; 0.01.
        noise_loss_lambda: ``λ`` ≥ 0; 0.01.
        adv_epochs: steps ≥ 1 that unlearn; 5.
        adv_lr: their rate > 0; 0.01.

    Reference: Zhang, Jia, Chen, Lin, Wu, A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning, NeurIPS
    2023 (no arXiv version). Deviations: all attackers of a round fit one trigger to a batch of each, in whole batches,
    where each of the source goes over its data in small ones; the model that unlearns is in evaluation mode.

    >>> A3FL(size=1).trigger(torch.ones(1, 1, 2, 2)).flatten().tolist()
    [0.5, 1.0, 1.0, 1.0]
    """

    paper: ClassVar[str] = "@zhang2023a3fl"
    cost: ClassVar[str] = "steps · (adv_epochs + 2) gradients of a batch of each attacker, and the stamps"
    adapts: ClassVar[bool] = True
    patch: ClassVar[Tensor | None] = None

    target: int = param(0, ge=0, doc="the class that stamped images are given")
    fraction: float = param(0.25, gt=0.0, le=1.0, doc="share of every batch that is stamped")
    size: int = param(3, ge=1, doc="side of the square in pixels")
    margin: int = param(0, ge=0, doc="pixels between the square and the upper left corner")
    steps: int = param(10, ge=1, doc="steps of the trigger a round")
    trigger_lr: float = param(0.01, gt=0.0, lt=math.inf, doc="step of the trigger in pixels")
    noise_loss_lambda: float = param(0.01, ge=0.0, lt=math.inf, doc="weight of the model that unlearns")
    adv_epochs: int = param(5, ge=1, doc="steps that unlearn")
    adv_lr: float = param(0.01, gt=0.0, lt=math.inf, doc="rate of the steps that unlearn")

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, *, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        received = {name: p.detach() for name, p in model.named_parameters()}
        wanted = torch.full_like(y, self.target)
        patch = self.adapted(state)._patch(x)
        for _ in range(self.steps):
            patch = patch.detach().requires_grad_()
            stamped = self._stamped(x, patch)
            loss = F.cross_entropy(model(stamped), wanted)
            if self.noise_loss_lambda > 0:
                other = self._unlearnt(model, received, stamped.detach(), y)
                weight = self.noise_loss_lambda * _similarity(other, received)
                loss = loss + weight * F.cross_entropy(functional_call(model, other, (stamped,)), wanted)
            (slope,) = torch.autograd.grad(loss, patch)
            patch = (patch.detach() - self.trigger_lr * slope.sign()).clamp(0, 1)
        return {"patch": patch}

    def _unlearnt(self, model: nn.Module, received: Mapping[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The parameters after steps of SGD, from those received, on images ``x`` with their right labels."""
        theta = {name: p.clone().requires_grad_() for name, p in received.items()}
        optimizer = torch.optim.SGD(theta.values(), lr=self.adv_lr, momentum=_MOMENTUM, weight_decay=_DECAY)
        for _ in range(self.adv_epochs):
            optimizer.zero_grad()
            loss = F.cross_entropy(functional_call(model, theta, (x,)), y)
            loss.backward(inputs=list(theta.values()))  # type: ignore[no-untyped-call]
            optimizer.step()
        return {name: p.detach() for name, p in theta.items()}

    def adapted(self, state: Mapping[str, Tensor]) -> A3FL:
        made = copy(self)
        vars(made).update({"patch": state["patch"]} if "patch" in state else {})
        return made

    def _patch(self, x: Tensor) -> Tensor:
        """The pixels ``[C k k]`` of the square on images ``x [b C H W]``."""
        grey = x.new_full((x.shape[1], self.size, self.size), 0.5)
        return grey if self.patch is None else self.patch.to(x)

    def _stamped(self, x: Tensor, patch: Tensor) -> Tensor:
        height, width = check_images(x, self)
        fits(self.name, (self.size + self.margin,) * 2, (height, width))
        after = self.size + self.margin
        frame = (self.margin, width - after, self.margin, height - after)
        mask = F.pad(torch.ones_like(patch), frame)
        return x * (1 - mask) + F.pad(patch, frame)

    def trigger(self, x: Tensor) -> Tensor:
        check_images(x, self)
        return self._stamped(x, self._patch(x))


def _similarity(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """The cosine similarity of all parameters together."""
    a, b = (torch.cat([values[name].flatten() for name in one]) for values in (one, other))
    return F.cosine_similarity(a, b, dim=0)
