"""What clients do between two messages: honest messages of a round, by either engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.contracts import Reducer, Reports
from robustfl.errors import Refused
from robustfl.federation.client_data import ClientData
from robustfl.federation.gradients import (
    ClientPass,
    Unsupported,
    reference_gradients,
    shared_gradients,
)
from robustfl.federation.local_steps import Walk
from robustfl.federation.personal import Personal
from robustfl.federation.precision import computing
from robustfl.federation.statistics import lockstep
from robustfl.vectors import read_statistics, write_statistics


@dataclass(frozen=True)
class Messages:
    """What the computing clients would send honestly: updates ``[n d]``, statistics reports, mean loss per client."""

    updates: Tensor
    reports: Reports
    losses: Tensor


class Clients(ClientData):
    """The clients of one experiment; ``work`` gives the honest messages of a round."""

    _gradients: Tensor | None = None

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
        e = self.experiment
        if not ids:
            nothing = theta.new_empty((0, e.layout.s)), torch.empty((0, len(e.layout.layers)), dtype=torch.int64)
            return Messages(out, Reports(*nothing), theta.new_empty(0))
        together = e.algorithm.one_batch and e.objective.plain and not e.privacy.personal
        if together and (self.fast or e.norm.centralised):
            return self._one_batch(ids, round, theta, memory, frozen=frozen, out=out, reducer=reducer)
        start = (theta if received is None else received).clone()  # theta itself moves while clients walk
        return self._local_steps(
            ids, round, theta, start, memory,
            frozen=frozen, out=out, server=server or {}, personal=personal, reducer=reducer,
        )  # fmt: skip

    def _one_batch(
        self,
        ids: Sequence[int],
        round: int,
        theta: Tensor,
        memory: Tensor | None,
        *,
        frozen: bool,
        out: Tensor,
        reducer: Reducer | None,
    ) -> Messages:
        gradients = out if memory is None else self._scratch(out)
        with computing(self.experiment.model, self.experiment.settings.precision):
            done = self._common_gradients(ids, round, frozen=frozen, out=gradients, reducer=reducer)
        for place in [place for place, k in enumerate(ids) if self.poisons(k)]:
            row = gradients[place]
            row.copy_(self.experiment.attack.constrain(row, torch.zeros_like(row), round=round))
        self.experiment.algorithm.stacked(gradients, memory, out=out, theta=theta)
        if memory is not None and memory is not out:
            memory.copy_(out)
        return Messages(out, done.reports, done.losses)

    def _common_gradients(
        self, ids: Sequence[int], round: int, *, frozen: bool, out: Tensor, reducer: Reducer | None = None
    ) -> ClientPass:
        """The gradients of the clients' first batches of the round at the model as it stands."""
        e = self.experiment
        x, y, sizes = self.batches(ids, round, 0)
        priors = self.priors(ids, sizes)

        def loss(logits: Tensor, labels: Tensor, samples: slice) -> Tensor:
            return e.objective.per_sample(logits, labels, priors[samples])

        generators = self.generators(ids, round, 0)
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
        if self.fast:
            try:
                return shared_gradients(
                    e.model, e.layout, x, y, sizes, generators=generators, frozen=frozen, loss=loss, out=out
                )
            except Unsupported as error:
                self._warn(f"the fast engine does not support this model ({error}); using the reference engine")
                self.fast = False
        return reference_gradients(
            e.model, e.layout, x, y, sizes,
            generators=self.generators(ids, round, 0), frozen=frozen, loss=loss, out=out,
        )  # fmt: skip

    def _scratch(self, like: Tensor) -> Tensor:
        if self._gradients is None or self._gradients.shape != like.shape:
            self._gradients = torch.empty_like(like)
        return self._gradients

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
        e, common = self.experiment, theta.clone()
        firsts, done = None, None
        if reducer is not None:
            firsts = theta.new_empty((len(ids), e.layout.d))
            theta.copy_(received)
            with computing(e.model, e.settings.precision):
                done = self._common_gradients(ids, round, frozen=frozen, out=firsts, reducer=reducer)
        before = read_statistics(e.model, e.layout, theta)
        walk = Walk(
            self, tuple(ids), round, theta, received, memory,
            frozen=frozen, out=out, server=server, personal=personal, first=done, firsts=firsts,
        )  # fmt: skip
        walk.all()
        theta.copy_(common)
        write_statistics(e.model, e.layout, before)
        return Messages(out, walk.reports, walk.losses)
