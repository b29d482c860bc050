"""The messages of a round as one stack, whoever has its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Attack, ColumnAttack, Context, Forged, Reports, View
from robustfl.defenses import Pipeline
from robustfl.defenses.slices import NeedsWhole, run_sliced
from robustfl.distributed import ALONE, Team
from robustfl.engine.local_training import Messages
from robustfl.engine.personal import Personal
from robustfl.results import received, unwritten

T = TypeVar("T")


class ClientSharding:
    """Who of a team works for which clients, and how its processes share messages; alone, nothing of that happens.

    ``order`` are all clients in the order in which they are dealt out.
    """

    def __init__(self, team: Team, order: Sequence[int], warn: Callable[[str], None]) -> None:
        self.team, self._warn = team, warn
        self._seats = {k: i for i, k in enumerate(order)}
        self.told: set[str] = set()

    def seats(self, ids: Sequence[int]) -> list[int]:
        """The places of clients in the order of all, and so in what this process keeps for its own."""
        return [self._seats[k] // self.team.size for k in ids]

    def mine(self, ids: Sequence[int]) -> list[int]:
        """The clients that this process works for, as places in ``ids``."""
        return self.team.mine([self._seats[k] for k in ids])

    def rows(self, own: Tensor, ids: Sequence[int]) -> Tensor:
        """Everybody's small rows, from those of this process's clients."""
        if self.team.size == 1:
            return own
        found = self.team.rows(own, self.mine(ids), len(ids))
        return found.to(device=own.device, dtype=own.dtype)

    def stack(
        self, rows: Tensor, messages: Messages, ids: Sequence[int], honest: int, n: int, personal: Personal | None
    ) -> tuple[MessageStack, Messages]:
        """The stack of ``n`` messages, of which ``ids`` computed theirs, and what goes beside it, of everybody."""
        team, width = self.team, rows.shape[1]
        if team.size == 1:
            return MessageStack(rows, honest, width, self), messages
        reports = Reports(self.rows(messages.reports.rows, ids), self.rows(messages.reports.counts, ids))
        losses = self.rows(messages.losses, ids)
        if personal is not None:
            here = [ids[i] for i in self.mine(ids)]
            for own in (personal.parameters, personal.statistics):
                own[list(ids)] = self.rows(own[here], ids)
        shared = team.columns(rows[: len(self.mine(ids))], [self._seats[k] for k in ids], n)
        return MessageStack(shared, honest, width, self), Messages(shared[: len(ids)], reports, losses)

    def looks_at_wholes(self, who: str) -> None:
        """Say so, once, where one process has to work for all."""
        if who not in self.told:
            self.told.add(who)
            self._warn(who)


@dataclass(frozen=True)
class MessageStack:
    """Messages ``rows [n d]``, ``honest`` ones first, of ``width`` ``d``; in a team, this process's columns of them."""

    rows: Tensor
    honest: int
    width: int
    exchange: ClientSharding

    @property
    def _team(self) -> Team:
        return self.exchange.team

    def columns(self, vector: Tensor) -> Tensor:
        """Of a vector ``[d]``, or of every row of ``[n d]``, the columns that are here."""
        return vector if self._team.size == 1 else vector[..., self._team.part(self.width)]

    def whole(self, vector: Tensor) -> Tensor:
        """The vector ``[d]`` of whose columns these are here."""
        return self._team.whole(vector, self.width)

    def forge(
        self,
        attack: Attack,
        own: Tensor | None,
        previous: Tensor | None,
        view: Callable[[Tensor, Tensor | None, Tensor | None], View],
        generator: torch.Generator,
    ) -> Mapping[str, Tensor]:
        """Put what ``attack`` sends in the place of the last rows; returns what it remembers.

        ``view(honest, own, previous)`` makes what it sees; ``own [f d]`` are the rows it would have sent honestly.
        """
        team, h, width, rows = self._team, self.honest, self.width, self.rows

        def forged(honest: Tensor, mine: Tensor | None, before: Tensor | None, like: Tensor) -> Forged:
            with unwritten(attack, "forge()", honest, mine):
                made = Forged.of(attack.forge(view(honest, mine, before), generator=generator))
            return Forged(received(made.rows, like, attack, "forge()", honest), made.state)

        if team.size == 1 or isinstance(attack, ColumnAttack):
            made = forged(rows[:h], own, None if previous is None else self.columns(previous), rows[h:])
            rows[h:] = made.rows
            return made.state
        self.exchange.looks_at_wholes(
            f"{attack.name} looks at messages as a whole: one process gathers them in every round"
        )
        honest, mine = team.gathered(rows[:h], width), None if own is None else team.gathered(own, width)
        made_here = None
        if honest is not None:
            made_here = forged(honest, mine, previous, honest.new_empty((len(rows) - h, width)))
        rows[h:] = team.scattered(None if made_here is None else made_here.rows, rows, len(rows) - h, width)
        return {} if made_here is None else made_here.state

    def defended(self, rule: Pipeline, *, f: int, context: Context, rows: Tensor | None = None) -> Aggregated:
        """The rule's result for the rows, or of others in their place; of the vector, the columns that are here."""
        stack, team = self.rows if rows is None else rows, self._team
        with unwritten(rule.parts, "aggregate()", stack):
            result = rule.run(stack, f=f, context=context) if team.size == 1 else self._sliced(rule, stack, f, context)
        return replace(result, vector=received(result.vector, stack[0], rule.parts, "aggregate()", stack))

    def _sliced(self, rule: Pipeline, stack: Tensor, f: int, context: Context) -> Aggregated:
        team, width = self._team, self.width
        why = f"{rule.describe()} looks at messages as a whole: one process gathers them"
        draws = None if context.generator is None else context.generator.get_state()
        if why not in self.exchange.told:
            try:
                return run_sliced(rule, stack, width, f=f, context=context, team=team)
            except NeedsWhole:
                self.exchange.looks_at_wholes(why)
        if context.generator is not None and draws is not None:
            context.generator.set_state(draws)
        rows, result = team.gathered(stack, width), None
        if rows is not None:
            result = rule.run(rows, f=f, context=context)
        vector = team.scattered(None if result is None else result.vector[None], stack, 1, width)[0]
        facts = team.broadcast(None if result is None else dict(result.facts))
        return Aggregated(vector, state={} if result is None else result.state, facts=facts)

    def defense_shift(self, aggregate: Tensor, weights: Tensor | None, count: int) -> float:
        """The distance of the defense's result from the mean of the first ``count`` rows, relative to its length."""
        honest = mean(self.rows[:count], weights)
        return self._team.norm(aggregate - honest) / max(self._team.norm(honest), 1e-30)

    def attack_shift(self, weights: Tensor | None) -> float:
        """The distance by which the attackers' rows move the mean of all rows, relative to that of the honest ones."""
        return attack_shift(self.rows, self.honest, weights, self._team)


def mean(honest: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of honest rows ``[h d]``, the first of clients weighed by ``weights [n]``."""
    if weights is None:
        return honest.mean(0)
    shares = weights[: len(honest)].to(honest)
    return shares / shares.sum() @ honest


def attack_shift(rows: Tensor, h: int, weights: Tensor | None, team: Team = ALONE) -> float:
    """The distance, relative to the mean of ``h`` honest rows, by which the others move the mean of ``rows [n d]``.

    Both are means of a server without a defense: of clients weighed by ``weights [n]``, without broken rows.
    """
    shares = rows.new_ones(len(rows)) if weights is None else weights.to(rows)
    honest = mean(rows[:h], weights)
    sound = team.total(torch.isfinite(rows[h:]).all(1).double().cpu()).to(rows.device) == team.size
    away = torch.where(sound[:, None], rows[h:] - honest, 0.0)
    moved = shares[h:] @ away / (shares[:h].sum() + shares[h:][sound].sum())
    return team.norm(moved) / max(team.norm(honest), 1e-30)
