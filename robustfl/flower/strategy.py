"""A Flower strategy whose server aggregates by a robust rule."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from robustfl.arguments import check_flag, check_model, check_whole, usable_device
from robustfl.contracts import Aggregated, Context
from robustfl.defenses import parse_pipeline
from robustfl.defenses.aggregation import DefendedStatistics
from robustfl.defenses.pipeline import Pipeline
from robustfl.defenses.stack import LONGEST, check_f
from robustfl.errors import Refused, UsageError, told
from robustfl.flower.channels import Channels, Rows, arrays_of, in_order
from robustfl.layout import statistics_layers
from robustfl.norms.merging import merge_layers
from robustfl.randomness import stream

Metrics = Callable[[list[RecordDict], str], MetricRecord]
Facts = dict[str, int | float | list[int] | list[float]]
Reference = Callable[[int, ArrayRecord], ArrayRecord]
SAME = "same"
MOST_SAMPLES = 2**53
"""The largest number of samples that is believed; beyond it floats no longer count one by one, and sums overflow."""
_NODES = "flower-nodes"

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Received:
    """The replies of a round as rows: ``updates [n d]``, ``statistics [n s]``, ``weights [n]``, counters per client.

    Rows of malformed replies are NaN, which the rule leaves out; ``sound`` are the places of the others. ``context`` is
    what the rule will be called with.
    """

    replies: tuple[Message, ...]
    updates: Tensor
    statistics: Tensor
    counters: tuple[tuple[Tensor, ...], ...]
    sound: tuple[int, ...]
    context: Context


class RobustStrategy(FedAvg):
    """Federated training in Flower with a robust rule in the place of the mean.

    What clients send is taken apart: the *update*, the difference of the local model from the one that was sent, is
    aggregated by ``defense``; running means and variances of normalization layers by ``statistics_defense``, layer by
    layer and never to a negative variance; counters (batch norm's ``num_batches_tracked``) by their median. Rules that
    remember, such as centered clipping and FoolsGold, keep their ``state``.

    A reply with other arrays than the model's, with NaN or infinity, or without a number of samples, counts as
    Byzantine and is left out, with a warning that names the node. A node has one vote: its second reply of a round, a
    reply to an earlier message and one of a node that was not asked are ignored. Where too few replies are left for the
    rule, or what it makes of them is not finite, the model stays as it was in that round, with a warning. The metrics
    of a round tell ``robustfl-clients``, ``robustfl-failed``, ``robustfl-dropped`` and ``robustfl-unchanged``.

    Args:
        defense: a pipeline such as ``"nnm+trimmed-mean"``, or what ``robustfl.defense`` returns.
        f: how many of a round's clients may be Byzantine.
        model: the module whose ``state_dict`` the arrays are; needed where it has normalization statistics.
        statistics_defense: the pipeline for statistics; ``"same"`` as for updates, ``"mean"`` for no defense.
        weighted: whether rules that weigh clients (``mean``, ``rfa``) do so by their number of samples, which nobody
            can check: whoever claims the most decides. Give False where clients may lie.
        reference: for rules that need the server's own update (FLTrust): a function of the round and the model sent
            that returns the model after training on the server's data.
        seed: of the draws of rules that draw.
        device: where rules are computed.
        state: the memory of an earlier run, to go on from.
        min_train_nodes: by default the fewest clients the rule is defined for.

    The others are those of Flower's ``FedAvg``. Raises ``Refused`` for fewer clients than the rule needs, and for a
    rule that is unfit for the statistics of ``model``.

    >>> RobustStrategy("krum", f=2).min_train_nodes
    7
    """

    _own: Tensor | None = None
    """The server's own update in this round, for rules that ask for it."""

    def __init__(
        self,
        defense: str | Pipeline,
        *,
        f: int,
        model: nn.Module | None = None,
        statistics_defense: str | Pipeline = SAME,
        weighted: bool = True,
        reference: Reference | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        state: Mapping[str, Tensor] | None = None,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int | None = None,
        **others: Any,
    ) -> None:
        self.rule = _pipeline(defense, "defense")
        self.f = check_f(f, "RobustStrategy")
        same = isinstance(statistics_defense, str) and statistics_defense == SAME
        self.statistics_rule = self.rule if same else _pipeline(statistics_defense, "statistics_defense")
        asked = max(2, self.rule.min_clients(self.f)) if min_train_nodes is None else min_train_nodes
        check_whole(asked, "min_train_nodes", "RobustStrategy")
        _check_served(self.rule, self.statistics_rule, asked, self.f, model, reference)
        self.model, self.weighted, self.reference = model, check_flag(weighted, "weighted", "RobustStrategy"), reference
        self.seed, self.device = check_whole(seed, "seed", "RobustStrategy"), usable_device(device, "RobustStrategy")
        self.state, self._resumed = _checked(state), bool(state)
        self._channels: Channels | None = None
        self._sent: ArrayRecord | None = None
        self._asked: dict[int, Metadata] = {}
        known = self.state.get(_NODES, torch.empty(0, dtype=torch.int64)).cpu().numpy().view(np.uint64).tolist()
        self._seats: dict[int, int] = {node: seat for seat, node in enumerate(known)}
        least = max(asked, min_evaluate_nodes) if min_available_nodes is None else min_available_nodes
        super().__init__(
            min_train_nodes=asked, min_evaluate_nodes=min_evaluate_nodes, min_available_nodes=least, **others
        )

    def summary(self) -> None:
        _log.info("\t├──> Defense: %s, f=%d", self.rule.describe(), self.f)
        _log.info("\t├──> Statistics: %s", self.statistics_rule.describe())
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the model that is sent, and send it to the round's clients."""
        self.look_at(arrays)
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id: message.metadata for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model from the clients' replies, and their metrics."""
        there, failed = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        if self._channels is None or self._sent is None:
            raise UsageError(
                "RobustStrategy: aggregate_train without configure_train; the model that was sent is unknown"
            )
        there = self._one_a_node(there)
        facts: Facts = {"robustfl-clients": len(there), "robustfl-failed": len(failed)}
        if not there:
            _log.warning("round %d: the model stays as it is: no client answered", server_round)
            return None, MetricRecord(facts | {"robustfl-dropped": 0, "robustfl-unchanged": 1})
        received = self.received(server_round, in_order(there))
        facts["robustfl-dropped"] = len(there) - len(received.sound)
        arrays = None
        try:
            arrays, dropped = self._aggregated(received)
            facts["robustfl-dropped"] = dropped
        except Refused as error:
            _log.warning("round %d: the model stays as it is: %s", server_round, error)
        metrics = self._metrics([received.replies[place] for place in received.sound], self.train_metrics_aggr_fn)
        metrics |= facts | {"robustfl-unchanged": int(arrays is None)}
        return arrays, MetricRecord(metrics)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the clients' evaluations; replies without metrics that fit are left out."""
        there, _ = self._check_and_log_replies(list(replies), is_train=False, validate=False)
        sound = []
        for reply in there:
            try:
                self._weight(reply)
            except Exception as error:  # anything may come from outside
                _log.warning("%s", _unfit(reply, error))
            else:
                sound.append(reply)
        return MetricRecord(self._metrics(sound, self.evaluate_metrics_aggr_fn)) if sound else None

    def _one_a_node(self, replies: Sequence[Message]) -> list[Message]:
        """The first reply of every node to what it was asked in this round; the others would be votes too many."""
        first: dict[int, Message] = {}
        for reply in replies:
            node, to = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
            asked = self._asked.get(node)
            if node in first:
                _log.warning("node %d answered more than once; its first reply counts", node)
            elif self._asked and asked is None:
                _log.warning("node %d answered without being asked; its reply is ignored", node)
            elif asked is not None and asked.message_id and to != asked.message_id:
                _log.warning("node %d answered message %r of another round; its reply is ignored", node, to)
            else:
                first[node] = reply
        return list(first.values())

    # --- the round as rows -------------------------------------------------------------------------------------------

    def look_at(self, arrays: ArrayRecord) -> None:
        """Take ``arrays`` for the model that is sent in this round."""
        self._channels, self._sent, self._asked = Channels.of(arrays, self.model), arrays, {}
        self._own = None

    @property
    def channels(self) -> Channels:
        assert self._channels is not None
        return self._channels

    @property
    def sent(self) -> Rows:
        assert self._sent is not None
        return self.channels.read(self._sent)

    def received(self, server_round: int, replies: Sequence[Message]) -> Received:
        """The replies as rows, in their order."""
        sent = self.sent
        rows: list[Rows] = []
        weights, sound = [], []
        for place, reply in enumerate(replies):
            try:
                found, weight = self.channels.read(arrays_of(reply)), self._weight(reply)
                _check_finite("an update", found.update - sent.update)
                _check_finite("statistics", found.statistics)
            except Exception as error:  # anything may come from outside
                _log.warning("%s", _unfit(reply, error))
                broken = torch.full_like(sent.update, torch.nan), torch.full_like(sent.statistics, torch.nan)
                found, weight = Rows(*broken, sent.counters), 0.0
            else:
                sound.append(place)
            rows.append(found)
            weights.append(weight)
        nodes = [reply.metadata.src_node_id for reply in replies]
        seats = [self._seats.setdefault(node, len(self._seats)) for node in nodes]
        context = Context(
            generator=stream(self.seed, "defense", server_round - 1, device=self.device),
            round=server_round - 1,
            weights=torch.tensor(weights, dtype=torch.float64) if self.weighted and sum(weights) > 0 else None,
            state={name: value for name, value in self.state.items() if name != _NODES},
            clients=torch.tensor(seats),
            shapes=tuple(self.channels.updated.values()),
            model=sent.update.to(self.device),
            reference=self._reference(server_round),
        )
        return Received(
            replies=tuple(replies),
            updates=torch.stack([row.update - sent.update for row in rows]).to(self.device),
            statistics=torch.stack([row.statistics for row in rows]).to(self.device),
            counters=tuple(rows[place].counters for place in sound),
            sound=tuple(sound),
            context=context,
        )

    def _reference(self, server_round: int) -> Tensor | None:
        """The server's own update, made once a round, for rules that ask for it."""
        if self.reference is None or not self.rule.aggregator.needs_reference:
            return None
        if self._own is None:
            assert self._sent is not None
            try:
                own = self.channels.read(self.reference(server_round, self._sent))
            except Exception as error:
                raise UsageError(
                    f"RobustStrategy: reference= does not return the server's model: {told(error)}"
                ) from error
            self._own = (own.update - self.sent.update).to(self.device)
        return self._own

    def _weight(self, reply: Message) -> float:
        records = list(reply.content.metric_records.values())
        if len(records) != 1:
            raise ValueError(f"{len(records)} records of metrics; one is needed")
        value = records[0].get(self.weighted_by_key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_SAMPLES:
            raise ValueError(f"{self.weighted_by_key}={value!r:.40} is no number of samples from 0 to 2**53")
        return float(value)

    def defended(self, updates: Tensor, context: Context) -> Aggregated:
        """The rule on updates ``[n d]``."""
        reason = self.rule.refusal(len(updates), self.f)
        if reason is not None:
            raise Refused(reason)
        return self.rule.run(updates, f=self.f, context=context)

    def merged(self, statistics: Tensor, previous: Tensor, context: Context) -> Tensor:
        """The new statistics ``[s]`` from the clients' ``[n s]``."""
        layers = self.channels.layers
        counts = torch.ones((len(statistics), len(layers)), dtype=torch.int64)
        plain = replace(context, state={}, reference=None, shapes=(), model=None)
        defense = DefendedStatistics(self.statistics_rule, self.f, plain)
        return merge_layers(statistics, counts, previous, layers, defense)

    def _aggregated(self, received: Received) -> tuple[ArrayRecord, int]:
        """The new model, and how many clients were left out."""
        sent, context = self.sent, received.context
        result = self.defended(received.updates, context)
        statistics = sent.statistics
        if self.channels.layers:
            statistics = self.merged(received.statistics, sent.statistics.to(self.device), context).cpu()
        counters = [_lower_median(found) for found in zip(*received.counters, strict=True)]
        arrays = self.channels.written(sent.update + result.vector.cpu(), statistics, counters)
        for name, array in arrays.items():
            if not np.isfinite(array.numpy()).all():
                raise Refused(f"{self.rule.describe()}: what it makes of array {name!r} is not finite")
        self._remember(result.state)
        return arrays, int(result.facts.get("dropped", 0))

    def _remember(self, state: Mapping[str, Tensor]) -> None:
        """Keep the rule's new state, with the nodes whose seats it speaks of."""
        unknown = sorted(set(self.state) - set(state) - {_NODES})
        if self._resumed and unknown:
            raise UsageError(
                f"RobustStrategy: state= holds {', '.join(unknown)}, which {self.rule.describe()} does not keep (it "
                f"keeps {', '.join(sorted(state)) or 'nothing'}); give the state of a strategy of the same defense"
            )
        nodes = torch.from_numpy(np.array(list(self._seats), dtype=np.uint64).view(np.int64))
        self._resumed, self.state = False, {**state, _NODES: nodes} if state else {}

    def _metrics(self, replies: list[Message], averaged: Metrics) -> Facts:
        """The clients' metrics, of those who send what most of them send."""
        contents = [reply.content for reply in replies]
        if not contents:
            return {}
        keys = [frozenset(next(iter(content.metric_records.values()))) for content in contents]
        usual = Counter(keys).most_common(1)[0][0]
        chosen = [content for content, own in zip(contents, keys, strict=True) if own == usual]
        try:
            return dict(averaged(chosen, self.weighted_by_key))
        except Exception as error:  # anything may come from outside; the model is more than its metrics
            _log.warning("the clients' metrics cannot be averaged: %s: %s", type(error).__name__, error)
            return {}


def _unfit(reply: Message, error: Exception) -> str:
    """The words for a reply that is left out; what it says may be of any length."""
    return f"node {reply.metadata.src_node_id} sent what cannot be used: {error!s:.200}"


def _check_finite(name: str, row: Tensor) -> None:
    """Raise ``ValueError`` for what every rule leaves out: NaN, infinity, and lengths that have no square."""
    length = float(torch.linalg.vector_norm(row, dtype=torch.float64))
    if not length <= LONGEST:
        raise ValueError(f"{name} of length {length:g}; it must be at most {LONGEST:g}")


def _lower_median(counters: Sequence[Tensor]) -> Tensor:
    """The lower median of the clients' counters; torch has none for booleans and unsigned numbers."""
    return torch.from_numpy(np.sort(torch.stack(list(counters)).numpy(), axis=0)[(len(counters) - 1) // 2])


def _checked(state: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Raise ``UsageError`` unless a state is None or a mapping of tensors."""
    if state is None:
        return {}
    fits = isinstance(state, Mapping) and all(isinstance(value, Tensor) for value in state.values())
    if not fits or (_NODES in state and state[_NODES].dtype != torch.int64):
        raise UsageError(f"RobustStrategy: state={state!r:.60} must be the state of another strategy, or None")
    return dict(state)


def _pipeline(defense: str | Pipeline, name: str) -> Pipeline:
    """A defense from its spec. Raises ``UsageError`` for what is neither."""
    if isinstance(defense, str):
        return parse_pipeline(defense)
    if not isinstance(defense, Pipeline):
        raise UsageError(f"RobustStrategy: {name}={defense!r:.60} must be a defense such as 'nnm+trimmed-mean'")
    return defense


def _check_served(
    rule: Pipeline, statistics: Pipeline, clients: int, f: int, model: nn.Module | None, reference: Reference | None
) -> None:
    """Raise ``UsageError`` or ``Refused`` for what the rules of updates and of statistics cannot work with."""
    if model is not None:
        check_model(model, "RobustStrategy")
    if rule.aggregator.needs_reference and reference is None:
        raise UsageError(
            f"RobustStrategy: {rule.aggregator.name} compares clients with the server's own update; give reference=, "
            "a function of the round and the model sent that returns a model trained on server data"
        )
    if rule.aggregator.sees_representations:
        raise UsageError(
            f"RobustStrategy: {rule.aggregator.name} compares what clients' models make of the server's images, of "
            "which the strategy has none; use another rule, such as 'fltrust' or 'foolsgold'"
        )
    refusal = rule.refusal(clients, f)
    if refusal is not None:
        raise Refused(f"RobustStrategy: min_train_nodes={clients}: {refusal}")
    unfit = statistics.statistics_refusal(clients, f) if model is not None and statistics_layers(model) else None
    if unfit is not None:
        raise Refused(f"RobustStrategy: statistics_defense: {unfit}; 'median' or 'trimmed-mean' may serve")
