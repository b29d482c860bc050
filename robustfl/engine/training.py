"""The training loop: one round is θ, S → honest messages → redacted view → forged rows → defense → θ', S'."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context, Rehearsal, Reports, ServerWork, View
from robustfl.defenses.stack import LONGEST
from robustfl.distributed import ALONE, Team
from robustfl.engine.client_sharding import ClientSharding, MessageStack
from robustfl.engine.clients import Clients
from robustfl.engine.experiment import Experiment
from robustfl.engine.local_training import Messages, Round, train_locally
from robustfl.engine.outputs import noise_outputs, representations
from robustfl.engine.personal import LIMIT, lent, settle
from robustfl.engine.propagation import propagate_statistics
from robustfl.engine.state import LocalModels, RoundRecord, State, initial_state
from robustfl.engine.statistics_aggregation import StatisticsChannel
from robustfl.errors import Diverged, Refused
from robustfl.gradients import evaluating
from robustfl.layout import write_statistics
from robustfl.results import pair, received


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
    honest messages or the model become non-finite; the model is looked at in the rounds that measure something, in
    the last, and with the next round's messages. What clients keep lies in a file beyond ``limit`` bytes.
    """
    if team.size > 1 and (experiment.merged or experiment.lockstep):
        raise Refused(f"{experiment.norm.name} lets clients meet in every layer; run it in one process")
    loop, plan = _Loop(experiment, warn, team), experiment.norm.statistics_pass
    refreshes = plan is not None and plan.refreshes != "none"
    current = initial_state(experiment, team, limit=limit) if state is None else state
    write_statistics(experiment.model, experiment.layout, current.statistics)
    experiment.model.train()
    while current.round < experiment.settings.end:
        measured, handed = measure(current.round + 1), local(current.round + 1)
        record = loop.round(current, measured=measured, local=handed)
        current = record.state
        last = current.round == experiment.settings.end
        if last or measured or handed:
            sound(current)
        if not refreshes or not (last or measured):
            yield record
            continue
        tested = replace(current, statistics=loop.channel.refreshed(current))
        write_statistics(experiment.model, experiment.layout, tested.statistics)
        yield replace(record, tested=tested)
        write_statistics(experiment.model, experiment.layout, current.statistics)


def sound(state: State) -> None:
    if not math.isfinite(float(state.theta.sum())):
        raise Diverged(state.round, "the model")


@dataclass(frozen=True)
class Seen:
    """Values read from the device in a round, all at once: of the honest clients the mean ``loss``, everybody's
    statistics reports, and of all that clients keep to themselves the sum and the smallest variance.
    """

    loss: float
    reports: Reports
    own: float
    smallest: float


@dataclass(frozen=True)
class Present:
    """The participants of a round: ``ids``, ``h`` honest ones first, then ``f`` attackers."""

    ids: list[int]
    h: int
    f: int


class _Loop:
    def __init__(self, experiment: Experiment, warn: Callable[[str], None], team: Team = ALONE) -> None:
        self._e = experiment
        self._rows: Tensor | None = None
        self._clients = Clients(experiment, warn)
        everybody = sorted(range(experiment.settings.clients), key=lambda k: (k in experiment.byzantine, k))
        self._exchange = ClientSharding(team, everybody, warn)
        self.channel = StatisticsChannel(experiment, self._clients, self._exchange)
        steps = map(self._clients.steps, range(experiment.settings.clients))
        if caution := experiment.algorithm.caution(max(steps)):
            warn(caution)

    def round(self, state: State, *, measured: bool, local: bool = False) -> RoundRecord:
        who = self._sample(state.round)
        if who.h == 0:  # nobody honest was drawn: there is nothing to learn from and nothing to measure
            state = replace(state, round=state.round + 1)
            return RoundRecord(state.round, float("nan"), {"no_honest_client": True}, state)
        state = self._adapted(state, who)
        propagated = self._propagate(state)
        stack, messages, memory = self._work(state, who)
        seen = self._look(state, who, stack, messages)
        context = self._context(state, who)
        attack = dict(state.attack) | self._forge(state, who, stack, context)
        result = stack.defended(self._e.defense, f=self._e.settings.f_declared, context=context)
        facts = dict(result.facts) | (propagated | self._shifts(who, stack, result, context) if measured else {})
        aggregate = stack.whole(result.vector)
        models = self._local_models(state, who, stack, seen) if local else None
        server = self._step(state, who, stack, aggregate, context)
        statistics, known = self._merge(state, who, seen, context, facts if measured else None)
        smallest = self._settled(state, seen, statistics)
        previous = aggregate.clone() if self._e.attack.forges or self._e.attack.poisons_data else None
        new = replace(
            state, round=state.round + 1, statistics=statistics, memory=memory, defense=dict(result.state),
            server=server, attack=attack | known, previous=previous, smallest_variance=smallest,
        )  # fmt: skip
        facts["smallest_variance"] = smallest if self._e.layout.s else None
        return RoundRecord(new.round, seen.loss, facts, new, local=models)

    def _sample(self, round: int) -> Present:
        ids = self._e.settings.sample(round)
        honest, attackers = ([k for k in ids if (k in self._e.byzantine) == bad] for bad in (False, True))
        return Present(honest + attackers, len(honest), len(attackers))

    def _propagate(self, state: State) -> dict[str, float]:
        """Let users send each other statistics, where they do every round; how far attackers moved them, if at all."""
        e, moved = self._e, None
        if e.propagate is not None and e.propagate.propagation.every_round and state.personal is not None:
            moved = propagate_statistics(e, state.personal.statistics, state.round, state.attack)
        return {} if moved is None else {"statistics_shift": moved}

    def _adapted(self, state: State, who: Present) -> State:
        """The state with what the attackers fit to the model that they receive, if they do, and clients with it."""
        e = self._e
        if not e.attack.adapts:
            return state
        if who.f and e.attack.on(state.round):
            x, y = self._clients.attackers_images(who.ids[who.h :], state.round)
            model = e.algorithm.broadcast(state.theta, state.server).clone()
            with evaluating(e.model), lent(state.theta, model):
                made = e.attack.adapt(e.model, x, y, state=state.attack.get("data", {}))
            state = replace(state, attack=state.attack | {"data": dict(made)})
        self._clients.attack = e.attack.adapted(state.attack.get("data", {}))
        return state

    # --- work --------------------------------------------------------------------------------------------------------

    def _work(self, state: State, who: Present) -> tuple[MessageStack, Messages, Tensor | None]:
        """The stack of honest messages, with room for the attackers'; what goes beside it; the clients' memories."""
        e, t = self._e, state.round
        computing = who.ids if e.computes_own else who.ids[: who.h]
        here = [computing[place] for place in self._exchange.mine(computing)]
        rows, memory, seats = self._room(state, here, len(who.ids))
        received = e.algorithm.broadcast(state.theta, state.server)
        passed = None
        if e.norm.statistics_pass is not None or e.lockstep:  # where servers decide on the way
            sound(state)
        if e.norm.statistics_pass is not None:
            passed = self.channel.passes(state, who.ids, who.h, t, received)
        frozen = e.norm.frozen(t, e.settings.rounds)
        together = e.lockstep and not frozen
        reducer = self.channel.reducer(who.ids, who.h, who.f, state) if together else None
        previous = self._moved(state) if e.attack.poisons_data else None
        given = Round(t, received, frozen, state.server, state.personal, reducer, previous=previous)
        lends = memory is not None and seats is None
        messages = train_locally(self._clients, here, given, memory, out=rows[: len(here)], lends=lends)
        kept = state.memory
        if messages.kept:  # the next round's messages go where the memory was
            kept, self._rows = rows, kept
        elif seats is not None and memory is not None and kept is not None:
            kept[seats] = memory.to(kept.device)
        stack, messages = self._exchange.stack(rows, messages, computing, who.h, len(who.ids), state.personal)
        return stack, messages if passed is None else replace(messages, reports=passed), kept

    def _moved(self, state: State) -> Tensor | None:
        """How the last aggregate moved the model ``[d]``, by a server without a state of its own."""
        if state.previous is None:
            return None
        e, zero = self._e, torch.zeros_like(state.theta)
        return e.algorithm.server(zero, e.privacy.whole(state.previous, e.layout.d), e.lr(state.round - 1))

    def _room(self, state: State, ids: list[int], n: int) -> tuple[Tensor, Tensor | None, list[int] | None]:
        """Rows ``[n d']`` for the messages, the memories of the computing clients, and where to write them back.

        Nowhere, if everybody is there and no attacker's own memory counts: then messages that clients keep as they are
        need no copy, and what is forged in the place of the attackers' does no harm.
        """
        e, memory, back, alone = self._e, None, None, self._exchange.team.size == 1
        if state.memory is not None:
            seats = self._exchange.seats(ids)
            everybody = alone and not state.files and n == len(state.memory) and seats == list(range(len(seats)))
            if everybody and not (e.byzantine and e.computes_own):
                memory = state.memory[: len(ids)]
            else:
                memory, back = state.memory[seats].to(state.theta.device), seats
        shape = (n if alone else len(ids), len(e.privacy.sent(state.theta)))
        if self._rows is None or self._rows.shape != shape:
            self._rows = state.theta.new_empty(shape)
        return self._rows, memory, back

    def _look(self, state: State, who: Present, stack: MessageStack, messages: Messages) -> Seen:
        """Read what has to be known on the CPU. Raises ``Diverged`` for a model or an honest message not finite."""
        e, losses, reports, own = self._e, messages.losses[: who.h], messages.reports, state.personal
        honest = stack.rows[: who.h]
        size = honest.sum() if honest.dtype == torch.float32 else torch.linalg.vector_norm(honest, dim=1).max()
        values = [losses.mean(), losses.sum() + size, state.theta.sum()]
        if own is not None:
            computing = who.ids if e.computes_own else who.ids[: who.h]
            values.append(own.sum(computing if state.files else None).to(losses))
        if own is not None and e.privacy.statistics:
            values.append(self.channel.smallest(own.statistics).to(losses))
        rows = reports.rows if e.norm.sends_statistics else reports.rows[:, :0]
        read = torch.cat([torch.stack(values), rows.flatten().to(losses)]).cpu()
        loss, total, model, *kept = read[: len(values)].tolist()
        if not math.isfinite(model):
            raise Diverged(state.round, "the model")
        if not self._exchange.team.agree(abs(total) <= LONGEST):  # longer rows count as not finite
            raise Diverged(state.round + 1, "an honest message")
        received = Reports(read[len(values) :].view(rows.shape).to(rows.dtype), reports.counts)
        return Seen(loss, received, *(kept + [0.0, 1.0][len(kept) :]))

    def _context(self, state: State, who: Present) -> Context:
        e, t = self._e, state.round
        rule = e.defense.aggregator
        return Context(
            generator=e.stream("defense", t),
            round=t,
            weights=e.weights(who.ids),
            state=state.defense,
            clients=torch.tensor(who.ids),
            reference=self._reference(state),
            shapes=tuple(e.tensors.values()),
            model=e.privacy.sent(state.theta),
            noise_outputs=(lambda *given: noise_outputs(e, state, *given)) if rule.sees_outputs else None,
            representations=(lambda rows: representations(e, state, rows)) if rule.sees_representations else None,
        )

    def _reference(self, state: State) -> Tensor | None:
        """The update of the server itself, on data of its own, like those of clients, for defenses that trust it."""
        e, t = self._e, state.round
        if e.root is None or not e.defense.aggregator.needs_reference:
            return None
        out = torch.empty_like(e.privacy.sent(state.theta)).unsqueeze(0)
        received = e.algorithm.broadcast(state.theta, state.server)
        given = Round(t, received, e.norm.frozen(t, e.settings.rounds), state.server)
        train_locally(self._clients, [e.settings.clients], given, state.root, out=out)
        return out[0]

    # --- attack and server -------------------------------------------------------------------------------------------

    def _forge(
        self, state: State, who: Present, stack: MessageStack, context: Context
    ) -> dict[str, Mapping[str, Tensor]]:
        """Put the attackers' updates on the stack; returns what the attack remembers of the channel."""
        e, f = self._e, who.f
        if not (f and e.attacks_updates and stack.width):
            return {}

        def defended(rows: Tensor, context: Context) -> Tensor:
            return e.defense.run(rows, f=e.settings.f_declared, context=context).vector

        def view(honest: Tensor, own: Tensor | None, previous: Tensor | None) -> View:
            return View(
                n=len(honest) + f,
                f=f,
                honest=honest,
                own=own,
                aggregate=Rehearsal.of(defended, context, isometric=e.defense.isometric),
                round=context.round,
                previous=previous,
                state=state.attack.get("update", {}),
                tensors=e.tensors,
            ).redacted(e.attack)

        own = stack.rows[who.h :].clone() if e.computes_own else None
        return {"update": stack.forge(e.attack, own, state.previous, view, e.stream("attack", context.round))}

    def _shifts(self, who: Present, stack: MessageStack, result: Aggregated, context: Context) -> dict[str, float]:
        """The shifts of the mean of the updates by the attack, and of the defense's result from the honest one."""
        e, weights = self._e, context.weights
        if not stack.width:
            return {}
        attacked = who.f and e.attack.on(context.round) and (e.attacks_updates or e.attack.poisons_data)
        moved = stack.attack_shift(weights) if attacked else 0.0
        honest = who.h if attacked else who.h + who.f  # whom an attack leaves alone sends what honest clients send
        return {"attack_shift": moved, "defense_shift": stack.defense_shift(result.vector, weights, honest)}

    def _step(
        self, state: State, who: Present, stack: MessageStack, aggregate: Tensor, context: Context
    ) -> dict[str, Tensor]:
        """Move θ, in place, and return the server's new state."""
        e, privacy = self._e, self._e.privacy

        def again(make: Callable[[Tensor, Mapping[str, Tensor]], Tensor]) -> Tensor:
            sent = {name: stack.columns(privacy.sent(value)) for name, value in state.server.items()}
            fresh = replace(context, generator=e.stream("defense-second", state.round), state={})
            found = stack.defended(e.defense, f=e.settings.f_declared, context=fresh, rows=make(stack.rows, sent))
            return privacy.whole(stack.whole(found.vector), e.layout.d)

        steps = tuple(self._clients.steps(k) for k in who.ids)
        whole, lr, n = privacy.whole(aggregate, e.layout.d), e.lr(state.round), e.settings.clients
        draws = e.stream("server", state.round) if "draws" in e.algorithm.asks else None
        last = not any(self._sample(t).h for t in range(state.round + 1, e.settings.rounds))  # nobody changes it after
        beside = draws, last, privacy.mask, context.weights
        given = ServerWork(state.theta, whole, lr, state.server, again, steps, n, *beside)
        theta, server = pair(
            e.algorithm.server_step(given), "the model, the server's state", e.algorithm, "server_step()"
        )
        held = e.held(state.round)  # nor does the noise or the memory of a server or a defense move frozen layers
        state.theta[held:].copy_(received(theta, state.theta, e.algorithm, "server_step()")[held:])
        kept: dict[str, Tensor] = server
        return kept

    def _merge(
        self, state: State, who: Present, seen: Seen, context: Context, facts: dict[str, Any] | None
    ) -> tuple[Tensor, dict[str, Mapping[str, Tensor]]]:
        """The server's new statistics, and what the attack remembers of that channel; ``facts`` are added to."""
        e = self._e
        if not (e.norm.sends_statistics and e.layout.s) or e.norm.frozen(state.round, e.settings.rounds):
            return state.statistics, {}
        unknown: dict[str, Any] = dict.fromkeys(("reference", "model", "noise_outputs", "representations"))
        plain = replace(context, state={}, shapes=(), **unknown)
        statistics, known = self.channel.merge(seen.reports, who.h, who.f, state, plain, facts=facts)
        return statistics, {"statistics": known}

    def _settled(self, state: State, seen: Seen, statistics: Tensor) -> float:
        """Load the statistics and let go of files; the smallest variance so far. Raises ``Diverged``."""
        e, own = self._e, state.personal is not None and self._e.privacy.statistics
        for file in state.files:
            settle(file)
        if not math.isfinite(float(statistics.sum()) + seen.own):
            raise Diverged(state.round + 1, "the model")
        write_statistics(e.model, e.layout, statistics)
        if not e.layout.s:
            return state.smallest_variance
        least = seen.smallest if own else float(self.channel.smallest(statistics[None]))
        return min(least, state.smallest_variance)

    def _local_models(self, state: State, who: Present, stack: MessageStack, seen: Seen) -> LocalModels:
        if self._exchange.team.size > 1:
            raise Refused("forgetting looks at local models, which no process has as a whole; run it in one process")
        received = self._e.algorithm.broadcast(state.theta.clone(), state.server)
        own = self.channel.local(seen.reports, state.statistics)[: who.h]
        return LocalModels(tuple(who.ids[: who.h]), received, state.statistics, stack.rows[: who.h], own)
