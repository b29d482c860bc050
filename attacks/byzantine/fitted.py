"""Backdoors whose triggers are fitted to the models that attackers receive: A3FL and IBA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from robustfl.parameters import param
from robustfl.randomness import stream
from robustfl.registry import register

from .backdoors import Backdoor, fits
from .poisoning import check_images

_MOMENTUM, _DECAY = 0.9, 5e-4
"""Of the steps that unlearn, as in the authors' code."""


class FittedBackdoor(Backdoor):
    """A backdoor with a trigger that ``adapt`` fits; ``fitted`` is what it returned last."""

    adapts: ClassVar[bool] = True
    fitted: ClassVar[Mapping[str, Tensor]] = {}

    def adapted(self, state: Mapping[str, Tensor]) -> Self:
        made = copy(self)
        vars(made)["fitted"] = state
        return made


@register("a3fl", version=1)
@dataclass(frozen=True)
class A3FL(FittedBackdoor):
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

    def _patch(self, x: Tensor) -> Tensor:
        """The pixels ``[C k k]`` of the square on images ``x [b C H W]``."""
        grey = x.new_full((x.shape[1], self.size, self.size), 0.5)
        return self.fitted.get("patch", grey).to(x)

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
    a, b = (torch.cat([values[name].flatten() for name in one]) for values in (one, other))
    return F.cosine_similarity(a, b, dim=0)


@register("iba", version=1)
@dataclass(frozen=True)
class IBA(FittedBackdoor):
    """The attackers train a small network that makes of every image a trigger of its own, and stamp with it.

        x → clip_[0,1](x + ε g_ξ(x)),   ξ: steps of Adam on L(clip(x + ε g_ξ(x)), target; θ_t)

    with ``g`` two convolutions of 3 × 3 and a tanh, so that no pixel moves by more than ``ε``. Every round it is
    trained on the received model ``θ_t``, and batches are changed by it. Before the model has learnt the trigger this
    is an evasion attack, which a large ``ε`` makes easy: its success without training is the one to compare with. The
    source also poisons parameters that honest clients hardly move, as ``neurotoxin(attack=iba)`` does.

    Args:
        target: class ≥ 0 that such images are given; 0.
        fraction: share ``ρ`` of a batch in (0, 1]; 0.5.
        atk_eps: ``ε`` in (0, 1], the most that a pixel moves; 0.3 as in BackFed.
        atk_lr: rate > 0 of Adam; 0.01.
        steps: steps ≥ 1 of the network a round; 10.
        width: channels ≥ 1 between the convolutions; 8.

    Reference: Nguyen, Nguyen, Tran, Doan, Wong, IBA: Towards Irreversible Backdoor Attacks in Federated Learning,
    NeurIPS 2023 (no arXiv version; its adaptive trigger generator). Deviations: the source has an autoencoder or a
    U-Net; all attackers of a round train one network, in whole batches; it starts from the same draw in all runs.

    >>> x = torch.full((2, 1, 4, 4), 0.5)
    >>> bool(((IBA(atk_eps=0.1).trigger(x) - x).abs() <= 0.1).all())
    True
    """

    paper: ClassVar[str] = "@nguyen2023iba"
    cost: ClassVar[str] = "steps gradients of a batch of each attacker, and two convolutions for each poisoned image"

    target: int = param(0, ge=0, doc="the class that such images are given")
    fraction: float = param(0.5, gt=0.0, le=1.0, doc="share of every batch that is changed")
    atk_eps: float = param(0.3, gt=0.0, le=1.0, doc="the most that a pixel moves")
    atk_lr: float = param(0.01, gt=0.0, lt=math.inf, doc="rate of the network")
    steps: int = param(10, ge=1, doc="steps of the network a round")
    width: int = param(8, ge=1, doc="channels between its convolutions")

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, *, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        xi = {name: w.clone().requires_grad_() for name, w in (state or self._drawn(x)).items()}
        optimizer = torch.optim.Adam(xi.values(), lr=self.atk_lr)
        for _ in range(self.steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(self._moved(x, xi)), torch.full_like(y, self.target))
            loss.backward(inputs=list(xi.values()))  # type: ignore[no-untyped-call]
            optimizer.step()
        return {name: w.detach() for name, w in xi.items()}

    def _drawn(self, x: Tensor) -> dict[str, Tensor]:
        """The first weights, drawn on the CPU in float32 wherever and whatever the images are."""
        c, h, draws = x.shape[1], self.width, stream(0, "iba")
        shapes = {"in.weight": (h, c, 3, 3), "in.bias": (h,), "out.weight": (c, h, 3, 3), "out.bias": (c,)}
        bounds = {"in": (9 * c) ** -0.5, "out": (9 * h) ** -0.5}  # as torch draws those of convolutions
        made = {name: 2 * torch.rand(shape, generator=draws) - 1 for name, shape in shapes.items()}
        return {name: (bounds[name.split(".")[0]] * w).to(x) for name, w in made.items()}

    def _moved(self, x: Tensor, xi: Mapping[str, Tensor]) -> Tensor:
        """Images ``[b C H W]`` with the trigger that the network of weights ``xi`` makes of each."""
        hidden = F.conv2d(x, xi["in.weight"], xi["in.bias"], padding=1).relu()
        made = F.conv2d(hidden, xi["out.weight"], xi["out.bias"], padding=1).tanh()
        return (x + self.atk_eps * made).clamp(0, 1)

    def trigger(self, x: Tensor) -> Tensor:
        check_images(x, self)
        xi = self.fitted or self._drawn(x)
        return self._moved(x, {name: w.to(x) for name, w in xi.items()})
