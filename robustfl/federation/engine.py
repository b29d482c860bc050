"""The training loop: one round is θ, S → honest messages → redacted view → forged rows → defense → θ', S'."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from robustfl.attacks.byzantine.statistics import forge_statistics, forged_statistics
from robustfl.contracts import Aggregated, Context, Forged, Reducer, Reports, View
from robustfl.defenses.slices import NeedsWhole, run_sliced
from robustfl.errors import Diverged, Refused
from robustfl.federation.clients import Clients
from robustfl.federation.experiment import Experiment
from robustfl.federation.local_steps import Messages
from robustfl.federation.personal import Personal
from robustfl.federation.propagation import propagate_statistics
from robustfl.federation.rehearsal import rehearsal_of
from robustfl.federation.statistics import DefendedStatistics, PlainMean
from robustfl.federation.storage import LIMIT, kept, settle
from robustfl.randomness import stream
from robustfl.team import ALONE, Team
from robustfl.vectors import Layout, write_statistics
from robustfl.watch import checked, watched


@dataclass(frozen=True)
class State:
    """What the server and the clients carry from round to round.

    ``theta [d]`` is the vector the model's parameters are views of; ``memory [N d]`` holds what clients keep between
    rounds (a momentum, a control variate), honest clients first; ``personal`` their private entries; ``server`` what
    the algorithm's server carries; ``attack`` what the attack keeps, by channel; ``previous`` the last aggregate;
    ``root [1 d]`` what the server keeps when it works on data of its own; ``files`` where clients' rows lie if
    they take too much memory; ``smallest_variance`` the least so far. All are the engine's own memory and move with
    the rounds.
    """

    round: int
    theta: Tensor
    statistics: Tensor
    memory: Tensor | None
    defense: dict[str, Tensor] = field(default_factory=dict)
    server: dict[str, Tensor] = field(default_factory=dict)
    personal: Personal | None = None
    attack: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    previous: Tensor | None = None
    root: Tensor | None = None
    files: tuple[mmap.mmap, ...] = ()
    smallest_variance: float = 1.0


@dataclass(frozen=True)
class LocalModels:
    """The honest participants' models after local training, for as long as the round's record is looked at.

    ``received [d]`` and ``before [s]`` are what all started from, ``updates [h d']`` and ``statistics [h s]`` what each
    made of them.
    """

    clients: tuple[int, ...]
    received: Tensor
    before: Tensor
    updates: Tensor
    statistics: Tensor


@dataclass(frozen=True)
class RoundRecord:
    """Facts about a round; the model holds the round's result when it is handed out.

    ``tested`` is the state evaluation should look at, where it differs from the one training goes on from.
    """

    round: int
    loss: float
    facts: dict[str, Any]
    state: State
    tested: State | None = None
    local: LocalModels | None = None


def initial_state(experiment: Experiment, team: Team = ALONE, *, limit: int = LIMIT) -> State:
    """θ as the model has it, statistics (0, 1), empty memories, the same private entries for everybody."""
    e, clients = experiment, experiment.settings.clients
    theta = e.flat
    memory, personal, files = None, None, list[mmap.mmap]()
    if e.algorithm.remembers:
        memory, file = kept(theta.new_zeros(e.layout.d), len(team.mine(range(clients))), limit)
        files += [file] if file is not None else []
    if e.privacy.personal:
        personal, more = Personal.initial(e.privacy, e.layout, theta, clients, limit)
        files += more
    return State(
        round=0,
        theta=theta,
        statistics=e.layout.initial_statistics(theta),
        memory=memory,
        server=e.algorithm.server_state(theta),
        root=theta.new_zeros((1, e.layout.d)) if e.algorithm.remembers and e.root is not None else None,
        personal=personal,
        files=tuple(files),
    )


def train(
    experiment: Experiment,
    state: State | None = None,
    *,
    measure: Callable[[int], bool] = lambda round: False,
    warn: Callable[[str], None] = lambda message: None,
    local: Callable[[int], bool] = lambda round: False,
    team: Team = ALONE,
    limit: int = LIMIT,
) -> Iterator[RoundRecord]:
    """Run the remaining rounds, yielding after each; a ``team`` of several processes shares the work.

    ``measure(round)`` says in which rounds to compute how far attack and defense move the aggregate (it costs one
    more pass over the messages), ``local(round)`` in which to hand out the local models. Raises ``Diverged`` when
    honest messages or the model become non-finite. What clients keep lies in a file beyond ``limit`` bytes.
    """
    if experiment.algorithm.caution:
        warn(experiment.algorithm.caution)
    if team.size > 1 and (experiment.norm.centralised or experiment.norm.lockstep_kinds):
        raise Refused(f"{experiment.norm.name} lets clients meet in every layer; run it in one process")
    loop = _Loop(experiment, warn, team)
    current = initial_state(experiment, team, limit=limit) if state is None else state
    write_statistics(experiment.model, experiment.layout, current.statistics)
    experiment.model.train()
    while current.round < experiment.settings.rounds:
        record = loop.round(current, measured=measure(current.round + 1), local=local(current.round + 1))
        current = record.state
        last = current.round == experiment.settings.rounds
        if experiment.norm.refreshes == "none" or not (last or measure(current.round)):
            yield record
            continue
        tested = replace(current, statistics=loop.refreshed(current))
        write_statistics(experiment.model, experiment.layout, tested.statistics)
        yield replace(record, tested=tested)
        write_statistics(experiment.model, experiment.layout, current.statistics)


class _Loop:
    def __init__(self, experiment: Experiment, warn: Callable[[str], None], team: Team = ALONE) -> None:
        self._e, self._team, self._warn = experiment, team, warn
        self._whole = False
        self._clients = Clients(experiment, warn)
        self._byzantine = experiment.settings.byzantine()
        everyone = range(experiment.settings.clients)
        self._seats = {k: i for i, k in enumerate(sorted(everyone, key=lambda k: (k in self._byzantine, k)))}
        self._stack: Tensor | None = None
        self._variance = experiment.layout.variance_mask().to(experiment.device)

    def round(self, state: State, *, measured: bool, local: bool = False) -> RoundRecord:
        e, t = self._e, state.round
        ids = e.settings.sample(t)
        honest_ids = [k for k in ids if k not in self._byzantine]
        attacker_ids = [k for k in ids if k in self._byzantine]
        h, f = len(honest_ids), len(attacker_ids)
        if h == 0:  # nobody honest was drawn: there is nothing to learn from and nothing to measure
            return RoundRecord(t + 1, float("nan"), {"no_honest_client": True}, replace(state, round=t + 1))
        ids_in_order = honest_ids + attacker_ids
        computing = honest_ids + (attacker_ids if e.computes_own else [])
        frozen = e.norm.frozen(t, e.settings.rounds)
        if e.propagate is not None and e.propagate.propagation.every_round and state.personal is not None:
            propagate_statistics(e, state.personal.statistics, t, memory=state.attack)
        if local and self._team.size > 1:
            raise Refused("forgetting looks at local models, which no process has as a whole; run it in one process")
        start = state.theta.clone() if local else None
        here = self._here(computing)
        stack, memory, seats = self._memory(state, here, h + f)
        rows, kept = stack[: len(here)], state.memory
        received = e.algorithm.broadcast(state.theta, state.server)
        passed = None
        if e.norm.statistics_pass is not None:
            passed = self._passes(state, ids_in_order, h, t, received)
        messages = self._clients.work(
            here, t, state.theta, memory,
            frozen=frozen, out=rows, received=received,
            server=state.server, personal=state.personal,
            reducer=self._reducer(ids_in_order, h, f, state) if e.norm.lockstep(t, e.settings.rounds) else None,
            lends=memory is not None and seats is None,
        )  # fmt: skip
        if messages.kept:  # the next round's messages go where the memory was
            kept, self._stack = stack, kept
        elif seats is not None and memory is not None and kept is not None:
            kept[seats] = memory.to(kept.device)
        width = stack.shape[1]
        if self._team.size > 1:
            stack, messages = self._shared(stack[: len(here)], messages, computing, h + f, state.personal)
            rows = stack[: len(computing)]
        if passed is not None:
            messages = replace(messages, reports=passed)
        loss = float(messages.losses[:h].mean())
        if not self._team.agree(bool(torch.isfinite(messages.losses[:h].sum() + rows[:h].sum()))):
            raise Diverged(t + 1, "an honest message")

        attack_state = dict(state.attack)
        context = Context(
            generator=self._stream("defense", t),
            round=t,
            weights=self._weights(ids_in_order, stack),
            state=state.defense,
            clients=torch.tensor(ids_in_order),
            reference=self._reference(state, t),
        )
        if f and e.attacks_updates and width:
            own = rows[h:].clone() if e.computes_own else None
            attack_state["update"] = self._forge(stack, own, f, context, state, width)
        with watched(e.defense.parts, stack):
            result = self._defend(stack, context, width)
        aggregate = checked(result.vector, stack[0], e.defense.parts)
        facts: dict[str, Any] = dict(result.facts)
        if measured and width:
            facts |= _shifts(stack, h, aggregate, context.weights, self._team)
        aggregate = self._team.whole(aggregate, width)
        server = self._server_step(state, stack, ids_in_order, aggregate, context)
        statistics = state.statistics
        if e.norm.sends_statistics and e.layout.s and not frozen:
            statistics, known = self._merge(messages.reports, h, f, state, replace(context, state={}, reference=None))
            attack_state["statistics"] = known
        smallest = self._smallest(state, statistics)
        own_models = 0.0
        if state.personal is not None:
            own_models = float(state.personal.sum(computing if state.files else None))
        for file in state.files:
            settle(file)
        if not bool(torch.isfinite(state.theta.sum() + statistics.sum() + own_models)):
            raise Diverged(t + 1, "the model")
        write_statistics(e.model, e.layout, statistics)
        facts["smallest_variance"] = smallest if e.layout.s else None
        new = replace(
            state, round=t + 1, statistics=statistics, memory=kept, defense=dict(result.state), server=server,
            attack=attack_state, previous=aggregate.clone() if e.attack.forges else None,
            smallest_variance=smallest,
        )  # fmt: skip
        models = None
        if start is not None:
            received = e.algorithm.broadcast(start, state.server)
            own = self._own_statistics(messages.reports, state.statistics)[:h]
            models = LocalModels(tuple(honest_ids), received, state.statistics, stack[:h], own)
        return RoundRecord(t + 1, loss, facts, new, local=models)

    def _own_statistics(self, reports: Reports, received: Tensor) -> Tensor:
        """What local training made of the received statistics ``[n s]``: what clients would send, before any attack.

        Reports of a pass before training are no part of the local model.
        """
        norm = self._e.norm
        if not norm.sends_statistics or norm.statistics_pass is not None:
            return received.expand(len(reports.rows), -1)
        return norm.messages(reports, received, self._e.layout.layers)

    def _reference(self, state: State, round: int) -> Tensor | None:
        """The update ``[d]`` of the server itself, on data of its own, for defenses that trust it."""
        e = self._e
        if e.root is None or not e.defense.aggregator.needs_reference:
            return None
        out = state.theta.new_empty((1, e.layout.d))
        self._clients.work(
            [e.settings.clients], round, state.theta, state.root,
            frozen=e.norm.frozen(round, e.settings.rounds), out=out,
            received=e.algorithm.broadcast(state.theta, state.server), server=state.server,
        )  # fmt: skip
        return out[0]

    def _server_step(
        self, state: State, stack: Tensor, ids: list[int], aggregate: Tensor, context: Context
    ) -> dict[str, Tensor]:
        """Move θ, in place, and return the server's new state."""
        e, privacy, lr = self._e, self._e.privacy, self._e.lr(state.round)
        second = None
        if state.server:
            sent = {name: privacy.sent(value) for name, value in state.server.items()}
            steps = [self._clients.steps(k) for k in ids]
            width = aggregate.shape[0]
            sent = {name: value[self._team.part(width)] for name, value in sent.items()}
            rows = e.algorithm.second_messages(stack, steps, lr, sent, e.settings.clients)
            if rows is not None:
                again = replace(context, generator=self._stream("defense-second", state.round), state={})
                found = self._team.whole(self._defend(rows, again, width).vector, width)
                second = privacy.whole(found, e.layout.d)
        whole = privacy.whole(aggregate, e.layout.d)
        theta, server = e.algorithm.server_step(state.theta, whole, lr, state.server, second)
        state.theta.copy_(theta)
        return server

    # --- a team ------------------------------------------------------------------------------------------------------

    def _here(self, ids: list[int]) -> list[int]:
        """Those of the clients that this process works for."""
        return [ids[i] for i in self._team.mine([self._seats[k] for k in ids])]

    def _shared(
        self, rows: Tensor, messages: Messages, ids: list[int], n: int, personal: Personal | None
    ) -> tuple[Tensor, Messages]:
        """What all processes' clients sent: of their updates this process's columns ``[n d_r]``, the rest in full."""
        team, k, like = self._team, len(ids), rows
        seats = [self._seats[i] for i in ids]
        places = team.mine(seats)
        losses = team.rows(messages.losses, places, k).to(like)
        reported = team.rows(messages.reports.rows, places, k).to(like)
        counts = team.rows(messages.reports.counts, places, k).to(device=like.device, dtype=torch.int64)
        if personal is not None:
            for own in (personal.parameters, personal.statistics):
                own[ids] = team.rows(own[[ids[i] for i in places]], places, k).to(own)
        stack = team.columns(rows, seats, n)
        return stack, Messages(stack[:k], Reports(reported, counts), losses)

    def _forge(
        self, stack: Tensor, own: Tensor | None, f: int, context: Context, state: State, width: int
    ) -> Mapping[str, Tensor]:
        """Put forged rows in the place of the last ``f``; returns what the attack remembers."""
        e, team, h = self._e, self._team, len(stack) - f
        if team.size == 1 or e.attack.columnwise:
            previous = None if state.previous is None else state.previous[team.part(width)]
            view = self._view(stack[:h], own, f, context, state, previous)
            with watched(e.attack, stack, own):
                forged = Forged.of(e.attack.forge(view, generator=self._stream("attack", context.round)))
            stack[h:] = checked(forged.rows, stack[h:], e.attack)
            return forged.state
        self._warn(f"{e.attack.name} looks at messages as a whole: one process gathers them in every round")
        honest, mine = team.gathered(stack[:h], width), None if own is None else team.gathered(own, width)
        rows, kept = None, {}
        if honest is not None:
            view = self._view(honest, mine, f, context, state, state.previous)
            with watched(e.attack, honest, mine):
                forged = Forged.of(e.attack.forge(view, generator=self._stream("attack", context.round)))
            rows, kept = checked(forged.rows, honest.new_empty((f, width)), e.attack), dict(forged.state)
        stack[h:] = team.scattered(rows, stack, f, width)
        return kept

    def _defend(self, stack: Tensor, context: Context, width: int) -> Aggregated:
        """The defense on the stack, or on the columns of it that this process has."""
        e, team = self._e, self._team
        if team.size == 1:
            return e.defense.run(stack, f=e.settings.f_declared, context=context)
        draws = None if context.generator is None else context.generator.get_state()
        if not self._whole:
            try:
                return run_sliced(e.defense, stack, width, f=e.settings.f_declared, context=context, team=team)
            except NeedsWhole:
                self._whole = True
                self._warn(f"{e.defense.describe()} looks at messages as a whole: one process gathers them")
        if context.generator is not None and draws is not None:
            context.generator.set_state(draws)
        rows, result = team.gathered(stack, width), None
        if rows is not None:
            result = e.defense.run(rows, f=e.settings.f_declared, context=context)
        vector = team.scattered(None if result is None else result.vector[None], stack, 1, width)[0]
        facts = team.told(None if result is None else dict(result.facts))
        return Aggregated(vector, state={} if result is None else result.state, facts=facts)

    def _smallest(self, state: State, statistics: Tensor) -> float:
        """The smallest variance of any round so far."""
        if not self._e.layout.s:
            return state.smallest_variance
        own = state.personal is not None and self._e.privacy.statistics
        rows = state.personal.statistics if own and state.personal is not None else statistics[None]
        return min(state.smallest_variance, float(rows[:, self._variance].min()))

    # --- messages ----------------------------------------------------------------------------------------------------

    def _memory(self, state: State, ids: list[int], n: int) -> tuple[Tensor, Tensor | None, list[int] | None]:
        """The stack ``[n d']`` of the round, the memories of the computing clients, and where to write them back.

        Nowhere, if everybody is there and no attacker's own memory counts: then messages that clients keep as they are
        need no copy, and what is forged in the place of the attackers' does no harm.
        """
        memory, back = None, None
        if state.memory is not None:
            seats = [self._seats[k] // self._team.size for k in ids]
            everybody = self._team.size == 1 and not state.files and n == len(state.memory)
            ours = not self._byzantine or not self._e.computes_own
            if everybody and ours and seats == list(range(len(seats))):
                memory = state.memory[: len(ids)]
            else:
                memory, back = state.memory[seats].to(state.theta.device), seats
        width = self._e.privacy.sent(state.theta).shape[0]
        n = n if self._team.size == 1 else len(ids)
        if self._stack is None or self._stack.shape != (n, width):
            self._stack = state.theta.new_empty((n, width))
        return self._stack, memory, back

    def _view(
        self, honest: Tensor, own: Tensor | None, f: int, context: Context, state: State, previous: Tensor | None
    ) -> View:
        """The updates as this attack may see them."""
        e = self._e

        def defended(rows: Tensor, context: Context) -> Tensor:
            return e.defense.run(rows, f=e.settings.f_declared, context=context).vector

        return View(
            n=honest.shape[0] + f,
            f=f,
            honest=honest,
            own=own,
            aggregate=rehearsal_of(defended, context, isometric=e.defense.isometric),
            round=context.round,
            previous=previous,
            state=state.attack.get("update", {}),
        ).redacted(e.attack)

    def _weights(self, ids: list[int], like: Tensor) -> Tensor | None:
        if not self._e.algorithm.weighted:
            return None
        sizes = torch.tensor([len(self._e.parts[k]) for k in ids], dtype=torch.float64, device=like.device)
        return sizes / sizes.sum()

    def _stream(self, name: str, *at: int) -> torch.Generator:
        return stream(self._e.settings.seed, name, *at, device=self._e.device)

    # --- lock-step ---------------------------------------------------------------------------------------------------

    def _reducer(self, ids: list[int], h: int, f: int, state: State) -> Reducer:
        """What the server answers to the clients' rows in the layers: attackers' rows forged, then the defense.

        Clients weigh as their updates do, else the weighted mean of their gradients is that of no loss.
        Attacks remember nothing here: there are several exchanges in every layer.
        """
        e, round = self._e, state.round
        weights, count = self._weights(ids, state.theta), iter(range(1 << 30))

        def defended(rows: Tensor, context: Context) -> Tensor:
            return e.statistics_rule.run(rows, f=e.settings.f_declared, context=context).vector

        def reduce(kind: str, rows: Tensor) -> Tensor:
            place = next(count)
            context = Context(generator=self._stream("defense-lockstep", round, place), round=round, weights=weights)
            if f and e.attacks_statistics and e.settings.target in ("both", "mean" if "mean" in kind else "var"):
                honest = rows[:h]
                view = View(
                    n=h + f,
                    f=f,
                    channel="statistics",
                    honest=honest,
                    own=rows[h:],
                    aggregate=rehearsal_of(defended, context, origin=_mean(honest, weights)),
                    variance=torch.full((rows.shape[1],), kind == "variance", device=rows.device),
                    round=round,
                ).redacted(e.attack)
                generator = self._stream("attack-lockstep", round, place)
                forged = forge_statistics(e.attack, view, target="both", generator=generator)
                rows = torch.cat([honest, checked(forged, rows[h:], e.attack)])
            return defended(rows, context)

        return reduce

    # --- statistics --------------------------------------------------------------------------------------------------

    def refreshed(self, state: State) -> Tensor:
        """Statistics collected anew at the current model, for testing (``Norm.refreshes``)."""
        e, t = self._e, state.round
        everybody = e.norm.refreshes == "all"
        ids = list(range(e.settings.clients)) if everybody else e.settings.sample(max(0, t - 1))
        honest = [k for k in ids if k not in self._byzantine]
        ids = honest + [k for k in ids if k in self._byzantine]
        if not honest:
            return state.statistics
        h = len(honest)
        reports = self._passes(state, ids, h, t, state.theta, refresh=True)
        context = Context(generator=self._stream("defense", t), round=t, weights=self._weights(ids, state.theta))
        merged, _ = self._merge(reports, h, len(ids) - h, state, context, refreshing=True)
        return merged

    def _passes(
        self, state: State, ids: list[int], h: int, round: int, model: Tensor, *, refresh: bool = False
    ) -> Reports:
        """What clients, ``h`` honest ones first, report of a pass over their data at ``model [d]``.

        A pass that repeats (``Norm.statistics_pass``) starts from what the server makes of the one before it.
        """
        e, plan = self._e, self._e.norm.statistics_pass
        assert plan is not None
        computing = ids if e.computes_own else ids[:h]
        reports, found = self._pass(state, computing, round, model, refresh), state.statistics
        for again in range(1, len(e.layout.layers) if plan.repeats else 1):
            before, generator = found, self._stream("defense-pass", round, again)
            context = Context(generator=generator, round=round, weights=self._weights(ids, state.theta))
            found, _ = self._merge(reports, h, len(ids) - h, state, context, refreshing=True)
            if _moved(before, found, e.layout) <= plan.tolerance:
                break
            write_statistics(e.model, e.layout, found)
            reports = self._pass(state, computing, round, model, refresh)
        write_statistics(e.model, e.layout, state.statistics)
        return reports

    def _pass(self, state: State, ids: list[int], round: int, model: Tensor, refresh: bool) -> Reports:
        """One pass over the clients' data with the statistics the model holds; each process takes its own clients."""
        e, team = self._e, self._team
        places = team.mine([self._seats[k] for k in ids])
        rows = state.theta.new_empty((len(places), e.layout.s))
        counts = torch.empty((len(places), len(e.layout.layers)), dtype=torch.int64, device=rows.device)
        for i, place in enumerate(places):
            k = ids[place]
            own = model if state.personal is None else state.personal.model_of(k, e.privacy, model)
            seen = self._clients.statistics(k, round, own, refresh=refresh)
            rows[i], counts[i] = seen.rows[0], seen.counts[0]
        if team.size > 1:
            rows, whole = team.rows(rows, places, len(ids)).to(rows), team.rows(counts, places, len(ids))
            counts = whole.to(counts)
        return Reports(rows, counts)

    def _merge(
        self, reports: Reports, h: int, f: int, state: State, context: Context, *, refreshing: bool = False
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The server's new statistics: honest reports to messages, attackers' rows forged, the norm's own merge.

        And what the attack wants to remember of this channel.
        """
        e, kept = self._e, state.attack.get("statistics", {})
        computed = reports.rows.shape[0]
        if computed < h + f:  # one batch of equal size each: attackers claim the counts every client has
            absent = (h + f - computed, -1)
            rows = torch.cat([reports.rows, reports.rows[:1].expand(absent)])
            reports = Reports(rows, torch.cat([reports.counts, reports.counts[:1].expand(absent)]))
        rows = e.norm.messages(reports, state.statistics, e.layout.layers)
        if not bool(torch.isfinite(rows[:h]).all()):
            raise Diverged(state.round + 1, "an honest report")

        def merged(rows: Tensor, context: Context) -> Tensor:
            defended = DefendedStatistics(e.statistics_rule, e.settings.f_declared, context, refreshing)
            return e.norm.merge(rows, reports.counts, state.statistics, e.layout.layers, defended)

        if f and e.attacks_statistics:
            own = rows[h:] if computed == h + f else None
            origin = None
            if e.attack.knowledge == "defense":
                plain = PlainMean(None if context.weights is None else context.weights[:h], context.round, refreshing)
                origin = e.norm.merge(rows[:h], reports.counts[:h], state.statistics, e.layout.layers, plain)
            view = View(
                n=h + f,
                f=f,
                channel="statistics",
                honest=rows[:h],
                own=own,
                aggregate=rehearsal_of(merged, context, origin=origin),
                variance=self._variance,
                round=context.round,
                previous=state.statistics if state.round else None,
                state=kept,
            ).redacted(e.attack)
            generator = self._stream("attack-statistics", context.round)
            forged = forged_statistics(e.attack, view, target=e.settings.target, generator=generator)
            rows, kept = torch.cat([rows[:h], checked(forged.rows, rows[h:], e.attack)]), forged.state
        return checked(merged(rows, context), state.statistics, e.norm), kept


def _mean(honest: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of honest rows ``[h d]``, the first of clients weighed by ``weights [n]``."""
    if weights is None:
        return honest.mean(0)
    shares = weights[: len(honest)].to(honest.dtype)
    return shares / shares.sum() @ honest


def _moved(before: Tensor, after: Tensor, layout: Layout) -> float:
    """The farthest that a mean or a standard deviation has moved, in standard deviations ``after``."""
    farthest = 0.0
    for layer in layout.layers:
        scale = after[layer.variance].clamp(min=1e-30).sqrt()
        means = (after[layer.mean] - before[layer.mean]).abs() / scale
        deviations = (scale - before[layer.variance].clamp(min=0.0).sqrt()).abs() / scale
        farthest = max(farthest, float(means.max()), float(deviations.max()))
    return farthest


def _shifts(stack: Tensor, h: int, aggregate: Tensor, weights: Tensor | None, team: Team = ALONE) -> dict[str, float]:
    """How far, relative to the honest mean, the attack moved the mean and the defense's result lies.

    Both are the means of a server without a defense: of clients weighed by ``weights [n]``, without broken rows.
    """
    shares = stack.new_ones(len(stack)) if weights is None else weights.to(stack.dtype)
    honest = _mean(stack[:h], weights)
    scale = max(team.norm(honest), 1e-30)
    sound = team.total(torch.isfinite(stack[h:]).all(1).double().cpu()).to(stack.device) == team.size
    away = torch.where(sound[:, None], stack[h:] - honest, 0.0)
    moved = shares[h:] @ away / (shares[:h].sum() + shares[h:][sound].sum())
    return {
        "attack_shift": team.norm(moved) / scale,
        "defense_shift": team.norm(aggregate - honest) / scale,
    }
