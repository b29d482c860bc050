"""What clients do between two messages: batches from their own streams, honest messages by either engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import LocalWork, Reducer, Reports, Task
from robustfl.errors import Refused
from robustfl.federation.experiment import Experiment
from robustfl.federation.gradients import (
    ClientPass,
    Unsupported,
    channels_last,
    reference_gradients,
    shared_gradients,
)
from robustfl.federation.personal import Personal, lent
from robustfl.federation.precision import computing
from robustfl.federation.statistics import begin, collect, collecting, lockstep, seen_by_client, unseen
from robustfl.models.dropout import ClientDropout
from robustfl.randomness import numpy_stream, stream
from robustfl.vectors import read_gradient, read_statistics, write_statistics

STATISTICS_BATCH = 256
STATISTICS_STEP = -1  # dropout masks of a pass before training are not those of a step


@dataclass(frozen=True)
class Messages:
    """What the computing clients would send honestly: updates ``[n d]``, statistics reports, mean loss per client."""

    updates: Tensor
    reports: Reports
    losses: Tensor


class Batches:
    """Client ``k``'s batches: a new permutation of its data every epoch, drawn from its own stream.

    With ``whole`` (one-batch algorithms) every batch is full and a remainder is left out of the epoch; otherwise the
    last batch of an epoch may be smaller, but a remainder of fewer than ``least`` samples is left out too.
    """

    def __init__(self, parts: Sequence[Tensor], batch: int, seed: int, *, whole: bool, least: int = 1) -> None:
        self._parts, self._batch, self._seed, self._whole, self._least = parts, batch, seed, whole, least
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def usable(self, client: int) -> int:
        """How many of the client's samples take part in an epoch."""
        samples = len(self._parts[client])
        rest = samples % min(self._batch, samples)
        return samples - rest if 0 < rest < self._least else samples

    def indices(self, client: int, step: int) -> Tensor:
        """The training indices ``[b]`` of the ``step``-th batch of ``client``."""
        part = self._parts[client]
        size = min(self._batch, len(part))
        per_epoch = len(part) // size if self._whole else -(-self.usable(client) // size)
        epoch, place = divmod(step, per_epoch)
        known = self._orders.get(client)
        if known is None or known[0] != epoch:
            order = numpy_stream(self._seed, "batch", client, epoch).permutation(len(part)).astype(np.int64)
            known = (epoch, part[torch.from_numpy(order).to(part.device)])
            self._orders[client] = known
        return known[1][place * size : (place + 1) * size]


class Clients:
    """The clients of one experiment; ``work`` gives the honest messages of a round."""

    def __init__(self, experiment: Experiment, warn: Callable[[str], None]) -> None:
        settings = experiment.settings
        self._experiment = experiment
        self._byzantine = settings.byzantine()
        self._places = {k: place for place, k in enumerate(sorted(self._byzantine))}
        self._dropout = any(isinstance(m, ClientDropout) and m.p > 0 for m in experiment.model.modules())
        self._fast = settings.engine == "fast"
        self._warn = warn
        self._dtype = next(experiment.model.parameters()).dtype
        self._gradients: Tensor | None = None
        self._batches = Batches(
            experiment.seats, settings.batch, settings.seed,
            whole=experiment.algorithm.one_batch, least=self._least_samples(),
        )  # fmt: skip

    def _least_samples(self) -> int:
        """The least batch the model can train on: two samples where normalization would see one value (SPEC §1.2)."""
        e = self._experiment
        begin(e.model, None, generators=self._generators([0], 0, 0))
        training = e.model.training
        try:
            with torch.no_grad():
                e.model.train()(e.train.pixels(e.seats[0][:1], dtype=self._dtype))
        except Refused:
            return 2
        finally:
            e.model.train(training)
            begin(e.model, None)
        return 1

    def work(
        self,
        ids: Sequence[int],
        round: int,
        theta: Tensor,
        memory: Tensor | None,
        *,
        frozen: bool,
        out: Tensor,
        received: Tensor | None = None,
        server: Mapping[str, Tensor] | None = None,
        personal: Personal | None = None,
        reducer: Reducer | None = None,
    ) -> Messages:
        """Honest messages of the clients ``ids`` at the model ``theta``: shared entries, written to ``out [n d']``.

        ``theta`` is the vector the model's parameters are views of; it is the same afterwards. Clients start from
        ``received`` (default ``theta``), beside which the server sent ``server``. ``memory [n d]`` holds what clients
        keep between rounds, updated in place, as are their rows in ``personal``; with one-batch algorithms ``out`` may
        be ``memory`` itself. With a ``reducer`` the first local step is taken in lock-step.
        """
        e = self._experiment
        if not ids:
            nothing = theta.new_empty((0, e.layout.s)), torch.empty((0, len(e.layout.layers)), dtype=torch.int64)
            return Messages(out, Reports(*nothing), theta.new_empty(0))
        together = e.algorithm.one_batch and e.objective.plain and not e.privacy.personal
        if together and (self._fast or e.norm.centralised):
            return self._one_batch(ids, round, memory, frozen=frozen, out=out, reducer=reducer)
        start = (theta if received is None else received).clone()  # theta itself moves while clients walk
        return self._local_steps(
            ids, round, theta, start, memory,
            frozen=frozen, out=out, server=server or {}, personal=personal, reducer=reducer,
        )  # fmt: skip

    def steps(self, client: int) -> int:
        """The local steps of a client in a round, replayed batches counted as often as they are used."""
        e = self._experiment
        replays = e.objective.replays if client in e.adversarial else 1
        return self._batch_count(client) * replays

    # --- one batch each, all at the same model -----------------------------------------------------------------------

    def _one_batch(
        self,
        ids: Sequence[int],
        round: int,
        memory: Tensor | None,
        *,
        frozen: bool,
        out: Tensor,
        reducer: Reducer | None,
    ) -> Messages:
        gradients = out if memory is None else self._scratch(out)
        with computing(self._experiment.model, self._experiment.settings.precision):
            done = self._common_gradients(ids, round, frozen=frozen, out=gradients, reducer=reducer)
        for place in [place for place, k in enumerate(ids) if self.poisons(k)]:
            row = gradients[place]
            row.copy_(self._experiment.attack.constrain(row, torch.zeros_like(row), round=round))
        self._experiment.algorithm.stacked(gradients, memory, out=out)
        if memory is not None and memory is not out:
            memory.copy_(out)
        return Messages(out, done.reports, done.losses)

    def _common_gradients(
        self, ids: Sequence[int], round: int, *, frozen: bool, out: Tensor, reducer: Reducer | None = None
    ) -> ClientPass:
        """The gradients of the clients' first batches of the round at the model as it stands."""
        e = self._experiment
        first = [round * (1 if e.algorithm.one_batch else self._batch_count(k)) for k in ids]
        index = [self._batches.indices(k, step) for k, step in zip(ids, first, strict=True)]
        sizes = tuple(len(i) for i in index)
        x, y = self._inputs(ids, torch.cat(index), sizes, round, 0)
        counts = torch.tensor(sizes, device=e.device)
        priors = e.priors[list(ids)].repeat_interleave(counts, dim=0)

        def loss(logits: Tensor, labels: Tensor, samples: slice) -> Tensor:
            return e.objective.per_sample(logits, labels, priors[samples])

        generators = self._generators(ids, round, 0)
        if reducer is not None:
            with lockstep(e.model, reducer):
                try:
                    return shared_gradients(
                        e.model, e.layout, x, y, sizes,
                        generators=generators, frozen=frozen, loss=loss, together=True, out=out,
                    )  # fmt: skip
                except Unsupported as error:
                    raise Refused(
                        f"{e.norm.name} takes steps in lock-step, which this model does not allow: {error}"
                    ) from None
        if self._fast:
            try:
                return shared_gradients(
                    e.model, e.layout, x, y, sizes, generators=generators, frozen=frozen, loss=loss, out=out
                )
            except Unsupported as error:
                self._warn(f"the fast engine does not support this model ({error}); using the reference engine")
                self._fast = False
        return reference_gradients(
            e.model, e.layout, x, y, sizes,
            generators=self._generators(ids, round, 0), frozen=frozen, loss=loss, out=out,
        )  # fmt: skip

    def _batch_count(self, client: int) -> int:
        e = self._experiment
        return e.algorithm.steps(self._batches.usable(client), e.settings.batch)

    def _scratch(self, like: Tensor) -> Tensor:
        if self._gradients is None or self._gradients.shape != like.shape:
            self._gradients = torch.empty_like(like)
        return self._gradients

    # --- local steps: every client walks its own way -----------------------------------------------------------------

    def _local_steps(
        self,
        ids: Sequence[int],
        round: int,
        theta: Tensor,
        received: Tensor,
        memory: Tensor | None,
        *,
        frozen: bool,
        out: Tensor,
        server: Mapping[str, Tensor],
        personal: Personal | None,
        reducer: Reducer | None,
    ) -> Messages:
        e, privacy, common = self._experiment, self._experiment.privacy, theta.clone()
        rows = theta.new_empty((len(ids), e.layout.s))
        firsts, done = None, None
        if reducer is not None:
            firsts = theta.new_empty((len(ids), e.layout.d))
            theta.copy_(received)
            with computing(e.model, e.settings.precision):
                done = self._common_gradients(ids, round, frozen=frozen, out=firsts, reducer=reducer)
        before = read_statistics(e.model, e.layout, theta)
        counts: list[Tensor] = []
        losses: list[Tensor] = []
        for place, k in enumerate(ids):
            start = received if personal is None else personal.model_of(k, privacy, received)
            if personal is not None and privacy.statistics:
                write_statistics(e.model, e.layout, personal.statistics[k])
            if done is not None:
                write_statistics(e.model, e.layout, done.reports.rows[place])
            collected = self.statistics(k, round, start) if e.norm.statistics_pass is not None else None
            # The step in lock-step has drawn from the first stream already.
            begin(e.model, None, frozen=frozen, generators=self._generators([k], round, int(done is not None)))
            kept = None if memory is None else memory[place]
            turn = _Turn(self, k, round, theta, start, kept)
            if firsts is not None and done is not None:
                turn.take(firsts[place], done.losses[place])
            work = LocalWork(
                theta=start,
                lr=e.lr(round),
                steps=self.steps(k),
                gradient=turn.gradient,
                memory=kept,
                server=server,
                again=turn.again,
                shared=privacy.mask,
            )
            message, kept = e.algorithm.local(work)
            out[place] = privacy.sent(message)
            if kept is not None and memory is not None:
                memory[place] = kept
            reports = collected or collect(e.model, e.layout)
            rows[place] = reports.rows[0]
            if personal is not None:
                if privacy.private is not None:
                    personal.parameters[k] = e.algorithm.server(start, message, work.lr)[privacy.private]
                if privacy.statistics:
                    personal.statistics[k] = rows[place]
            counts.append(reports.counts[0] if done is None else reports.counts[0] + done.reports.counts[place])
            losses.append(torch.stack(turn.losses).mean())
        theta.copy_(common)
        write_statistics(e.model, e.layout, before)
        return Messages(out, Reports(rows, torch.stack(counts)), torch.stack(losses))

    def statistics(self, client: int, round: int, theta: Tensor) -> Reports:
        """What a client reports of its data at the model as it stands, without training (``Norm.statistics_pass``)."""
        e, plan = self._experiment, self._experiment.norm.statistics_pass
        assert plan is not None
        index = e.seats[client]
        if plan.samples is not None and plan.samples < len(index):
            chosen = torch.randperm(len(index), generator=stream(e.settings.seed, "statistics", client, round))
            index = index[chosen[: plan.samples].to(index.device)]
        begin(e.model, None, generators=self._generators([client], round, STATISTICS_STEP) if plan.training else ())
        e.model.train(plan.training)
        with lent(e.flat, theta), collecting(e.model), torch.no_grad():
            for part in torch.split(index, len(index) if plan.training else STATISTICS_BATCH):
                e.model(self.layout_of_batch(e.train.pixels(part, dtype=self._dtype)))
        e.model.train()
        return collect(e.model, e.layout)

    # --- inputs ------------------------------------------------------------------------------------------------------

    def batch(self, client: int, round: int, step: int, steps: int) -> tuple[Tensor, Tensor]:
        """The ``step``-th of the client's ``steps`` batches of a round: pixels and labels."""
        index = self._batches.indices(client, round * steps + step)
        return self._inputs([client], index, (len(index),), round, step)

    def poisons(self, client: int) -> bool:
        """Whether the client is an attacker who trains on poisoned data."""
        return client in self._byzantine and self._experiment.attack.poisons_data

    def _inputs(
        self, ids: Sequence[int], index: Tensor, sizes: tuple[int, ...], round: int, step: int
    ) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the clients' batches, augmented, and poisoned where the attack poisons data."""
        e = self._experiment
        x, y = e.train.pixels(index, dtype=self._dtype), e.train.labels(index)
        if e.augment is None and not any(self.poisons(k) for k in ids):
            return x, y
        xs, ys = [], []
        for k, part, labels in zip(ids, torch.split(x, list(sizes)), torch.split(y, list(sizes)), strict=True):
            new, new_labels = part, labels
            if e.augment is not None:
                new = e.augment(new, self._stream("augment", k, round, step))
            if self.poisons(k):
                new, new_labels = e.attack.poison(
                    new, new_labels, classes=e.classes, generator=self._stream("poison", k, round, step),
                    attacker=self._places[k], round=round,
                )  # fmt: skip
            xs.append(new)
            ys.append(new_labels)
        return torch.cat(xs), torch.cat(ys)

    def layout_of_batch(self, x: Tensor) -> Tensor:
        """The batch in the memory layout of the engine."""
        return channels_last(x) if self._fast else x

    def _generators(self, ids: Sequence[int], round: int, step: int) -> tuple[torch.Generator, ...]:
        if not self._dropout:
            return ()
        return tuple(self._stream("dropout", k, round, step) for k in ids)

    def task(self, client: int, round: int) -> Task:
        """What the objective knows about the client."""
        e = self._experiment
        return Task(
            round=round,
            adversarial=client in e.adversarial,
            prior=e.priors[client],
            evasion=e.evasion,
            generator=self._stream("objective", client, round, 0),
        )

    def _stream(self, name: str, client: int, round: int, step: int) -> torch.Generator:
        e = self._experiment
        return stream(e.settings.seed, name, client, round, step, device=e.device)


class _Turn:
    """One client's local steps of a round: ``gradient`` takes the next batch, ``again`` the same once more."""

    def __init__(
        self, clients: Clients, client: int, round: int, theta: Tensor, received: Tensor, memory: Tensor | None
    ) -> None:
        e = clients._experiment
        self._clients, self._e, self._client, self._round = clients, e, client, round
        self._theta, self._received = theta, received
        # A client that has never taken part has no previous model; then it is the received one (SPEC §1.7).
        self._previous = memory.clone() if memory is not None and bool(memory.any()) else received
        self._task = clients.task(client, round)
        self._replays = e.objective.replays if client in e.adversarial else 1
        self._batches = clients._batch_count(client)
        self._first: tuple[Tensor, Tensor] | None = None
        self._step, self._at = 0, -1
        self._x = self._y = theta
        self.losses: list[Tensor] = []

    def take(self, gradient: Tensor, loss: Tensor) -> None:
        """Let the first local step be one that was computed together with the other clients."""
        self._first = (gradient, loss)

    def gradient(self, at: Tensor) -> Tensor:
        """The gradient ``[d]`` of the next batch's mean loss at the model ``at [d]``."""
        if self._first is not None:
            (gradient, loss), self._first = self._first, None
            self._step += 1
            self.losses.append(loss)
            return self._constrained(gradient, self._received)
        place = self._step // self._replays
        if place != self._at:
            x, self._y = self._clients.batch(self._client, self._round, place, self._batches)
            self._x, self._at = self._clients.layout_of_batch(x), place
        self._step += 1
        gradient, loss = self._compute(at)
        self.losses.append(loss)
        return gradient

    def again(self, at: Tensor) -> Tensor:
        """The gradient of the last batch at another model; statistics do not see this pass."""
        with unseen(self._e.model):
            return self._compute(at)[0]

    def _compute(self, at: Tensor) -> tuple[Tensor, Tensor]:
        e = self._e
        with computing(e.model, e.settings.precision):
            others = self._other_features() if e.algorithm.contrasts else None
        self._theta.copy_(at)
        e.model.zero_grad(set_to_none=True)
        with seen_by_client(e.model), computing(e.model, e.settings.precision):
            if others is None:
                loss = e.objective.backward(e.model, self._x, self._y, self._task)
            else:
                loss = self._contrast(*others)
        return self._constrained(read_gradient(e.model, e.layout, torch.empty_like(self._theta)), at), loss

    def _constrained(self, gradient: Tensor, at: Tensor) -> Tensor:
        if not self._clients.poisons(self._client):
            return gradient
        return self._e.attack.constrain(gradient, at - self._received, round=self._round)

    # --- the contrastive term of MOON --------------------------------------------------------------------------------

    def _contrast(self, received: Tensor, previous: Tensor) -> Tensor:
        e = self._e
        with _features(e.model) as seen:
            loss = e.objective.per_sample(e.model(self._x), self._y, self._task.prior).mean()
        term = e.algorithm.term(seen[0], received, previous)
        total = loss if term is None else loss + term
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()

    def _other_features(self) -> tuple[Tensor, Tensor]:
        """Representations of the batch by the received and the previous local model, in evaluation mode."""
        model, found = self._e.model, []
        model.eval()
        for other in (self._received, self._previous):
            self._theta.copy_(other)
            with torch.no_grad(), _features(model) as seen:
                model(self._x)
            found.append(seen[0])
        model.train()
        return found[0], found[1]


@contextmanager
def _features(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within, what the model's last layer receives is kept."""
    seen: list[Tensor] = []
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise Refused(f"{type(model).__name__} has no linear layer, so its representation is unknown")
    kind = linear[-1].weight.dtype
    handle = linear[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(1).to(kind)))
    try:
        yield seen
    finally:
        handle.remove()
