"""The one client loop: groups of clients take their batches, from one model or each from its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import Attack, Contrast, LocalWork, Reducer, Reports
from robustfl.engine.clients import Clients
from robustfl.engine.experiment import Experiment
from robustfl.engine.personal import Personal, lent
from robustfl.engine.precision import computing
from robustfl.engine.statistics import (
    alone,
    begin,
    collect,
    lockstep,
    resize,
    seen_by_client,
    start_apart,
    starting,
    unseen,
)
from robustfl.errors import Refused
from robustfl.gradients import Unsupported, batched, client_means, evaluating, grouped, sequential, serving
from robustfl.layer_kinds import Sizes
from robustfl.layout import read_statistics, write_statistics
from robustfl.models.network import classifier, representing
from robustfl.results import pair, received

Lending = Callable[[Tensor], AbstractContextManager[object]]
LARGEST_ROWS = 2**26  # entries of the gradients of single examples that are made at once
Batch = tuple[Tensor, Tensor, Tensor]  # pixels, labels, the priors of the samples' clients


@dataclass(frozen=True)
class Messages:
    """Honest messages of the computing clients: updates ``[n d']``, statistics reports, mean loss per client.

    ``kept``: the updates are also what the clients keep for the next round.
    """

    updates: Tensor
    reports: Reports
    losses: Tensor
    kept: bool = False


@dataclass(frozen=True)
class Round:
    """The round as clients are given it: the model ``received [d]`` with what the server sent beside it.

    ``reducer``: the first local step is taken in lock-step; its gradients are then ``first``, as updates ``[n d]``.
    ``previous [d]`` is how the server moved its model last, as attackers who poison data may know.
    """

    number: int
    received: Tensor
    frozen: bool
    server: Mapping[str, Tensor]
    personal: Personal | None = None
    reducer: Reducer | None = None
    first: Messages | None = None
    previous: Tensor | None = None


def train_locally(
    clients: Clients, ids: Sequence[int], given: Round, memory: Tensor | None, *, out: Tensor, lends: bool = False
) -> Messages:
    """The honest messages of clients: shared entries, written to ``out [n d']``.

    ``memory [n d]``, what clients keep between rounds, and their rows of ``given.personal`` are updated in place; with
    ``lends``, ``out`` may be what clients keep instead (``Messages.kept``). The model is the same afterwards.
    """
    e = clients.experiment
    common = e.flat.clone()  # the vector that parameters are views of moves while single clients walk
    if given.received is e.flat:
        given = replace(given, received=common)
    moves = given.reducer is not None or e.privacy.statistics
    before = read_statistics(e.model, e.layout, e.flat) if moves else None
    if given.reducer is not None and ids:
        given = replace(given, first=_in_lockstep(clients, ids, given, given.reducer))
    done = _walk(clients, ids, given, memory, out=out, lends=lends)
    e.flat.copy_(common)
    if before is not None:
        write_statistics(e.model, e.layout, before)
    return done


def _in_lockstep(clients: Clients, ids: Sequence[int], given: Round, reducer: Reducer) -> Messages:
    """The gradients of the clients' first batches at the model they received, with an exchange in every layer."""
    e, n = clients.experiment, len(ids)
    x, y, sizes = clients.batches(ids, given.number, 0)
    x, out = clients.layout_of_batch(x), e.flat.new_empty((n, e.layout.d))
    priors = clients.priors(ids, sizes, given.number)
    begin(e.model, sizes, frozen=given.frozen, generators=clients.generators(ids, given.number, 0))

    def losses() -> Tensor:
        return client_means(e.objective.per_sample(e.model(x), y, priors), sizes)

    with lockstep(e.model, reducer), computing(e.model, e.settings.precision):
        try:
            found = batched(clients.plan, given.received.expand(n, -1), sizes, losses, out=out)
        except Unsupported as error:
            raise Refused(f"{e.norm.name} takes steps in lock-step, which this model does not allow: {error}") from None
    return Messages(out, collect(e.model, e.layout, clients=n), found)


def _walk(
    clients: Clients, ids: Sequence[int], given: Round, memory: Tensor | None, *, out: Tensor, lends: bool
) -> Messages:
    """Let every client take its local steps, group by group."""
    e, n = clients.experiment, len(ids)
    counts = torch.empty((n, len(e.layout.layers)), dtype=torch.int64)
    done = Messages(out, Reports(out.new_empty((n, e.layout.s)), counts), out.new_empty(n))
    kept: list[bool] = []

    def take(places: list[int]) -> None:
        kept.append(_walk_group(clients, ids, places, given, memory, done, lends=lends))

    clients.group_by_group(_groups(clients, ids, given), take)
    if memory is None or not kept or not all(kept):
        return done
    return Messages(done.updates, done.reports, done.losses, kept=True)


def _groups(clients: Clients, ids: Sequence[int], given: Round) -> list[list[int]]:
    """Places of clients that walk together: with equally many steps, and as many as pay and fit.

    Clients with statistics of their own, which they also have after a step in lock-step, walk alone on the CPU and
    where a layer cannot start from a row for each.
    """
    e, n = clients.experiment, len(ids)
    if e.merged:
        return [list(range(n))]
    own = e.privacy.statistics or given.first is not None
    if not clients.together or (own and (given.received.device.type == "cpu" or not start_apart(e.model))):
        return [[place] for place in range(n)]

    def most(steps: int) -> int:
        return clients.at_once(e.settings.batch, given.received, alike=steps == 1 and given.personal is None)

    return grouped(ids, clients.steps, most)


def _walk_group(
    clients: Clients,
    ids: Sequence[int],
    places: list[int],
    given: Round,
    memory: Tensor | None,
    done: Messages,
    *,
    lends: bool,
) -> bool:
    """Let the clients at ``places`` walk; whether their messages are what they keep."""
    e, first, held = clients.experiment, given.first, clients.experiment.held(given.number)
    chosen, at = tuple(ids[place] for place in places), _index(places)
    start = given.received.expand(len(chosen), -1)
    own = None if first is None else first.reports.rows[at]
    if given.personal is not None:
        start = given.personal.models_of(chosen, e.privacy, given.received)
        own = given.personal.statistics[list(chosen)].to(start.device) if e.privacy.statistics else own
    turn = LocalTrainer(clients, chosen, given, start, done.updates[at])
    if first is not None:
        turn.take(first.updates[at], first.losses[at])
    work = LocalWork(
        theta=start,
        lr=e.lr(given.number),
        steps=clients.steps(chosen[0]),
        gradient=_holding(turn.gradient, held),
        memory=None if memory is None else memory[at],
        server=given.server,
        again=_holding(turn.again, held),
        shared=e.privacy.mask,
        private=_holding(turn.private, held) if "examples" in e.algorithm.asks else None,
    )
    with starting(e.model, e.layout, None if own is None else clients.replays.placed(own)):
        message, kept = pair(e.algorithm.local(work), "messages, what clients keep", e.algorithm, "local()")
        reports = collect(e.model, e.layout, clients=len(places))
    for made in (message,) if kept is None else (message, kept):
        received(made, start, e.algorithm, "local()")
    same = kept is not None and kept.data_ptr() == message.data_ptr() == done.updates[at].data_ptr()
    if message.data_ptr() != done.updates[at].data_ptr():
        done.updates[at] = e.privacy.sent(message)
    if kept is not None and memory is not None and not (lends and same):
        memory[at] = kept
    done.reports.rows[at], done.reports.counts[at] = reports.rows, reports.counts
    done.losses[at] = torch.stack(turn.losses).mean(0)
    if first is not None:
        done.reports.counts[at] += first.reports.counts[at]
    if given.personal is not None:
        moved = e.algorithm.server(start, message, e.lr(given.number))
        given.personal.keep(chosen, e.privacy, moved, reports.rows)
    return lends and same


def _holding(gradients: Callable[..., Tensor], entries: int) -> Callable[..., Tensor]:
    """``gradients`` with the first ``entries`` 0, so that these are held."""

    def held(at: Tensor, *more: Any) -> Tensor:
        found = gradients(at, *more)
        found[:, :entries] = 0
        return found

    return held if entries else gradients


def _index(places: list[int]) -> slice | list[int]:
    first, last = places[0], places[-1]
    return slice(first, last + 1) if places == list(range(first, last + 1)) else places


def _each_loss(e: Experiment, x: Tensor, y: Tensor, priors: Tensor) -> Tensor:
    """The losses ``[m]`` of examples, as the model stands."""
    return e.objective.per_sample(e.model(x), y, priors)


def _alone(e: Experiment, x: Tensor, y: Tensor, priors: Tensor, masks: Sequence[torch.Generator], k: int) -> Tensor:
    """Add the gradient of example ``k`` to the parameters' and return its loss."""
    begin(e.model, None, generators=masks[k : k + 1])
    loss = _each_loss(e, x[k : k + 1], y[k : k + 1], priors[k : k + 1]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


class LocalTrainer:
    """Some clients' local steps of a round: ``gradient`` takes everybody's next batch, ``again`` the same once more.

    Models and gradients are rows ``[n d]``. The first gradients lie in ``rows``, if these are wide enough.
    """

    def __init__(self, clients: Clients, ids: tuple[int, ...], given: Round, start: Tensor, rows: Tensor) -> None:
        self._clients, self._e, self._ids, self._round = clients, clients.experiment, ids, given.number
        self._start, self._step, self._at, self._previous = start, 0, -1, given.previous
        self._rows: Tensor | None = rows if rows.shape == start.shape else None
        self._first: tuple[Tensor, Tensor] | None = None
        self._replays = clients.repeats(ids[0])
        self._tasks = [] if clients.together else [clients.task(k, given.number) for k in ids]
        # The step in lock-step has drawn from the first stream already.
        masks = self._masks = clients.generators(ids, given.number, int(given.first is not None))
        begin(self._e.model, (1,) * len(ids) if len(ids) > 1 else None, frozen=given.frozen, generators=masks)
        self.losses: list[Tensor] = []

    def take(self, gradients: Tensor, losses: Tensor) -> None:
        """Let the first local step be one that was computed together with all other clients."""
        self._first = (gradients, losses)

    def gradient(self, at: Tensor, contrast: Contrast | None = None) -> Tensor:
        """The gradients of the next batches' mean losses at the models ``at``; what to add to these (``contrast``)."""
        if self._first is not None:
            (gradients, losses), self._first = self._first, None
            self._step += 1
            self.losses.append(losses)
            return self._constrained(gradients, self._start)
        self._next()
        gradients, losses = self._compute(at, contrast)
        self.losses.append(losses)
        return gradients

    def private(self, at: Tensor, clip_norm: float, noise_multiplier: float) -> Tensor:
        """Means of the next batches' gradients, every example's clipped to a norm, with noise (``LocalWork.private``).

        Every example is a client of its own to the model, so that its gradient is a row ``[d]``.
        """
        self._next()
        e, out = self._e, torch.zeros_like(at, memory_format=torch.contiguous_format)
        batches = zip(*(torch.split(part, list(self._sizes)) for part in self._batch), strict=True)
        means = at.new_zeros(len(out))
        for place, (row, batch) in enumerate(zip(out, batches, strict=True)):
            client, size = self._ids[place], len(batch[0])
            for rows, losses in self._examples(client, at[place], batch):
                norms = torch.linalg.vector_norm(rows, dim=1)
                row += (clip_norm / norms.clamp(min=clip_norm)) @ rows
                means[place] += losses.sum() / size
            row /= size
            if noise_multiplier > 0:
                # Drawn in float32 whatever the model is, so that precision does not change the draw.
                draws = e.stream("privacy", client, self._round, self._step)
                noise = torch.randn(len(row), generator=draws, device=draws.device).to(row)
                row.add_(noise, alpha=noise_multiplier * clip_norm / size)
        self.losses.append(means)
        return self._constrained(out, at)

    def _examples(self, client: int, at: Tensor, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients ``[m d]`` and losses ``[m]`` of the examples of one client's batch at the model ``at [d]``."""
        e, drops, first = self._e, bool(self._masks), 0
        most = max(1, min(self._clients.at_once(1, at, alike=True), LARGEST_ROWS // len(at)))
        for x, y, priors in zip(*(torch.split(part, most) for part in batch), strict=True):
            numbers = range(first, first + len(y))
            masks = [e.stream("dropout", client, self._round, self._step, k) for k in numbers if drops]
            rows, models, ones = at.new_empty((len(y), len(at))), at.expand(len(y), -1), (1,) * len(y)
            with computing(e.model, e.settings.precision):
                if self._clients.together:
                    begin(e.model, ones, generators=masks)
                    losses = partial(_each_loss, e, x, y, priors)
                    yield rows, batched(self._clients.plan, models, ones, losses, out=rows)
                else:
                    backward = partial(_alone, e, x, y, priors, masks)
                    yield rows, sequential(e.model, e.layout, e.flat, models, backward, out=rows)
            first += len(y)

    def _next(self) -> None:
        """Go on to the next local step, and load its batches where they are others."""
        place = self._step // self._replays
        if place != self._at:
            self._load(place)
        self._step += 1

    def again(self, at: Tensor) -> Tensor:
        """The gradients of the last batches at other models; statistics do not see this pass."""
        with unseen(self._e.model):
            return self._compute(at, None)[0]

    def _load(self, place: int) -> None:
        x, y, self._sizes = self._clients.batches(self._ids, self._round, place)
        self._batch = self._clients.layout_of_batch(x), y, self._clients.priors(self._ids, self._sizes, self._round)
        self._at = place
        if len(self._ids) > 1:
            resize(self._e.model, self._sizes)

    def _compute(self, at: Tensor, contrast: Contrast | None) -> tuple[Tensor, Tensor]:
        out, self._rows = self._rows, None
        if out is None:
            out = torch.empty_like(at, memory_format=torch.contiguous_format)
        with computing(self._e.model, self._e.settings.precision):
            losses = (self._together if self._clients.together else self._plain)(at, contrast, out)
        if self._e.merged:
            out[1:] = out[0]
            losses = client_means(self._each, self._sizes)
        return self._constrained(out, at), losses

    def _together(self, at: Tensor, contrast: Contrast | None, out: Tensor) -> Tensor:
        sizes = (sum(self._sizes),) if self._e.merged else self._sizes
        n, plan = len(sizes), self._clients.plan
        others = self._others(contrast, lambda models: serving(plan, models, sizes)) if contrast else []

        def made(models: Tensor, x: Tensor, y: Tensor, priors: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            batch = (x, y, priors)
            losses = batched(plan, models, sizes, lambda: self._losses(batch, contrast, others, sizes), out=rows)
            return losses, self._each

        replays, kind = self._clients.replays, sizes if contrast is None else None
        room = partial(self._clients.spare, self._ids, at)
        losses, self._each = replays.run(kind, made, (at[:n], *self._batch), out[:n], room=room)
        return losses

    def _plain(self, at: Tensor, contrast: Contrast | None, out: Tensor) -> Tensor:
        """One client, or one machine, by the model's own forward."""
        e = self._e
        others = self._others(contrast, lambda models: lent(e.flat, models[0])) if contrast else []

        def backward(k: int) -> Tensor:
            if not (e.merged or contrast is not None):
                return e.objective.backward(e.model, *self._batch[:2], self._tasks[k])
            loss = self._losses(self._batch, contrast, others, (len(self._batch[0]),))[0]
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        with seen_by_client(e.model):
            return sequential(e.model, e.layout, e.flat, at[:1], backward, out=out[:1])

    def _losses(self, batch: Batch, contrast: Contrast | None, others: list[Tensor], sizes: Sizes) -> Tensor:
        """The clients' mean losses ``[n]``, as the model stands."""
        e, (x, y, priors) = self._e, batch
        if contrast is None:
            each = e.objective.per_sample(e.model(x), y, priors)
        else:
            with representing(e.model) as seen:
                each = e.objective.per_sample(e.model(x), y, priors)
            each = each + contrast.term(seen[0], *others)
        self._each = each.detach()
        return client_means(each, sizes)

    def _others(self, contrast: Contrast, lending: Lending) -> list[Tensor]:
        """Representations of the batch by the models to contrast with, in evaluation mode."""
        found = []
        with evaluating(self._e.model), torch.no_grad():
            for models in contrast.models:
                with lending(models), representing(self._e.model) as seen:
                    self._e.model(self._batch[0])
                found.append(seen[0])
        return found

    def _attackers_own(self, attack: Attack, place: int, at: Tensor, out: Tensor) -> None:
        """Write the gradient ``[1 d]`` of an attacker's own loss of its batch at its model ``at [1 d]``."""
        e, (x, y, _) = self._e, (torch.split(part, list(self._sizes))[place] for part in self._batch)

        def backward(_: int) -> Tensor:
            with representing(e.model) as seen:
                e.model(x)
            loss = attack.loss(seen[0], classifier(e.model), y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        masks = self._masks[place : place + 1]
        with unseen(e.model), alone(e.model, (len(y),), masks), computing(e.model, e.settings.precision):
            sequential(e.model, e.layout, e.flat, at, backward, out=out)

    def _constrained(self, gradients: Tensor, at: Tensor) -> Tensor:
        for place in [place for place, k in enumerate(self._ids) if self._clients.poisons(k)]:
            moved, attack = at[place] - self._start[place], self._clients.attack.in_step(self._step - 1, self._previous)
            if attack.trains and attack.on(self._round):
                self._attackers_own(attack, place, at[place : place + 1], gradients[place : place + 1])
            gradient = gradients[place].clone()
            made = attack.constrain(gradient, moved, round=self._round)
            gradients[place] = received(made, gradient, attack, "constrain()")
        return gradients
