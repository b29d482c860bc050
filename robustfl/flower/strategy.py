"""A Flower strategy whose server aggregates by a robust rule."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from robustfl.contracts import Aggregated, Context
from robustfl.defenses import parse_pipeline
from robustfl.defenses.pipeline import Pipeline
from robustfl.defenses.stack import check_f
from robustfl.errors import Refused, UsageError
from robustfl.federation.statistics import DefendedStatistics
from robustfl.flower.channels import Channels, Rows, arrays_of, in_order
from robustfl.norms.merging import merge_layers
from robustfl.randomness import stream

Metrics = Callable[[list[RecordDict], str], MetricRecord]
Reference = Callable[[int, ArrayRecord], ArrayRecord]
SAME = "same"

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

    A reply with other arrays than the model's, or without a number of samples, counts as Byzantine and is left out, as
    are rows with NaN or infinity. Where too few replies are left for the rule, the model stays as it was in that round,
    with a warning. The metrics of a round tell ``robustfl-clients``, ``robustfl-dropped`` and ``robustfl-unchanged``.

    Args:
        defense: a pipeline such as ``"nnm+trimmed-mean"``, or what ``robustfl.defense`` returns.
        f: how many of a round's clients may be Byzantine.
        model: the module whose ``state_dict`` the arrays are; needed where it has normalization statistics.
        statistics_defense: the pipeline for statistics; ``"same"`` as for updates, ``"mean"`` for no defense.
        weighted: whether rules that weigh clients (``mean``, ``rfa``) do so by their number of samples, which nobody
            can check.
        reference: for rules that need the server's own update (FLTrust): a function of the round and the model sent
            that returns the model after training on the server's data.
        seed: of the draws of rules that draw.
        device: where rules are computed.
        state: the memory of an earlier run, to go on from.
        min_train_nodes: by default the fewest clients the rule is defined for.

    The others are those of Flower's ``FedAvg``. Raises ``Refused`` for fewer clients than the rule needs.

    >>> RobustStrategy("krum", f=2).min_train_nodes
    7
    """

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
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int | None = None,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Metrics | None = None,
        evaluate_metrics_aggr_fn: Metrics | None = None,
    ) -> None:
        self.rule = parse_pipeline(defense) if isinstance(defense, str) else defense
        self.f = check_f(f, "RobustStrategy")
        same = isinstance(statistics_defense, str) and statistics_defense == SAME
        chosen = self.rule if same else statistics_defense
        self.statistics_rule = parse_pipeline(chosen) if isinstance(chosen, str) else chosen
        asked = max(2, self.rule.min_clients(self.f)) if min_train_nodes is None else min_train_nodes
        _check_served(self.rule, asked, self.f, model, reference)
        self.model, self.weighted, self.reference, self.seed = model, weighted, reference, seed
        self.device, self.state = torch.device(device), dict(state or {})
        self._channels: Channels | None = None
        self._sent: ArrayRecord | None = None
        self._seats: dict[int, int] = {}
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=asked,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=max(asked, min_evaluate_nodes) if min_available_nodes is None else min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )

    def summary(self) -> None:
        """Log the strategy's settings."""
        _log.info("\t├──> Defense: %s, f=%d", self.rule.describe(), self.f)
        _log.info("\t├──> Statistics: %s", self.statistics_rule.describe())
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the model that is sent, and send it to the round's clients."""
        self.look_at(arrays)
        if self.channels.layers:
            refusal = self.statistics_rule.statistics_refusal(self.min_train_nodes, self.f)
            if refusal is not None:
                raise Refused(f"RobustStrategy: statistics_defense: {refusal}; 'median' or 'trimmed-mean' may serve")
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model from the clients' replies, and their metrics."""
        there, failed = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        if self._channels is None or self._sent is None:
            raise UsageError(
                "RobustStrategy: aggregate_train without configure_train; the model that was sent is unknown"
            )
        if not there:
            return None, None
        received = self.received(server_round, in_order(there))
        facts: dict[str, int | float] = {"robustfl-clients": len(there), "robustfl-failed": len(failed)}
        arrays = None
        try:
            arrays, dropped = self._aggregated(server_round, received)
            facts["robustfl-dropped"] = dropped
        except Refused as error:
            _log.warning("round %d: the model stays as it is: %s", server_round, error)
        metrics = self._metrics([received.replies[place].content for place in received.sound])
        metrics |= facts | {"robustfl-unchanged": int(arrays is None)}
        return arrays, MetricRecord(metrics)

    # --- the round as rows -------------------------------------------------------------------------------------------

    def look_at(self, arrays: ArrayRecord) -> None:
        """Take ``arrays`` for the model that is sent in this round."""
        self._channels, self._sent = Channels.of(arrays, self.model), arrays

    @property
    def channels(self) -> Channels:
        """The channels of the model of this round."""
        assert self._channels is not None
        return self._channels

    @property
    def sent(self) -> Rows:
        """The model that was sent in this round."""
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
            except Exception as error:  # anything may come from outside
                _log.warning("node %d sent what cannot be used: %s", reply.metadata.src_node_id, error)
                broken = torch.full_like(sent.update, torch.nan), torch.full_like(sent.statistics, torch.nan)
                found, weight = Rows(*broken, sent.counters), 1.0
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
            state=self.state,
            clients=torch.tensor(seats),
            shapes=tuple(self.channels.shapes[name] for name in self.channels.update),
            model=sent.update.to(self.device),
        )
        return Received(
            replies=tuple(replies),
            updates=torch.stack([row.update - sent.update for row in rows]).to(self.device),
            statistics=torch.stack([row.statistics for row in rows]).to(self.device),
            counters=tuple(rows[place].counters for place in sound),
            sound=tuple(sound),
            context=context,
        )

    def _weight(self, reply: Message) -> float:
        records = list(reply.content.metric_records.values())
        value = records[0].get(self.weighted_by_key) if len(records) == 1 else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"no number of samples ({self.weighted_by_key!r}) ≥ 0")
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

    def _aggregated(self, server_round: int, received: Received) -> tuple[ArrayRecord, int]:
        """The new model, and how many clients were left out."""
        sent, context = self.sent, received.context
        if self.reference is not None and self.rule.aggregator.needs_reference:
            assert self._sent is not None
            own = self.channels.read(self.reference(server_round, self._sent))
            context = replace(context, reference=(own.update - sent.update).to(self.device))
        result = self.defended(received.updates, context)
        statistics = sent.statistics
        if self.channels.layers:
            statistics = self.merged(received.statistics, sent.statistics.to(self.device), context).cpu()
        counters = [torch.stack(found).median(0).values for found in zip(*received.counters, strict=True)]
        self.state = dict(result.state)
        arrays = self.channels.written(sent.update + result.vector.cpu(), statistics, counters)
        return arrays, int(result.facts.get("dropped", 0))

    def _metrics(self, contents: list[RecordDict]) -> dict[str, int | float | list[int] | list[float]]:
        """The clients' metrics, of those who send what most of them send."""
        if not contents:
            return {}
        keys = [frozenset(next(iter(content.metric_records.values()))) for content in contents]
        usual = Counter(keys).most_common(1)[0][0]
        chosen = [content for content, own in zip(contents, keys, strict=True) if own == usual]
        try:
            return dict(self.train_metrics_aggr_fn(chosen, self.weighted_by_key))
        except Exception as error:  # anything may come from outside; the model is more than its metrics
            _log.warning("the clients' metrics cannot be averaged: %s: %s", type(error).__name__, error)
            return {}


def _check_served(rule: Pipeline, clients: int, f: int, model: nn.Module | None, reference: Reference | None) -> None:
    """Raise ``UsageError`` or ``Refused`` for what the rule cannot work with."""
    if model is not None and not isinstance(model, nn.Module):
        raise UsageError(f"RobustStrategy: model is a {type(model).__name__}, not a torch.nn.Module")
    if rule.aggregator.needs_reference and reference is None:
        raise UsageError(
            f"RobustStrategy: {rule.aggregator.name} compares clients with the server's own update; give reference=, "
            "a function of the round and the model sent that returns a model trained on server data"
        )
    refusal = rule.refusal(clients, f)
    if refusal is not None:
        raise Refused(f"RobustStrategy: min_train_nodes={clients}: {refusal}")
