"""The training loop: one round is θ, S → honest messages → redacted view → forged rows → defense → θ', S'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from robustfl.attacks.byzantine.statistics import forge_statistics
from robustfl.contracts import Context, Reports, View
from robustfl.errors import Diverged, RobustflError
from robustfl.federation.clients import Clients
from robustfl.federation.experiment import Experiment
from robustfl.federation.statistics import DefendedStatistics
from robustfl.randomness import stream
from robustfl.vectors import flatten_parameters, write_statistics


@dataclass(frozen=True)
class State:
    """What the server and the clients carry from round to round.

    ``theta [d]`` is the vector the model's parameters are views of; ``momentum [N d]`` holds the clients' momenta,
    honest clients first. Both are the engine's own memory and move with the rounds.
    """

    round: int
    theta: Tensor
    statistics: Tensor
    momentum: Tensor | None
    defense: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundRecord:
    """Facts about a round; the model holds the round's result when it is handed out."""

    round: int
    loss: float
    facts: dict[str, Any]
    state: State


def initial_state(experiment: Experiment) -> State:
    """θ as the model has it, statistics (0, 1), no momentum yet."""
    theta = flatten_parameters(experiment.model, experiment.layout)
    momentum = None
    if experiment.algorithm.keeps_momentum:
        momentum = theta.new_zeros((experiment.settings.clients, experiment.layout.d))
    return State(0, theta, experiment.layout.initial_statistics(theta), momentum)


def train(
    experiment: Experiment,
    state: State | None = None,
    *,
    measure: Callable[[int], bool] = lambda round: False,
    warn: Callable[[str], None] = lambda message: None,
) -> Iterator[RoundRecord]:
    """Run the remaining rounds, yielding after each.

    ``measure(round)`` says in which rounds to compute how far attack and defense move the aggregate (it costs one
    more pass over the messages). Raises ``Diverged`` when honest messages or the model become non-finite.
    """
    loop = _Loop(experiment, warn)
    current = initial_state(experiment) if state is None else state
    write_statistics(experiment.model, experiment.layout, current.statistics)
    experiment.model.train()
    while current.round < experiment.settings.rounds:
        record = loop.round(current, measured=measure(current.round + 1))
        current = record.state
        yield record


class _Loop:
    def __init__(self, experiment: Experiment, warn: Callable[[str], None]) -> None:
        self._e = experiment
        self._clients = Clients(experiment, warn)
        self._byzantine = experiment.settings.byzantine()
        everyone = range(experiment.settings.clients)
        self._seats = {k: i for i, k in enumerate(sorted(everyone, key=lambda k: (k in self._byzantine, k)))}
        self._stack: Tensor | None = None
        self._variance = experiment.layout.variance_mask().to(experiment.device)
        self._smallest_variance = 1.0

    def round(self, state: State, *, measured: bool) -> RoundRecord:
        e, t = self._e, state.round
        ids = e.settings.sample(t)
        honest_ids = [k for k in ids if k not in self._byzantine]
        attacker_ids = [k for k in ids if k in self._byzantine]
        h, f = len(honest_ids), len(attacker_ids)
        if h == 0:  # nobody honest was drawn: there is nothing to learn from and nothing to measure
            return RoundRecord(t + 1, float("nan"), {"no_honest_client": True}, replace(state, round=t + 1))
        computing = honest_ids + (attacker_ids if e.computes_own else [])
        frozen = e.norm.frozen(t, e.settings.rounds)
        stack, momentum, seats = self._memory(state, computing, h + f)
        rows = stack[: len(computing)]
        messages = self._clients.work(computing, t, state.theta, momentum, frozen=frozen, out=rows)
        if seats is not None and momentum is not None and state.momentum is not None:
            state.momentum[seats] = momentum
        loss = float(messages.losses[:h].mean())
        if not bool(torch.isfinite(messages.losses[:h].sum() + rows[:h].sum())):
            raise Diverged(t + 1, "an honest message")

        context = Context(round=t, weights=self._weights(honest_ids + attacker_ids, stack), state=state.defense)
        if f and e.attacks_updates:
            own = rows[h:].clone() if e.computes_own else None
            view = self._view(stack[:h], own, f, context)
            forged = e.attack.forge(view, generator=self._stream("attack", t))
            stack[h:] = _checked(forged, stack[h:], f"attack {e.attack.name!r}")
        context = replace(context, generator=self._stream("defense", t))
        result = e.defense.run(stack, f=e.settings.f_declared, context=context)
        aggregate = _checked(result.vector, state.theta, f"defense {e.defense.describe()!r}")
        facts: dict[str, Any] = dict(result.facts)
        if measured:
            facts |= _shifts(stack, h, aggregate)
        state.theta.copy_(e.algorithm.server(state.theta, aggregate, e.lr(t)))
        statistics = state.statistics
        if e.layout.s and not frozen:
            statistics = self._merge(messages.reports, h, f, state, replace(context, state={}))
            smallest = float(statistics[self._variance].min())
            self._smallest_variance = min(self._smallest_variance, smallest)
        if not bool(torch.isfinite(state.theta.sum() + statistics.sum())):
            raise Diverged(t + 1, "the model")
        write_statistics(e.model, e.layout, statistics)
        facts["smallest_variance"] = self._smallest_variance if e.layout.s else None
        new = replace(state, round=t + 1, statistics=statistics, defense=dict(result.state))
        return RoundRecord(t + 1, loss, facts, new)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _memory(self, state: State, ids: list[int], n: int) -> tuple[Tensor, Tensor | None, list[int] | None]:
        """The stack ``[n d]`` of the round, the momenta of the computing clients, and where to write them back.

        With everybody present and attackers that never compute, the momenta are the stack itself: its last rows,
        which no momentum needs, take what the attackers forge. That saves two passes over the messages.
        """
        if state.momentum is not None:
            seats = [self._seats[k] for k in ids]
            in_order = seats == list(range(len(seats)))
            if in_order and n == state.momentum.shape[0] and (len(ids) == n or not self._e.computes_own):
                if len(ids) < n:
                    return state.momentum, state.momentum[: len(ids)], None
                momentum, seats_back = state.momentum, None
            else:
                momentum, seats_back = state.momentum[seats], seats
        else:
            momentum, seats_back = None, None
        if self._stack is None or self._stack.shape[0] != n:
            self._stack = state.theta.new_empty((n, self._e.layout.d))
        return self._stack, momentum, seats_back

    def _view(self, honest: Tensor, own: Tensor | None, f: int, context: Context) -> View:
        """The channel as this attack may see it: no more than its declared knowledge (ARCHITECTURE §5)."""
        attack = self._e.attack
        return View(
            n=honest.shape[0] + f,
            f=f,
            honest=honest if attack.knowledge in ("omniscient", "defense") else None,
            own=own,
            aggregate=self._rehearsal(context) if attack.knowledge == "defense" else None,
            round=context.round,
        )

    def _rehearsal(self, context: Context) -> Callable[[Tensor], Tensor]:
        """The server's aggregation without its consequences: the same draws every time, new state thrown away."""
        e = self._e

        def aggregate(rows: Tensor) -> Tensor:
            fresh = replace(context, generator=self._stream("defense", context.round))
            return e.defense.run(rows, f=e.settings.f_declared, context=fresh).vector

        return aggregate

    def _weights(self, ids: list[int], like: Tensor) -> Tensor | None:
        if not self._e.algorithm.weighted:
            return None
        sizes = torch.tensor([len(self._e.parts[k]) for k in ids], dtype=torch.float64, device=like.device)
        return sizes / sizes.sum()

    def _stream(self, name: str, round: int) -> torch.Generator:
        return stream(self._e.settings.seed, name, round, device=self._e.device)

    # --- statistics --------------------------------------------------------------------------------------------------

    def _merge(self, reports: Reports, h: int, f: int, state: State, context: Context) -> Tensor:
        """The server's new statistics: honest reports to messages, attackers' rows forged, the norm's own merge."""
        e = self._e
        computed = reports.rows.shape[0]
        if computed < h + f:  # one batch of equal size each: attackers claim the counts every client has
            absent = (h + f - computed, -1)
            rows = torch.cat([reports.rows, reports.rows[:1].expand(absent)])
            reports = Reports(rows, torch.cat([reports.counts, reports.counts[:1].expand(absent)]))
        rows = e.norm.messages(reports, state.statistics, e.layout.layers)
        if f and e.attacks_statistics:
            own = rows[h:] if computed == h + f else None
            view = replace(self._view(rows[:h], own, f, context), channel="statistics", variance=self._variance)
            generator = self._stream("attack-statistics", context.round)
            forged = forge_statistics(e.attack, view, target=e.settings.target, generator=generator)
            rows = torch.cat([rows[:h], _checked(forged, rows[h:], f"attack {e.attack.name!r}")])
        defended = DefendedStatistics(e.defense, e.settings.f_declared, context)
        return e.norm.merge(rows, reports.counts, state.statistics, e.layout.layers, defended)


def _checked(made: Any, like: Tensor, who: str) -> Tensor:
    """What a method made, if it is a tensor like ``like``; a plug-in that breaks its contract is named."""
    if not isinstance(made, Tensor):
        raise RobustflError(f"{who} returned {type(made).__name__}, not a tensor of shape {tuple(like.shape)}")
    if made.shape != like.shape or made.dtype != like.dtype or made.device != like.device:
        expected = f"{tuple(like.shape)} {like.dtype} on {like.device}"
        raise RobustflError(f"{who} returned {tuple(made.shape)} {made.dtype} on {made.device}, not {expected}")
    return made


def _shifts(stack: Tensor, h: int, aggregate: Tensor) -> dict[str, float]:
    """How far, relative to the honest mean, the attack moved the plain mean and the defense's result lies."""
    honest = stack[:h].mean(0)
    scale = float(honest.norm().clamp(min=1e-30))
    moved = torch.where(torch.isfinite(stack[h:]), stack[h:], 0.0).sum(0).add_(stack[:h].sum(0)).div_(stack.shape[0])
    return {
        "attack_shift": float((moved - honest).norm()) / scale,
        "defense_shift": float((aggregate - honest).norm()) / scale,
    }
