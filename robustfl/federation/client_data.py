"""What clients compute on: batches from their own streams, augmented and poisoned, and passes over all their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Reports, Task
from robustfl.errors import Refused
from robustfl.federation.experiment import Experiment
from robustfl.federation.passes import channels_last
from robustfl.federation.personal import lent
from robustfl.federation.statistics import begin, collect, collecting
from robustfl.models.dropout import ClientDropout
from robustfl.randomness import numpy_stream, stream

STATISTICS_BATCH = 256
STATISTICS_STEP = -1  # dropout masks of a pass before training are not those of a step


class Batches:
    """Client ``k``'s batches: a new permutation of its data every epoch, drawn from its own stream.

    With ``anew`` every batch is drawn by itself instead, with replacement, and full. With ``whole`` (one-batch
    algorithms) every batch is full and a remainder is left out of the epoch; otherwise the last batch of an epoch may
    be smaller, but a remainder of fewer than ``least`` samples is left out too.
    """

    def __init__(
        self, parts: Sequence[Tensor], batch: int, seed: int, *, whole: bool, least: int = 1, anew: bool = False
    ) -> None:
        # Whose samples come next is settled on the CPU, for all clients; one copy of that goes to the device.
        self._parts = [part.cpu() for part in parts]
        self._batch, self._seed, self._whole, self._least = batch, seed, whole, least
        self._anew = anew
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def usable(self, client: int) -> int:
        """How many of the client's samples take part in an epoch."""
        samples = len(self._parts[client])
        if self._anew:
            return samples
        rest = samples % min(self._batch, samples)
        return samples - rest if 0 < rest < self._least else samples

    def indices(self, client: int, step: int) -> Tensor:
        """The training indices ``[b]`` of the ``step``-th batch of ``client``, on the CPU."""
        part = self._parts[client]
        if self._anew:
            drawn = numpy_stream(self._seed, "batch-anew", client, step).integers(len(part), size=self._batch)
            return part[torch.from_numpy(drawn)]
        size = min(self._batch, len(part))
        per_epoch = len(part) // size if self._whole else -(-self.usable(client) // size)
        epoch, place = divmod(step, per_epoch)
        known = self._orders.get(client)
        if known is None or known[0] != epoch:
            order = numpy_stream(self._seed, "batch", client, epoch).permutation(len(part)).astype(np.int64)
            known = (epoch, part[torch.from_numpy(order)])
            self._orders[client] = known
        return known[1][place * size : (place + 1) * size]


class ClientData:
    """The data of one experiment's clients as their training sees it.

    ``fast`` and ``side_by_side`` say how clients compute; both turn off for good once a model does not allow it.
    """

    def __init__(self, experiment: Experiment, warn: Callable[[str], None]) -> None:
        settings = experiment.settings
        self.experiment = experiment
        self._byzantine = settings.byzantine()
        self._places = {k: place for place, k in enumerate(sorted(self._byzantine))}
        self._dropout = any(isinstance(m, ClientDropout) and m.p > 0 for m in experiment.model.modules())
        self._fast = settings.engine == "fast"
        self.together = self._fast and experiment.objective.plain
        self._warn = warn
        self._dtype = next(experiment.model.parameters()).dtype
        self._batches = Batches(
            experiment.seats, settings.batch, settings.seed,
            whole=experiment.algorithm.one_batch, least=self._least_samples(),
            anew="replacement" in experiment.algorithm.asks,
        )  # fmt: skip

    def _least_samples(self) -> int:
        """The least batch the model can train on: two samples where normalization would see one value."""
        e = self.experiment
        begin(e.model, None, generators=self.generators([0], 0, 0))
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

    def steps(self, client: int) -> int:
        """The local steps of a client in a round, replayed batches counted as often as they are used."""
        return self.batch_count(client) * self.replays(client)

    def replays(self, client: int) -> int:
        """The local steps a client takes on every batch."""
        return self.experiment.objective.replays if client in self.experiment.adversarial else 1

    def batch_count(self, client: int) -> int:
        """The batches a client draws in a round."""
        e = self.experiment
        return e.algorithm.steps(self._batches.usable(client), e.settings.batch)

    def walk_alone(self, why: str) -> None:
        """From now on clients walk one after another, by the model's own forward and backward; say so."""
        self.together = False
        self._warn(f"clients run one after another ({why})")

    def statistics(self, client: int, round: int, theta: Tensor, *, refresh: bool = False) -> Reports:
        """What a client reports of its data at ``theta [d]`` without training (``Norm.statistics_pass``).

        ``refresh``: for a test, not for the round.
        """
        e, plan = self.experiment, self.experiment.norm.statistics_pass
        assert plan is not None
        index = e.seats[client]
        samples = len(index) if plan.samples is None else min(plan.samples, len(index))
        if plan.training or samples < len(index):  # batches are normalised together, so they must not be sorted
            chosen = torch.randperm(len(index), generator=stream(e.settings.seed, "statistics", client, round))
            index = index[chosen[:samples].to(index.device)]
        begin(e.model, None, generators=self.generators([client], round, STATISTICS_STEP) if plan.training else ())
        e.model.train(plan.training)
        with lent(e.flat, theta), collecting(e.model, refresh=refresh), torch.no_grad():
            for part in torch.tensor_split(index, -(-samples // STATISTICS_BATCH)):
                e.model(self.layout_of_batch(e.train.pixels(part, dtype=self._dtype)))
        e.model.train()
        return collect(e.model, e.layout)

    def batches(self, ids: Sequence[int], round: int, step: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """The ``step``-th batches of a round of the clients, one after another: pixels, labels and how many of each."""
        each = [1 if self.experiment.algorithm.one_batch else self.batch_count(k) for k in ids]
        index = [self._batches.indices(k, round * steps + step) for k, steps in zip(ids, each, strict=True)]
        sizes = tuple(map(len, index))
        chosen = torch.cat(index).to(self.experiment.device)
        return *self._inputs(ids, chosen, sizes, round, step), sizes

    def priors(self, ids: Sequence[int], sizes: tuple[int, ...]) -> Tensor:
        """The shares of the classes in the data of each sample's client ``[Σb c]``."""
        each = torch.tensor(ids).repeat_interleave(torch.tensor(sizes))
        return self.experiment.priors.index_select(0, each.to(self.experiment.device))

    def poisons(self, client: int) -> bool:
        """Whether the client is an attacker who trains on poisoned data."""
        return client in self._byzantine and self.experiment.attack.poisons_data

    def _inputs(
        self, ids: Sequence[int], index: Tensor, sizes: tuple[int, ...], round: int, step: int
    ) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the clients' batches, augmented, and poisoned where the attack poisons data."""
        e = self.experiment
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

    def generators(self, ids: Sequence[int], round: int, step: int) -> tuple[torch.Generator, ...]:
        """The clients' streams for dropout masks; none where nothing is dropped."""
        if not self._dropout:
            return ()
        return tuple(self._stream("dropout", k, round, step) for k in ids)

    def task(self, client: int, round: int) -> Task:
        """What the objective knows about the client."""
        e = self.experiment
        return Task(
            round=round,
            adversarial=client in e.adversarial,
            prior=e.priors[client],
            evasion=e.evasion,
            generator=self._stream("objective", client, round, 0),
        )

    def _stream(self, name: str, client: int, round: int, step: int) -> torch.Generator:
        e = self.experiment
        return stream(e.settings.seed, name, client, round, step, device=e.device)
