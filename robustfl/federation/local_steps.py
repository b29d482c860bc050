"""Local steps: every client walks its own way from the model it received, alone or side by side with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustfl.contracts import LocalWork, Reports
from robustfl.errors import Refused
from robustfl.federation.client_data import ClientData
from robustfl.federation.gradients import ClientPass, at_once, client_losses
from robustfl.federation.own_weights import own_weights
from robustfl.federation.personal import Personal
from robustfl.federation.precision import computing
from robustfl.federation.shared_layers import Unsupported
from robustfl.federation.statistics import begin, collect, resize, seen_by_client, unseen
from robustfl.vectors import read_gradient, write_statistics


class Walk:
    """The local steps of one round: ``all`` fills ``out [n d']``, ``memory`` and ``personal``; then ``reports`` and
    ``losses [n]`` are there.

    ``theta`` and the model's statistics are scratch. ``first``, with the gradients ``firsts [n d]``, is a local step
    that all clients have taken in lock-step.
    """

    def __init__(
        self,
        clients: ClientData,
        ids: tuple[int, ...],
        round: int,
        theta: Tensor,
        received: Tensor,
        memory: Tensor | None,
        *,
        frozen: bool,
        out: Tensor,
        server: Mapping[str, Tensor],
        personal: Personal | None,
        first: ClientPass | None,
        firsts: Tensor | None,
    ) -> None:
        self._clients, self._e, self._ids, self._round = clients, clients.experiment, ids, round
        self._theta, self._received, self._memory, self._frozen, self._out = theta, received, memory, frozen, out
        self._server, self._personal, self._first, self._firsts = server, personal, first, firsts
        n, layout = len(ids), self._e.layout
        counts = torch.empty((n, len(layout.layers)), dtype=torch.int64, device=theta.device)
        self.reports = Reports(theta.new_empty((n, layout.s)), counts)
        self.losses = theta.new_empty(n)

    def all(self) -> None:
        """Let every client walk."""
        for places in self._groups():
            if len(places) > 1 and self._clients.side_by_side:
                try:
                    self._together(places)
                    continue
                except Unsupported as error:
                    self._clients.walk_alone(str(error))
            for place in places:
                self._alone(place)

    def _groups(self) -> list[list[int]]:
        """Places of clients that walk side by side: with equally many steps, and as many as pay and fit.

        Adversarial training, private entries and steps in lock-step keep clients apart.
        """
        e, clients = self._e, self._clients
        rowwise = vars(type(e.algorithm)).get("rowwise", False) and not e.algorithm.contrasts
        plain = e.objective.plain and not e.norm.centralised and self._personal is None and self._first is None
        most = 1
        if clients.side_by_side and rowwise and plain:
            most = at_once(e.model, e.layout.d, e.train.x[0, ..., 0].numel(), e.settings.batch, self._theta)
        if most == 1:
            return [[place] for place in range(len(self._ids))]
        equal: dict[int, list[int]] = {}
        for place, k in enumerate(self._ids):
            equal.setdefault(clients.steps(k), []).append(place)
        return [places[i : i + most] for places in equal.values() for i in range(0, len(places), most)]

    def _together(self, places: list[int]) -> None:
        e, clients, round = self._e, self._clients, self._round
        ids = tuple(self._ids[place] for place in places)
        turn = _SideBySide(clients, ids, round, self._received, frozen=self._frozen)
        memory = None if self._memory is None else self._memory[places]
        self._work(places, turn, self._received.expand(len(ids), -1), memory, clients.steps(ids[0]))
        reports = collect(e.model, e.layout, clients=len(ids))
        self.reports.rows[places], self.reports.counts[places] = reports.rows, reports.counts
        self.losses[places] = torch.stack(turn.losses).mean(0)

    def _alone(self, place: int) -> None:
        e, clients, privacy, personal = self._e, self._clients, self._e.privacy, self._personal
        k, round, first = self._ids[place], self._round, self._first
        start = self._received if personal is None else personal.model_of(k, privacy, self._received)
        if personal is not None and privacy.statistics:
            write_statistics(e.model, e.layout, personal.statistics[k])
        if first is not None:
            write_statistics(e.model, e.layout, first.reports.rows[place])
        # The step in lock-step has drawn from the first stream already.
        begin(e.model, None, frozen=self._frozen, generators=clients.generators([k], round, int(first is not None)))
        memory = None if self._memory is None else self._memory[place]
        turn = _Turn(clients, k, round, self._theta, start, memory)
        if first is not None and self._firsts is not None:
            turn.take(self._firsts[place], first.losses[place])
        message = self._work(place, turn, start, memory, clients.steps(k))
        reports = collect(e.model, e.layout)
        rows, counts = self.reports.rows, self.reports.counts
        rows[place], counts[place] = reports.rows[0], reports.counts[0]
        if first is not None:
            counts[place] += first.reports.counts[place]
        if personal is not None:
            if privacy.private is not None:
                personal.parameters[k] = e.algorithm.server(start, message, e.lr(round))[privacy.private]
            if privacy.statistics:
                personal.statistics[k] = rows[place]
        self.losses[place] = torch.stack(turn.losses).mean()

    def _work(
        self, at: int | list[int], turn: _Turn | _SideBySide, start: Tensor, memory: Tensor | None, steps: int
    ) -> Tensor:
        """Let the algorithm take the ``turn`` from the model, or the rows, ``start``; what is sent and kept goes to
        the places ``at``. The whole message comes back, private entries included."""
        e, held = self._e, self._e.held(self._round)
        work = LocalWork(
            theta=start,
            lr=e.lr(self._round),
            steps=steps,
            gradient=_holding(turn.gradient, held),
            memory=memory,
            server=self._server,
            again=_holding(turn.again, held),
            shared=e.privacy.mask,
        )
        message, kept = e.algorithm.local(work)
        self._out[at] = e.privacy.sent(message)
        if kept is not None and self._memory is not None:
            self._memory[at] = kept
        return message


def _holding(gradient: Callable[[Tensor], Tensor], entries: int) -> Callable[[Tensor], Tensor]:
    """``gradient`` with its first ``entries`` 0, so that these are held."""
    if not entries:
        return gradient

    def held(at: Tensor) -> Tensor:
        found = gradient(at).clone()
        found[..., :entries] = 0
        return found

    return held


class _SideBySide:
    """Several clients' local steps: ``gradient`` takes everybody's next batch, ``again`` the same once more.

    Models and gradients are rows ``[n d]``.
    """

    def __init__(
        self, clients: ClientData, ids: tuple[int, ...], round: int, received: Tensor, *, frozen: bool
    ) -> None:
        self._clients, self._e, self._ids, self._round = clients, clients.experiment, ids, round
        self._received, self._frozen, self._step = received, frozen, 0
        self.losses: list[Tensor] = []

    def gradient(self, at: Tensor) -> Tensor:
        """The gradients of the next batches' mean losses at the models ``at``."""
        x, self._y, self._sizes = self._clients.batches(self._ids, self._round, self._step)
        self._x = self._clients.layout_of_batch(x)
        if self._step == 0:
            generators = self._clients.generators(self._ids, self._round, 0)
            begin(self._e.model, self._sizes, frozen=self._frozen, generators=generators)
        else:
            resize(self._e.model, self._sizes)
        self._step += 1
        gradients, losses = self._compute(at)
        self.losses.append(losses)
        return gradients

    def again(self, at: Tensor) -> Tensor:
        """The gradients of the last batches at other models; statistics do not see this pass."""
        with unseen(self._e.model):
            return self._compute(at)[0]

    def _compute(self, at: Tensor) -> tuple[Tensor, Tensor]:
        e, sizes = self._e, self._sizes
        gradients = torch.empty_like(at, memory_format=torch.contiguous_format)
        priors = self._clients.priors(self._ids, sizes)
        with computing(e.model, e.settings.precision), own_weights(e.model, e.layout, at, sizes, gradients):
            losses = client_losses(e.objective.per_sample(e.model(self._x), self._y, priors), sizes)
            losses.sum().backward()  # type: ignore[no-untyped-call]
        for place in [place for place, k in enumerate(self._ids) if self._clients.poisons(k)]:
            row = gradients[place]
            row.copy_(e.attack.constrain(row, at[place] - self._received, round=self._round))
        return gradients, losses.detach()


class _Turn:
    """One client's local steps of a round: ``gradient`` takes the next batch, ``again`` the same once more."""

    def __init__(
        self, clients: ClientData, client: int, round: int, theta: Tensor, received: Tensor, memory: Tensor | None
    ) -> None:
        e = clients.experiment
        self._clients, self._e, self._client, self._round = clients, e, client, round
        self._theta, self._received = theta, received
        # A client that has never taken part has no previous model; then it is the received one.
        self._previous = memory.clone() if memory is not None and bool(memory.any()) else received
        self._task = clients.task(client, round)
        self._replays = clients.replays(client)
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
            x, self._y, _ = self._clients.batches([self._client], self._round, place)
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
