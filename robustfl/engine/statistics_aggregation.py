"""The server's side of normalization statistics: passes over data, exchanges in lock-step, forged rows, the merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustfl.attacks.byzantine.sight import forge_statistics, forged_statistics
from robustfl.contracts import Context, Reducer, Rehearsal, Reports, View
from robustfl.defenses.aggregation import DefendedStatistics, PlainMean
from robustfl.engine.client_sharding import ClientSharding, attack_shift, mean
from robustfl.engine.clients import STATISTICS_BATCH, Clients
from robustfl.engine.experiment import Experiment
from robustfl.engine.state import State
from robustfl.errors import Diverged
from robustfl.gradients import grouped
from robustfl.layout import Layout, write_statistics
from robustfl.randomness import stream
from robustfl.results import received


class StatisticsChannel:
    """The channel of normalization statistics: messages, attack, and the server's merge.

    Rows of statistics are short, and their merge is many small steps, layer by layer, some of which decide by values:
    all of it happens on the CPU, wherever the model is.
    """

    def __init__(self, experiment: Experiment, clients: Clients, exchange: ClientSharding) -> None:
        self._e, self._clients, self._exchange = experiment, clients, exchange
        self._variance = experiment.layout.variance_mask()
        self._variances = self._variance.nonzero().flatten()
        settings = experiment.settings
        met = (t for t in range(settings.rounds) if not experiment.byzantine.issuperset(settings.sample(t)))
        self._begins = next(met, settings.rounds)

    def merge(
        self, reports: Reports, h: int, f: int, state: State, context: Context, *,
        refresh: bool = False, acting: int | None = None, facts: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:  # fmt: skip
        """The server's new statistics: honest reports to messages, attackers' rows forged, the norm's own merge.

        And what the attack wants to remember of this channel. ``facts`` is told how far it moved the mean. ``acting``
        is the round whose attackers act, if it is not that of the context.
        """
        e, known = self._e, state.attack.get("statistics", {})
        computed = len(reports.rows)
        reports = Reports(reports.rows.cpu(), reports.counts)
        if computed < h + f:  # one batch of equal size each: attackers claim the counts every client has
            absent = (h + f - computed, -1)
            rows = torch.cat([reports.rows, reports.rows[:1].expand(absent)])
            reports = Reports(rows, torch.cat([reports.counts, reports.counts[:1].expand(absent)]))
        rows = e.norm.messages(reports, state.statistics, e.layout.layers)
        rows = received(rows, reports.rows, e.norm, "messages()")
        if not bool(torch.isfinite(rows[:h]).all()):
            raise Diverged(state.round + 1, "an honest report")

        def merged(rows: Tensor, context: Context) -> Tensor:
            defended = DefendedStatistics(e.statistics_rule, e.settings.f_declared, context, refresh, self._begins)
            return e.norm.merge(rows, reports.counts, state.statistics, e.layout.layers, defended)

        if f and e.attacks_statistics:
            view = View(
                n=h + f,
                f=f,
                channel="statistics",
                honest=rows[:h].clone(),
                own=rows[h:].clone() if computed == h + f else None,
                aggregate=Rehearsal.of(merged, context, origin=self._origin(rows, reports, h, state, context, refresh)),
                variance=self._variance,
                round=context.round if acting is None else acting,
                previous=state.statistics if state.round else None,
                state=known,
            ).redacted(e.attack)
            generator = stream(e.settings.seed, "attack-statistics", context.round)
            forged = forged_statistics(e.attack, view, target=e.settings.target, generator=generator)
            sent = received(forged.rows, rows[h:], e.attack, "forge()", rows[:h])
            rows, known = torch.cat([rows[:h], sent]), forged.state
            if facts is not None:
                facts["statistics_shift"] = attack_shift(rows, h, context.weights) if e.attack.on(view.round) else 0.0
        return received(merged(rows, context), state.statistics, e.norm, "merge()", rows), known

    def _origin(
        self, rows: Tensor, reports: Reports, h: int, state: State, context: Context, refresh: bool
    ) -> Tensor | None:
        """The server's merge of the honest rows alone without a defense, for attacks that know the server."""
        e = self._e
        if e.attack.knowledge != "defense":
            return None
        weights = None if context.weights is None else context.weights[:h]
        plain = PlainMean(weights, context.round, refresh, self._begins)
        return e.norm.merge(rows[:h], reports.counts[:h], state.statistics, e.layout.layers, plain)

    def local(self, reports: Reports, received: Tensor) -> Tensor:
        """The statistics ``[n s]`` that clients would send after local training, before any attack.

        Reports of a pass before training are no part of the local model.
        """
        norm = self._e.norm
        if not norm.sends_statistics or norm.statistics_pass is not None:
            return received.expand(len(reports.rows), -1)
        return norm.messages(reports, received, self._e.layout.layers)

    def smallest(self, rows: Tensor) -> Tensor:
        """The smallest variance in rows of statistics ``[n s]``."""
        return rows.index_select(1, self._variances.to(rows.device)).min()

    def refreshed(self, state: State) -> Tensor:
        """Statistics collected anew at the current model, for testing (``StatisticsPass.refreshes``)."""
        e, t, plan = self._e, state.round, self._e.norm.statistics_pass
        everybody, tested = plan is not None and plan.refreshes == "all", max(0, t - 1)
        ids = list(range(e.settings.clients)) if everybody else e.settings.sample(tested)
        honest = [k for k in ids if k not in e.byzantine]
        ids = honest + [k for k in ids if k in e.byzantine]
        if not honest:
            return state.statistics
        h = len(honest)
        reports = self.passes(state, ids, h, t, state.theta, refresh=True)
        context = Context(generator=e.stream("defense", t), round=t, weights=e.weights(ids))
        return self.merge(reports, h, len(ids) - h, state, context, refresh=True, acting=tested)[0]

    def passes(
        self, state: State, ids: list[int], h: int, round: int, model: Tensor, *, refresh: bool = False
    ) -> Reports:
        """The reports of clients, ``h`` honest ones first, of a pass over their data at ``model [d]``.

        A pass that repeats (``Norm.statistics_pass``) starts from what the server makes of the one before it.
        """
        e, plan = self._e, self._e.norm.statistics_pass
        assert plan is not None
        computing = ids if e.computes_own else ids[:h]
        reports, found = self._pass(state, computing, round, model, refresh), state.statistics
        acting = max(0, round - 1) if refresh else round
        for again in range(1, len(e.layout.layers) if plan.repeats else 1):
            before, generator = found, e.stream("defense-pass", round, again)
            context = Context(generator=generator, round=round, weights=e.weights(ids))
            found, _ = self.merge(reports, h, len(ids) - h, state, context, refresh=True, acting=acting)
            if _moved(before, found, e.layout) <= plan.tolerance:
                break
            write_statistics(e.model, e.layout, found)
            reports = self._pass(state, computing, round, model, refresh)
        write_statistics(e.model, e.layout, state.statistics)
        return reports

    def _pass(self, state: State, ids: list[int], round: int, model: Tensor, refresh: bool) -> Reports:
        """One pass over the clients' data with the statistics the model holds; each process takes its own clients."""
        e, clients, here = self._e, self._clients, [ids[place] for place in self._exchange.mine(ids)]
        rows = state.theta.new_empty((len(here), e.layout.s))
        counts = torch.empty((len(here), len(e.layout.layers)), dtype=torch.int64)

        def look(places: list[int]) -> None:
            chosen = [here[place] for place in places]
            models = model.expand(len(chosen), -1)
            if state.personal is not None:
                models = state.personal.models_of(chosen, e.privacy, model)
            seen = clients.statistics(chosen, round, models, refresh=refresh)
            rows[places], counts[places] = seen.rows, seen.counts

        def most(samples: int) -> int:
            return clients.at_once(min(samples, STATISTICS_BATCH), model, alike=False)

        groups = [[place] for place in range(len(here))]
        if clients.together and model.device.type != "cpu":
            groups = grouped(here, lambda k: len(e.seats[k]), most)
        clients.group_by_group(groups, look)
        return Reports(self._exchange.rows(rows, ids), self._exchange.rows(counts, ids))

    def reducer(self, ids: list[int], h: int, f: int, state: State) -> Reducer:
        """The server's answer to the clients' rows in the layers: attackers' rows forged, then the defense.

        Clients weigh as their updates do, else the weighted mean of their gradients is that of no loss.
        Attacks remember nothing here: there are several exchanges in every layer.
        """
        e, round = self._e, state.round
        weights, count = e.weights(ids), iter(range(1 << 30))

        def defended(rows: Tensor, context: Context) -> Tensor:
            return e.statistics_rule.run(rows, f=e.settings.f_declared, context=context).vector

        def reduce(kind: str, rows: Tensor) -> Tensor:
            place = next(count)
            context = Context(generator=e.stream("defense-lockstep", round, place), round=round, weights=weights)
            if f and e.attacks_statistics and e.settings.target in ("both", "mean" if "mean" in kind else "var"):
                honest = rows[:h]
                view = View(
                    n=h + f, f=f, channel="statistics", round=round, honest=honest.clone(), own=rows[h:].clone(),
                    aggregate=Rehearsal.of(defended, context, origin=mean(honest, weights)),
                    variance=torch.full((rows.shape[1],), kind == "variance", device=rows.device),
                ).redacted(e.attack)  # fmt: skip
                generator = e.stream("attack-lockstep", round, place)
                forged = forge_statistics(e.attack, view, target="both", generator=generator)
                rows = torch.cat([honest, received(forged, rows[h:], e.attack, "forge()", honest)])
            return defended(rows, context)

        return reduce


def _moved(before: Tensor, after: Tensor, layout: Layout) -> float:
    """The farthest that a mean or a standard deviation has moved, in standard deviations ``after``."""
    farthest = 0.0
    for layer in layout.layers:
        scale = after[layer.variance].clamp(min=1e-30).sqrt()
        means = (after[layer.mean] - before[layer.mean]).abs() / scale
        deviations = (scale - before[layer.variance].clamp(min=0.0).sqrt()).abs() / scale
        farthest = max(farthest, float(means.max()), float(deviations.max()))
    return farthest
