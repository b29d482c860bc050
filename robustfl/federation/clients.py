"""What clients do between two messages: batches from their own streams, honest messages by either engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.contracts import LocalWork, Reports
from robustfl.federation.experiment import Experiment
from robustfl.federation.gradients import Unsupported, channels_last, reference_gradients, shared_gradients
from robustfl.federation.statistics import begin, collect
from robustfl.models.dropout import ClientDropout
from robustfl.randomness import numpy_stream, stream
from robustfl.vectors import read_gradient


@dataclass(frozen=True)
class Messages:
    """What the computing clients would send honestly: updates ``[n d]``, statistics reports, mean loss per client."""

    updates: Tensor
    reports: Reports
    losses: Tensor


class Batches:
    """Client ``k``'s batches: a new permutation of its data every epoch, drawn from its own stream.

    With ``whole`` (one-batch algorithms) every batch is full and a remainder is left out of the epoch; otherwise the
    last batch of an epoch may be smaller.
    """

    def __init__(self, parts: Sequence[Tensor], batch: int, seed: int, *, whole: bool) -> None:
        self._parts, self._batch, self._seed, self._whole = parts, batch, seed, whole
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def indices(self, client: int, step: int) -> Tensor:
        """The training indices ``[b]`` of the ``step``-th batch of ``client``."""
        part = self._parts[client]
        size = min(self._batch, len(part))
        per_epoch = len(part) // size if self._whole else -(-len(part) // size)
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
        self._batches = Batches(experiment.parts, settings.batch, settings.seed, whole=experiment.algorithm.one_batch)
        self._byzantine = settings.byzantine()
        self._dropout = any(isinstance(m, ClientDropout) and m.p > 0 for m in experiment.model.modules())
        self._fast = settings.engine == "fast"
        self._warn = warn
        self._dtype = next(experiment.model.parameters()).dtype
        self._gradients: Tensor | None = None

    def work(
        self, ids: Sequence[int], round: int, theta: Tensor, momentum: Tensor | None, *, frozen: bool, out: Tensor
    ) -> Messages:
        """Honest messages of the clients ``ids`` at the model ``theta``, written to ``out [n d]``.

        ``theta`` is the vector the model's parameters are views of; it is the same afterwards. ``momentum [n d]``
        are the clients' momenta, updated in place; ``out`` may be that very tensor.
        """
        e = self._experiment
        if e.algorithm.one_batch and (self._fast or e.norm.centralised):
            return self._one_batch(ids, round, momentum, frozen=frozen, out=out)
        return self._local_steps(ids, round, theta, momentum, frozen=frozen, out=out)

    # --- one batch each, all at the same model -----------------------------------------------------------------------

    def _one_batch(
        self, ids: Sequence[int], round: int, momentum: Tensor | None, *, frozen: bool, out: Tensor
    ) -> Messages:
        e = self._experiment
        index = [self._batches.indices(k, round) for k in ids]
        sizes = tuple(len(i) for i in index)
        x, y = self._inputs(ids, torch.cat(index), sizes, round, 0)
        gradients = out if momentum is None else self._scratch(out)
        for method in (shared_gradients, reference_gradients)[not self._fast :]:
            try:
                done = method(
                    e.model, e.layout, x, y, sizes,
                    generators=self._generators(ids, round, 0), frozen=frozen, out=gradients,
                )  # fmt: skip
                break
            except Unsupported as error:
                self._warn(f"the fast engine does not support this model ({error}); using the reference engine")
                self._fast = False
        e.algorithm.stacked(gradients, momentum, out=out)
        if momentum is not None and momentum is not out:
            momentum.copy_(out)
        return Messages(out, done.reports, done.losses)

    def _scratch(self, like: Tensor) -> Tensor:
        if self._gradients is None or self._gradients.shape != like.shape:
            self._gradients = torch.empty_like(like)
        return self._gradients

    # --- local steps: every client walks its own way -----------------------------------------------------------------

    def _local_steps(
        self, ids: Sequence[int], round: int, theta: Tensor, momentum: Tensor | None, *, frozen: bool, out: Tensor
    ) -> Messages:
        e = self._experiment
        start = theta.clone()
        rows = theta.new_empty((len(ids), e.layout.s))
        counts: list[Tensor] = []
        losses: list[Tensor] = []
        for place, k in enumerate(ids):
            steps = e.algorithm.steps(len(e.parts[k]), e.settings.batch)
            begin(e.model, None, frozen=frozen, generators=self._generators([k], round, 0))
            own: list[Tensor] = []
            work = LocalWork(
                theta=start,
                lr=e.lr(round),
                steps=steps,
                gradient=self._gradient_of(k, round, steps, theta, own),
                momentum=None if momentum is None else momentum[place],
            )
            message, kept = e.algorithm.local(work)
            out[place] = message
            if kept is not None and momentum is not None:
                momentum[place] = kept
            reports = collect(e.model, e.layout)
            rows[place] = reports.rows[0]
            counts.append(reports.counts[0])
            losses.append(torch.stack(own).mean())
        theta.copy_(start)
        return Messages(out, Reports(rows, torch.stack(counts)), torch.stack(losses))

    def _gradient_of(
        self, client: int, round: int, steps: int, theta: Tensor, losses: list[Tensor]
    ) -> Callable[[Tensor], Tensor]:
        e = self._experiment
        step = 0

        def gradient(at: Tensor) -> Tensor:
            nonlocal step
            theta.copy_(at)
            index = self._batches.indices(client, round * steps + step)
            x, y = self._inputs([client], index, (len(index),), round, step)
            step += 1
            e.model.zero_grad(set_to_none=True)
            loss = F.cross_entropy(e.model(channels_last(x) if self._fast else x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            return read_gradient(e.model, e.layout, torch.empty_like(theta))

        return gradient

    # --- inputs ------------------------------------------------------------------------------------------------------

    def _inputs(
        self, ids: Sequence[int], index: Tensor, sizes: tuple[int, ...], round: int, step: int
    ) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the clients' batches, augmented, and poisoned where the attack poisons data."""
        e = self._experiment
        x, y = e.train.pixels(index, dtype=self._dtype), e.train.labels(index)
        poisoners = self._byzantine & set(ids) if e.attack.poisons_data else frozenset()
        if e.augment is None and not poisoners:
            return x, y
        xs, ys = [], []
        for k, part, labels in zip(ids, torch.split(x, list(sizes)), torch.split(y, list(sizes)), strict=True):
            new, new_labels = part, labels
            if e.augment is not None:
                new = e.augment(new, self._stream("augment", k, round, step))
            if k in poisoners:
                new, new_labels = e.attack.poison(
                    new, new_labels, classes=e.classes, generator=self._stream("poison", k, round, step)
                )
            xs.append(new)
            ys.append(new_labels)
        return torch.cat(xs), torch.cat(ys)

    def _generators(self, ids: Sequence[int], round: int, step: int) -> tuple[torch.Generator, ...]:
        if not self._dropout:
            return ()
        return tuple(self._stream("dropout", k, round, step) for k in ids)

    def _stream(self, name: str, client: int, round: int, step: int) -> torch.Generator:
        e = self._experiment
        return stream(e.settings.seed, name, client, round, step, device=e.device)
