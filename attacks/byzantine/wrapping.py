"""Attacks around another attack: on some clients, in some rounds, scaled up or projected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import create, describe, register

from .sight import own_rows, unit


class Wrapper(Attack):
    """An attack around the one that its parameter ``attack`` names."""

    attack: str

    @cached_property
    def inner(self) -> Attack:
        """The wrapped attack; an error in its text names both."""
        try:
            inner = create("attack", self.attack)
        except UsageError as error:
            raise UsageError(f"{type(self).__name__}: attack={self.attack!r}: {error}") from error
        assert isinstance(inner, Attack)
        return inner

    @property
    def target(self) -> int | None:
        return self.inner.target

    def adapted(self, state: Mapping[str, Tensor]) -> Attack:
        inner = self.inner.adapted(state)
        return self if inner is self.inner else _with(self, inner=inner)

    def in_step(self, step: int, previous: Tensor | None) -> Attack:
        inner = self.inner.in_step(step, previous)
        return self if inner is self.inner else _with(self, inner=inner)

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        return self.inner.poison(x, y, classes=classes, generator=generator, attacker=attacker, round=round)

    def trigger(self, x: Tensor) -> Tensor:
        return self.inner.trigger(x)

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return self.inner.certificate(n, f)

    def _adopt(self, *facts: str) -> None:
        """While it is constructed: write the wrapped attack in its shortest form and take over its ``facts``."""
        object.__setattr__(self, "attack", describe(self.inner))
        for fact in facts:
            object.__setattr__(self, fact, getattr(self.inner, fact))


class Poisoner(Wrapper):
    """A wrapper of an attack that poisons data and leaves messages alone; by itself it sends the own rows."""

    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    poisons_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.forges or not self.inner.poisons_data:
            who = type(self).__name__
            raise UsageError(f"{who}: attack={self.attack!r} must poison data and leave messages alone")
        self._adopt("triggers", "adapts")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        return own_rows(view, self.name).clone()


def _with(attack: Attack, **values: object) -> Attack:
    """The attack with other values of what is no parameter of it."""
    made = copy(attack)
    vars(made).update(values)
    return made


@register("partial", version=1)
@dataclass(frozen=True)
class Partial(Wrapper):
    """Any attack on the honest rows, with the attackers' own honest work in their place: ``ḡ, s, …`` of ``own [f d]``.

    What is left of an omniscient attack when attackers see no messages but theirs. Its estimates get worse with
    fewer attackers (one attacker knows no spread at all) and where clients differ.

    Args:
        attack: an omniscient attack that forges messages; ``alie`` by default.

    Reference: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS
    2019, arXiv:1902.06156 (its attackers estimate mean and deviation from their own workers).

    >>> from robustfl.contracts import View
    >>> view = View(n=10, f=2, own=torch.tensor([[1.0], [3.0]]))
    >>> Partial("sf").forge(view, generator=torch.Generator())
    tensor([[-2.],
            [-2.]])
    """

    paper: ClassVar[str] = "@baruch2019little"
    cost: ClassVar[str] = "that of the wrapped attack"
    knowledge: ClassVar[Knowledge] = "partial"
    needs_own: ClassVar[bool] = True

    attack: str = param("alie", doc="the omniscient attack that sees the attackers' rows only")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.knowledge != "omniscient":
            raise UsageError(f"Partial: attack={self.attack!r} is {self.inner.knowledge}; it must be omniscient")
        self._adopt("poisons_data", "triggers", "adapts")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        own = own_rows(view, self.name)
        return self.inner.forge(replace(view, honest=own).redacted(self.inner), generator=generator)


@register("timed", version=2)
@dataclass(frozen=True)
class Timed(Wrapper):
    """Any attack in some rounds only: ``start, start + every, start + 2·every, …`` below ``stop``; honest otherwise.

    When off, attackers train on clean data and send what they honestly compute: they earn trust with rules that
    remember, and let a model converge before they strike. Needs the honest work of the attackers in every round.

    Args:
        attack: the attack, any registered one; ``sf`` by default.
        start: first round ≥ 0 of the attack, counted from 0.
        every: rounds ≥ 1 from one attack to the next; 1 attacks in all rounds of the window.
        stop: first round after the window, > ``start``; None (default) never stops.

    Reference: Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021,
    arXiv:2012.10333 (time-coupled attacks); Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020,
    arXiv:1807.00459 (single-shot attacks).

    >>> from robustfl.contracts import View
    >>> attack = Timed("sf", start=1, every=2)
    >>> views = [View(n=2, f=1, honest=torch.ones(1, 1), own=torch.full((1, 1), 5.0), round=t) for t in range(4)]
    >>> [attack.forge(view, generator=torch.Generator()).item() for view in views]
    [5.0, -1.0, 5.0, -1.0]
    """

    paper: ClassVar[str] = "@karimireddy2021learning"
    cost: ClassVar[str] = "that of the wrapped attack in its rounds"
    needs_own: ClassVar[bool] = True

    attack: str = param("sf", doc="the attack that is on and off")
    start: int = param(0, ge=0, doc="first round of the attack, from 0")
    every: int = param(1, ge=1, doc="rounds from one attack to the next")
    stop: int | None = param(None, ge=1, doc="first round after the last attack; None: never stops")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop is not None and self.stop <= self.start:
            raise UsageError(f"Timed: stop={self.stop} must be > {self.start} (start)")
        self._adopt("knowledge", "forges", "poisons_data", "triggers", "leaves_statistics", "adapts")

    def on(self, round: int) -> bool:
        inside = round >= self.start and (self.stop is None or round < self.stop)
        return inside and (round - self.start) % self.every == 0

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        own = own_rows(view, self.name)
        if self.on(view.round):
            return self.inner.forge(view.redacted(self.inner), generator=generator)
        return Forged(own.clone(), view.state) if view.state else own.clone()

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        if not self.on(round):
            return x, y
        return self.inner.poison(x, y, classes=classes, generator=generator, attacker=attacker, round=round)

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        return self.inner.constrain(gradient, moved, round=round) if self.on(round) else gradient


@register("model-replacement", version=1)
@dataclass(frozen=True)
class ModelReplacement(Poisoner):
    """The attackers train on poisoned data and scale what they get, so that it survives the average.

    ``x_i ← γ x_i``, ``γ = n/f``: the ``f`` rows then weigh as much in the plain mean as if everybody had sent them.
    With a norm bound ``S`` no row is longer than ``S``, ``x_i ← x_i min(1, S/‖x_i‖)``, against servers that filter
    norms. With ``α < 1`` local steps also stay near the received model, ``g ← α g + (1-α)(θ - θ_t)``, against servers
    that look for far models (constrain-and-scale). Robust rules see an outlier unless ``S`` or ``α`` is small;
    statistics are sent as they are.

    Args:
        attack: the data poisoning: ``badnets`` (default), ``dba``, ``label-flip(source=1, target=7)``, …
        scale: factor γ ≥ 0, or None (default) for ``n/f``.
        bound: largest norm ``S > 0`` of a row, or None (default).
        alpha: weight α in (0, 1] of the task beside the anomaly term ``½‖θ - θ_t‖²``; 1 (default) leaves it out. With
            one gradient per round ``θ = θ_t``, and α only scales.

    Reference: Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020, arXiv:1807.00459 (model
    replacement, train-and-scale; for one attacker and a server that averages it is ``γ = n``). Deviations: attackers
    share the factor; the anomaly term is the squared distance, one of those the paper names (others use cosines).

    >>> from robustfl.contracts import View
    >>> view = View(n=4, f=1, own=torch.tensor([[3.0, 4.0]]))
    >>> [ModelReplacement(bound=s).forge(view, generator=torch.Generator()).tolist() for s in (None, 10)]
    [[[12.0, 16.0]], [[6.0, 8.0]]]
    """

    paper: ClassVar[str] = "@bagdasaryan2020backdoor"
    cost: ClassVar[str] = "fd besides the data poisoning"
    leaves_statistics: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"

    attack: str = param("badnets", doc="the data poisoning whose result is scaled")
    scale: float | None = param(None, ge=0.0, lt=math.inf, doc="factor of the own message; None for n/f")
    bound: float | None = param(None, gt=0.0, lt=math.inf, doc="largest norm of a row; None for no bound")
    alpha: float = param(1.0, gt=0.0, le=1.0, doc="weight of the task beside the distance from the received model")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        own = own_rows(view, self.name)
        if view.channel == "statistics" or not self.on(view.round):
            return own.clone()
        rows = own * (view.n / view.f if self.scale is None else self.scale)
        if self.bound is not None:
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            rows *= (self.bound / norms.clamp(min=torch.finfo(rows.dtype).tiny)).clamp(max=1.0)
        return rows

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        gradient = self.inner.constrain(gradient, moved, round=round)
        idle = self.alpha == 1.0 or not self.on(round)
        return gradient if idle else self.alpha * gradient + (1.0 - self.alpha) * moved


@register("neurotoxin", version=1)
@dataclass(frozen=True)
class Neurotoxin(Poisoner):
    """The attackers train on poisoned data and send nothing in the coordinates that the others move most.

    ``x_ij ← 0`` where ``|F^{t-1}_j|`` is among the ``⌈ρd⌉`` largest entries of the last aggregate, which stands for
    what honest clients will do next. The backdoor then lives where later rounds do not overwrite it. Coordinates
    that everybody moves leave no room; statistics are sent as they are, and so is the first message.

    Args:
        attack: the data poisoning: ``badnets`` (default), ``dba``, ``label-flip(source=1, target=7)``, …
        ratio: share ``ρ`` of the coordinates in (0, 1) that are left out; 0.05.
        scale: factor ≥ 0 of what remains; 1.

    Reference: Zhang et al., Neurotoxin: Durable Backdoors in Federated Learning, ICML 2022, arXiv:2206.10341 (its
    Algorithm 1). Deviations: the message is projected once, not every local step (with one step it is the same).

    >>> from robustfl.contracts import View
    >>> view = View(n=4, f=1, own=torch.tensor([[1.0, 2.0, 3.0]]), previous=torch.tensor([0.0, -9.0, 1.0]))
    >>> Neurotoxin(ratio=0.3).forge(view, generator=torch.Generator())
    tensor([[1., 0., 3.]])
    """

    paper: ClassVar[str] = "@zhang2022neurotoxin"
    cost: ClassVar[str] = "fd and a selection of the smallest of d entries besides the data poisoning"
    leaves_statistics: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"

    attack: str = param("badnets", doc="the data poisoning whose result is projected")
    ratio: float = param(0.05, gt=0.0, lt=1.0, doc="share of the coordinates that are left out")
    scale: float = param(1.0, ge=0.0, lt=math.inf, doc="factor of what remains")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        own = own_rows(view, self.name)
        if view.channel == "statistics" or not self.on(view.round):
            return own.clone()
        rows = own * self.scale
        if view.previous is not None:
            count = math.ceil(self.ratio * len(view.previous) - 1e-9)
            rows[:, view.previous.abs().topk(count).indices] = 0.0
        return rows


@register("altermin", version=1)
@dataclass(frozen=True)
class AlterMin(Poisoner):
    """The attackers alternate between a boosted local step on poisoned data and stealthy ones on their own.

    Step ``s`` of a round, for ``s mod (1 + ls) = 0``, is adversarial and boosted, ``θ ← θ - η λ ∇L(poisoned batch)``;
    the others minimise the stealth objective ``L(own batch) + ρ ‖δ - δ̄‖``, with the attacker's update so far
    ``δ = θ - θ_t`` and ``δ̄`` what the server moved by last, which stands for the others' updates. The row is right on
    clean data and near ordinary rows, with the target pushed through in between. Of one local step a round only the
    boosted one is left; large ``λ`` at large rates diverges.

    Args:
        attack: the data poisoning of the adversarial steps: ``badnets(fraction=1)`` by default, or as in the paper
            ``label-flip(source=1, target=7)``, …
        boost: factor λ > 0 of adversarial steps; 10, the number of the paper's clients.
        ls: stealth steps ≥ 1 after each adversarial one; 10.
        rho: weight ρ ≥ 0 of the distance; 1e-4.

    Reference: Bhagoji, Chakraborty, Mittal, Calo, Analyzing Federated Learning through an Adversarial Lens, ICML 2019,
    arXiv:1811.12470 (alternating minimization with a distance constraint). Deviations: adversarial steps go by batches
    that are poisoned as ``attack`` says, where the paper has one or ten chosen images; none is left out when the loss
    is small.

    >>> attack = AlterMin(ls=1, boost=5)
    >>> gradient, moved = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    >>> [attack.in_step(s, None).constrain(gradient, moved).tolist() for s in (0, 2)]
    [[5.0, 0.0], [5.0, 0.0]]
    """

    paper: ClassVar[str] = "@bhagoji2019analyzing"
    cost: ClassVar[str] = "fd per local step besides the data poisoning"
    forges: ClassVar[bool] = False
    strength: ClassVar[str] = "boost"
    step: ClassVar[int] = 0
    previous: ClassVar[Tensor | None] = None

    attack: str = param("badnets(fraction=1)", doc="the data poisoning of the adversarial steps")
    boost: float = param(10.0, gt=0.0, lt=math.inf, doc="factor of adversarial steps")
    ls: int = param(10, ge=1, doc="stealth steps after each adversarial one")
    rho: float = param(1e-4, ge=0.0, lt=math.inf, doc="weight of the distance from the server's last step")

    @property
    def adversarial(self) -> bool:
        return self.step % (1 + self.ls) == 0

    def in_step(self, step: int, previous: Tensor | None) -> Attack:
        return _with(super().in_step(step, previous), step=step, previous=previous)

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        if not self.adversarial:
            return x, y
        return self.inner.poison(x, y, classes=classes, generator=generator, attacker=attacker, round=round)

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        if not self.on(round):
            return gradient
        if self.adversarial:
            return self.boost * self.inner.constrain(gradient, moved, round=round)
        away = moved if self.previous is None else moved - self.previous
        return gradient + self.rho * unit(away)


@register("chameleon", version=1)
@dataclass(frozen=True)
class Chameleon(Poisoner):
    """The attackers first pull poisoned images to their target class in the representation, then train the last layer.

    The first ``contrastive`` local steps of a round follow a supervised contrastive loss of representations ``z`` of
    length one, in which anchors of the target class count ``w`` times,

        L = mean_i -w_i / |P(i)| Σ_{p ∈ P(i)} log(exp(z_i·z_p / T) / Σ_{a ≠ i} exp(z_i·z_a / T))

    with ``P(i) = {p ≠ i: y_p = y_i}``, the others the cross-entropy by the last layer alone. Honest updates of the
    target class then keep poisoned images where they are, so the backdoor lasts. Anchors that are alone in their class
    count nothing: it needs batches of several images a class, and more local steps than ``contrastive``.

    Args:
        attack: the data poisoning: ``badnets`` (default), ``dba``, ``edge-case``, ….
        contrastive: local steps ≥ 1 on representations; 2.
        scale_weight: weight ``w`` > 0 of anchors of the target class; 2, the source has 6 for CIFAR-10.
        temperature: ``T`` > 0; 0.07.

    Reference: Dai, Li, Chameleon: Adapting to Peer Images for Planting Durable Backdoors in Federated Learning, ICML
    2023, arXiv:2304.12961. Deviations: both stages take the rate, momentum and number of steps of the clients'
    algorithm, where the source has rates and epochs of its own; every batch is poisoned as ``attack`` says.

    >>> attack = Chameleon(temperature=1.0)
    >>> z, y = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1, 2])
    >>> round(float(attack.loss(z, torch.nn.Identity(), y)), 4)  # 2/3 log(1 + 1/e)
    0.2088
    """

    paper: ClassVar[str] = "@dai2023chameleon"
    cost: ClassVar[str] = "a second gradient per local step besides the data poisoning"
    forges: ClassVar[bool] = False
    step: ClassVar[int] = 0

    attack: str = param("badnets", doc="the data poisoning")
    contrastive: int = param(2, ge=1, doc="local steps on representations")
    scale_weight: float = param(2.0, gt=0.0, lt=math.inf, doc="weight of anchors of the target class")
    temperature: float = param(0.07, gt=0.0, lt=math.inf, doc="temperature of the contrastive loss")

    @property
    def trains(self) -> bool:
        return True

    def in_step(self, step: int, previous: Tensor | None) -> Attack:
        return _with(super().in_step(step, previous), step=step)

    def loss(self, z: Tensor, head: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        if self.step >= self.contrastive:
            return F.cross_entropy(head(z.detach()), y)
        unit_z = F.normalize(z, dim=1)
        itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
        similar = (unit_z @ unit_z.T / self.temperature).masked_fill(itself, torch.finfo(z.dtype).min)
        positive = (y[:, None] == y[None]) & ~itself
        chance = similar.log_softmax(1).masked_fill(~positive, 0.0).sum(1) / positive.sum(1).clamp(min=1)
        weight = torch.where(y == self.target, self.scale_weight, 1.0) if self.target is not None else 1.0
        return -(weight * chance).mean()
