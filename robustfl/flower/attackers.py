"""Byzantine clients in Flower: those who know their own message, and, in simulations, those who know all."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from robustfl.arguments import check_model, check_whole
from robustfl.attacks.byzantine.sight import Target, forged_statistics
from robustfl.contracts import Attack, Forged, Rehearsal, View
from robustfl.defenses.aggregation import PlainMean
from robustfl.errors import UsageError
from robustfl.flower.channels import NUMBER, Channels, Rows, arrays_of, in_order, number_of
from robustfl.flower.strategy import Received, RobustStrategy
from robustfl.norms.merging import merge_layers
from robustfl.randomness import stream
from robustfl.registry import create, describe

Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]
Scope = Literal["update", "statistics", "both"]

_log = logging.getLogger("flwr")
_MEMORY = "robustfl-attack"


def numbered(message: Message, context: Context, call: Call) -> Message:
    """A mod of ``ClientApp`` that writes the client's ``partition-id`` into its replies.

    Simulations draw the identifiers of their nodes anew each time. With numbers the server takes rows in the same order
    in every run, and ``Attacked`` knows who attacks. Anybody can claim a number, so outside of simulations it means
    nothing.
    """
    reply = call(message, context)
    if not reply.has_error():
        reply.content[NUMBER] = ConfigRecord({"client": _number(context)})
    return reply


def _number(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise UsageError("the node has no 'partition-id', the number by which clients of a simulation are known")
    return number


def _chosen(attack: str | Attack, clients: Collection[int], owner: str) -> tuple[Attack, frozenset[int]]:
    built = cast(Attack, create("attack", attack)) if isinstance(attack, str) else attack
    if not isinstance(built, Attack):
        raise UsageError(f"{owner}: attack={attack!r:.60} must be an attack such as 'alie(z=1.5)'")
    if not isinstance(clients, Collection) or isinstance(clients, str):
        raise UsageError(f"{owner}: clients={clients!r:.60} must be a list of partition-ids, such as [0, 1]")
    numbers = frozenset(clients)
    wrong = [k for k in numbers if isinstance(k, bool) or not isinstance(k, int) or k < 0]
    if wrong:
        raise UsageError(f"{owner}: clients hold {wrong[0]!r}; they are partition-ids, whole numbers ≥ 0")
    if not built.forges and built.poisons_data:
        raise UsageError(
            f"{owner}: {built.name!r} poisons data instead of messages; call its poison(x, y, classes=…, generator=…) "
            "on every batch in the attackers' training"
        )
    return built, numbers


def _check_common(model: nn.Module | None, seed: int, target: Target, owner: str) -> None:
    if model is not None:
        check_model(model, owner)
    check_whole(seed, "seed", owner)
    if target not in ("mean", "var", "both"):
        raise UsageError(f"{owner}: target={target!r} must be 'mean', 'var' or 'both'")


@dataclass(frozen=True)
class _Attacker:
    """The mod of ``attacker``."""

    attack: Attack
    clients: frozenset[int]
    model: nn.Module | None
    target: Target
    seed: int

    def __call__(self, message: Message, context: Context, call: Call) -> Message:
        number = _number(context)
        if number not in self.clients or message.metadata.message_type != MessageType.TRAIN:
            return numbered(message, context, call)
        received = arrays_of(message)
        channels = Channels.of(received, self.model)
        sent = channels.read(received)  # before the client trains, which may be on these very arrays
        reply = numbered(message, context, call)
        if reply.has_error():
            return reply
        own = channels.read(arrays_of(reply))
        (key,) = reply.content.array_records
        reply.content[key] = self._forged(channels, sent, own, context)
        return reply

    def _forged(self, channels: Channels, sent: Rows, own: Rows, context: Context) -> ArrayRecord:
        number, memory = _number(context), _Memory(context)
        round = memory.round
        view = View(
            n=int(cast(int, context.node_config.get("num-partitions", len(self.clients) + 1))),
            f=1,
            own=(own.update - sent.update)[None],
            round=round,
            previous=memory.moved(sent.update),
            state=memory.of("update"),
        )
        generator = stream(self.seed, "attack", number, round)
        forged = Forged.of(self.attack.forge(view.redacted(self.attack), generator=generator))
        memory.keep("update", forged.state)
        statistics = own.statistics
        if len(statistics):
            view = replace(
                view, channel="statistics", own=own.statistics[None], variance=channels.variance_mask,
                previous=sent.statistics if round else None, state=memory.of("statistics"),
            )  # fmt: skip
            generator = stream(self.seed, "attack-statistics", number, round)
            made = forged_statistics(self.attack, view.redacted(self.attack), target=self.target, generator=generator)
            memory.keep("statistics", made.state)
            statistics = made.rows[0]
        memory.close(sent.update)
        return channels.written(sent.update + forged.rows[0], statistics, own.counters)


class _Memory:
    """The state that an attacker keeps from round to round, in the state that Flower keeps for its node."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept = {} if _MEMORY not in context.state else dict(context.state.array_records[_MEMORY])

    @property
    def round(self) -> int:
        """The number of rounds in which this client has attacked."""
        return int(self._kept["round"].numpy()) if "round" in self._kept else 0

    def moved(self, now: Tensor) -> Tensor | None:
        """The difference of the model since this client was last sent it."""
        return now - torch.from_numpy(self._kept["received"].numpy()) if "received" in self._kept else None

    def of(self, channel: str) -> Mapping[str, Tensor]:
        start = f"{channel}."
        return {
            name.removeprefix(start): torch.from_numpy(value.numpy())
            for name, value in self._kept.items()
            if name.startswith(start)
        }

    def keep(self, channel: str, state: Mapping[str, Tensor]) -> None:
        self._kept = {name: value for name, value in self._kept.items() if not name.startswith(f"{channel}.")}
        self._kept |= {f"{channel}.{name}": Array(value.cpu().numpy()) for name, value in state.items()}

    def close(self, received: Tensor) -> None:
        """End the round in which the model ``received [d]`` was sent."""
        self._kept |= {"received": Array(received.numpy()), "round": Array(torch.tensor(self.round + 1).numpy())}
        self._context.state[_MEMORY] = ArrayRecord(self._kept)


def attacker(
    attack: str | Attack,
    clients: Collection[int],
    *,
    model: nn.Module | None = None,
    target: Target = "mean",
    seed: int = 0,
) -> Mod:
    """A mod of ``ClientApp`` that makes ``clients`` Byzantine: ``ClientApp(mods=[attacker("gaussian", [0, 1])])``.

    ``clients`` are ``partition-id``s. Each of them trains honestly and sends something else, knowing its own message
    alone: ``attack`` is one that needs no more, such as ``"gaussian"``, ``"random"``, ``"lazy"`` or, for
    omniscient ones, ``"partial(sf)"``. ``model`` tells statistics from weights, as for ``RobustStrategy``; ``target``
    says which statistics are forged. Replies carry the client's number, as by ``numbered``. Raises ``UsageError`` for
    attacks that see the honest clients' messages; ``Attacked`` simulates those.
    """
    chosen, numbers = _chosen(attack, clients, "attacker")
    _check_common(model, seed, target, "attacker")
    if chosen.knowledge in ("omniscient", "defense"):
        raise UsageError(
            f"attacker: {chosen.name!r} sees the honest clients' messages, which no client of Flower does; simulate it "
            f"with Attacked(strategy, {chosen.name!r}, clients=…), or take 'partial({chosen.name})'"
        )
    return _Attacker(chosen, numbers, model, target, seed)


class Attacked(Strategy):
    """Any strategy under attackers who see all, for simulations.

    Before ``strategy`` aggregates, the messages of ``clients`` are replaced by what ``attack`` makes of everybody's.
    So attacks reach rules of Flower's own, too. Attacks that know the server's rule need a ``RobustStrategy``. The
    ``ClientApp`` must number its clients: ``ClientApp(mods=[numbered])``.

    Args:
        strategy: what trains and aggregates.
        attack: any robustfl attack that forges messages.
        clients: ``partition-id``s of the Byzantine clients.
        model: as for ``RobustStrategy``, whose model is the default.
        scope: which channel is forged: ``update``, ``statistics`` or ``both``.
        target: which statistics are forged: ``mean``, ``var`` or ``both``.
        seed: of the attack's draws.
    """

    def __init__(
        self,
        strategy: Strategy,
        attack: str | Attack,
        *,
        clients: Collection[int],
        model: nn.Module | None = None,
        scope: Scope = "both",
        target: Target = "mean",
        seed: int = 0,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise UsageError(
                f"Attacked: strategy={strategy!r:.60} must be a strategy such as RobustStrategy('median', f=2)"
            )
        self.strategy = strategy
        self.attack, self.clients = _chosen(attack, clients, "Attacked")
        if scope not in ("update", "statistics", "both"):
            raise UsageError(f"Attacked: scope={scope!r} must be 'update', 'statistics' or 'both'")
        _check_common(model, seed, target, "Attacked")
        self._robust = strategy if isinstance(strategy, RobustStrategy) else None
        if self.attack.knowledge == "defense" and self._robust is None:
            raise UsageError(
                f"Attacked: {self.attack.name!r} tries out the server's rule, which {type(strategy).__name__} does not "
                "offer; give a RobustStrategy"
            )
        # Reads messages for a strategy that cannot: the rule is not used.
        self._eyes = self._robust or RobustStrategy("mean", f=0, model=model)
        if self._robust is not None and model is not None:
            self._robust.model = model
        self.scope, self.target, self.seed = scope, target, seed
        self._states: dict[str, Mapping[str, Tensor]] = {"update": {}, "statistics": {}}
        self._previous: Tensor | None = None

    def summary(self) -> None:
        _log.info("\t├──> Attack: %s by clients %s", describe(self.attack), sorted(self.clients))
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._eyes.look_at(arrays)
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's aggregate of the replies once the attackers' are forged."""
        everything = list(replies)
        self._forge(server_round, [reply for reply in everything if not reply.has_error()])
        arrays, metrics = self.strategy.aggregate_train(server_round, everything)
        if arrays is not None:
            self._previous = self._eyes.channels.read(arrays).update - self._eyes.sent.update
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _forge(self, server_round: int, replies: Sequence[Message]) -> None:
        numbers = [number_of(reply) for reply in replies]
        for number, count in Counter(numbers).items():
            if number is not None and count > 1:
                nodes = [reply.metadata.src_node_id for reply in replies if number_of(reply) == number]
                raise UsageError(f"Attacked: nodes {nodes} all claim to be client {number}")
        if None in numbers:
            raise UsageError(
                "Attacked: replies do not tell their clients' numbers; write ClientApp(mods=[robustfl.flower.numbered])"
            )
        ordered = in_order(replies)
        attackers = [place for place, reply in enumerate(ordered) if number_of(reply) in self.clients]
        honest = [place for place in range(len(ordered)) if place not in attackers]
        if not attackers or not honest or not self.attack.forges:
            return
        received = self._eyes.received(server_round, ordered)
        if len(received.sound) < len(ordered):
            raise UsageError("Attacked: a client's reply does not fit the model that was sent; see the log")
        updates, statistics = received.updates[attackers], received.statistics[attackers]
        if self.scope != "statistics":
            updates = self._updates(received, honest, attackers)
        if self.scope != "update" and statistics.shape[1]:
            if self._robust is not None and self.attack.knowledge == "defense":
                # The server draws for the updates first: what it draws for the statistics comes after that.
                whole = _seated(torch.cat([received.updates[honest], updates]), honest, attackers)
                self._robust.defended(whole, received.context)
            statistics = self._statistics(received, honest, attackers)
        sent = self._eyes.sent
        for row, place in enumerate(attackers):
            content = ordered[place].content
            (key,) = content.array_records
            moved = sent.update + updates[row].cpu()
            content[key] = self._eyes.channels.written(moved, statistics[row].cpu(), received.counters[place])

    def _view(self, rows: Tensor, honest: list[int], attackers: list[int], received: Received) -> View:
        return View(
            n=len(rows), f=len(attackers), honest=rows[honest], own=rows[attackers], round=received.context.round
        )

    def _updates(self, received: Received, honest: list[int], attackers: list[int]) -> Tensor:
        context, robust = received.context, self._robust
        rehearsal = None
        if robust is not None:
            rehearsal = Rehearsal.of(
                lambda stack, with_: robust.defended(_seated(stack, honest, attackers), with_).vector,
                context,
                isometric=robust.rule.isometric,
            )
        view = self._view(received.updates, honest, attackers, received)
        state, tensors = self._states["update"], self._eyes.channels.updated
        view = replace(view, aggregate=rehearsal, previous=self._previous, state=state, tensors=tensors)
        draws = stream(self.seed, "attack", context.round, device=received.updates.device)
        forged = Forged.of(self.attack.forge(view.redacted(self.attack), generator=draws))
        self._states["update"] = forged.state
        return forged.rows

    def _statistics(self, received: Received, honest: list[int], attackers: list[int]) -> Tensor:
        context, robust, rows = received.context, self._robust, received.statistics
        before = self._eyes.sent.statistics.to(rows.device)
        rehearsal = None
        if robust is not None:
            rehearsal = Rehearsal.of(
                lambda stack, with_: robust.merged(_seated(stack, honest, attackers), before, with_),
                context,
                origin=self._undefended(rows[honest], before, honest, received),
            )
        view = replace(
            self._view(rows, honest, attackers, received), channel="statistics", aggregate=rehearsal,
            variance=self._eyes.channels.variance_mask.to(rows.device), previous=before if context.round else None,
            state=self._states["statistics"],
        )  # fmt: skip
        draws = stream(self.seed, "attack-statistics", context.round, device=rows.device)
        forged = forged_statistics(self.attack, view.redacted(self.attack), target=self.target, generator=draws)
        self._states["statistics"] = forged.state
        return forged.rows

    def _undefended(self, rows: Tensor, before: Tensor, honest: list[int], received: Received) -> Tensor:
        """The statistics ``[s]`` of a server without a defense and without attackers."""
        layers, weights = self._eyes.channels.layers, received.context.weights
        counts = torch.ones((len(rows), len(layers)), dtype=torch.int64)
        return merge_layers(rows, counts, before, layers, PlainMean(None if weights is None else weights[honest]))


def _seated(stack: Tensor, honest: list[int], attackers: list[int]) -> Tensor:
    """Rows with the attackers' last ``[n d]`` in the order in which the server takes them."""
    rows = torch.empty_like(stack)
    rows[[*honest, *attackers]] = stack
    return rows
