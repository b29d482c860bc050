"""Clients' data: batches from their own streams, augmented and poisoned, and passes over all their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from robustfl.contracts import Objective, Reports, StatisticsPass, Task
from robustfl.contracts.norm import mixes_examples
from robustfl.data import Batches
from robustfl.engine.cuda_graphs import GraphCache, recorded_on
from robustfl.engine.experiment import Experiment
from robustfl.engine.personal import lent
from robustfl.engine.statistics import begin, collect, collecting, resize
from robustfl.errors import Refused
from robustfl.gradients import Plan, Unsupported, at_once, channels_last, serving
from robustfl.models.network import ClientDropout
from robustfl.randomness import stream
from robustfl.results import pair, received

STATISTICS_BATCH = 256
PRIOR_EPOCHS = 16
STATISTICS_STEP = -1  # dropout masks of a pass before training are not those of a step


class Clients:
    """The data of one experiment's clients as their training sees it.

    ``together`` says whether several clients compute at once; it turns off for good where a model does not allow it.
    """

    def __init__(self, experiment: Experiment, warn: Callable[[str], None]) -> None:
        settings = experiment.settings
        self.experiment, self.attack = experiment, experiment.attack
        self._byzantine = settings.byzantine()
        self._places = {k: place for place, k in enumerate(sorted(self._byzantine))}
        self._dropout = any(isinstance(m, ClientDropout) and m.p > 0 for m in experiment.model.modules())
        self._fast = settings.engine == "fast"
        self.together = self._fast and experiment.objective.plain
        self._warn = warn
        recorder = recorded_on(experiment.device) if experiment.objective.recordable else None
        self._poisoned: Tensor | None = None
        self.replays = GraphCache(experiment.model, recorder, warn)
        self._dtype = next(experiment.model.parameters()).dtype
        if "examples" in experiment.algorithm.asks and mixes_examples(experiment.model):
            raise Refused(f"{experiment.algorithm.name} needs a network without batch normalization, of its own too")
        self._batches = Batches(
            experiment.seats, settings.batch, settings.seed,
            whole="one_batch" in experiment.algorithm.asks, least=self._least_samples(),
            anew="replacement" in experiment.algorithm.asks,
        )  # fmt: skip
        idle = () if experiment.computes_own else self._byzantine
        self._batches.check(k for k in range(settings.clients) if k not in idle)

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

    @cached_property
    def plan(self) -> Plan:
        """The model's layers with their kinds. Raises ``Unsupported`` where clients cannot compute together."""
        return Plan(self.experiment.model, self.experiment.layout)

    def steps(self, client: int) -> int:
        """The local steps of a client in a round, replayed batches counted as often as they are used."""
        return self.batch_count(client) * self.repeats(client)

    def repeats(self, client: int) -> int:
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

    def statistics(self, ids: Sequence[int], round: int, thetas: Tensor, *, refresh: bool = False) -> Reports:
        """The reports of clients with equally much data at ``thetas [n d]``, without training (``StatisticsPass``).

        ``refresh``: for a test before ``round``, in which attackers act as in the round that is over.
        """
        e, plan, n = self.experiment, self.experiment.norm.statistics_pass, len(ids)
        assert plan is not None
        index, acting = torch.stack([self._looked_at(k, round, plan) for k in ids]), max(0, round - refresh)
        generators = self.generators(ids, round, STATISTICS_STEP) if plan.training else ()
        draws = [self._stream("poison", k, round, STATISTICS_STEP) if self.poisons(k) else None for k in ids]
        begin(e.model, None if n == 1 else (1,) * n, generators=generators)
        lending = None if n == 1 else self.plan
        e.model.train(plan.training)
        with collecting(e.model, refresh=refresh), torch.no_grad():
            for part in torch.tensor_split(index, -(-index.shape[1] // STATISTICS_BATCH), dim=1):
                x, sizes = self.layout_of_batch(self._shown(ids, part, acting, draws)), (part.shape[1],) * n
                if n > 1:
                    resize(e.model, sizes)
                with lent(e.flat, thetas[0]) if lending is None else serving(lending, thetas, sizes):
                    e.model(x)
        e.model.train()
        return collect(e.model, e.layout, clients=n)

    def _looked_at(self, client: int, round: int, plan: StatisticsPass) -> Tensor:
        """The training indices, on the CPU, that a client's pass goes over."""
        part = self._batches.parts[client]
        samples = len(part) if plan.samples is None else min(plan.samples, len(part))
        if not plan.training and samples == len(part):
            return part
        # Batches are normalised together, so they must not be sorted.
        generator = stream(self.experiment.settings.seed, "statistics", client, round)
        return part[torch.randperm(len(part), generator=generator)[:samples]]

    def _shown(self, ids: Sequence[int], index: Tensor, round: int, draws: Sequence[torch.Generator | None]) -> Tensor:
        """The pixels of the clients' samples ``[n b]``, those of one after another, poisoned where there are draws."""
        if not any(draws):
            return self._images(index.flatten())[0]
        each = zip(ids, map(self._images, index), draws, strict=True)
        return torch.cat([x if g is None else self._poison(k, x, y, g, round)[0] for k, (x, y), g in each])

    def group_by_group(self, groups: list[list[int]], work: Callable[[list[int]], None]) -> None:
        """Let ``work`` go through the groups, client by client as soon as a model does not allow more."""
        while groups:
            places = groups.pop(0)
            try:
                work(places)
            except Unsupported as error:
                self.walk_alone(str(error))
                alone = [place for group in (places, *groups) for place in group]
                groups = [alone] if self.experiment.merged else [[place] for place in alone]

    def at_once(self, batch: int, like: Tensor, *, alike: bool) -> int:
        """The number of clients with ``batch`` samples each that compute together (``gradients.at_once``)."""
        e = self.experiment
        return at_once(e.model, e.layout.d, e.train.x[0, ..., 0].numel(), batch, like, alike=alike)

    def spare(self, ids: Sequence[int], at: Tensor) -> bool:
        """True if the clients' pass at the models ``at`` takes an eighth of the memory at most."""
        return 4 * len(ids) <= self.at_once(self.experiment.settings.batch, at, alike=at.stride(0) == 0)

    def batches(self, ids: Sequence[int], round: int, step: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """The ``step``-th batches of a round of the clients, one after another: pixels, labels and how many of each."""
        each = [1 if "one_batch" in self.experiment.algorithm.asks else self.batch_count(k) for k in ids]
        index = [self._batches.indices(k, round * steps + step) for k, steps in zip(ids, each, strict=True)]
        sizes = tuple(map(len, index))
        return *self._inputs(ids, torch.cat(index), sizes, round, step), sizes

    def priors(self, ids: Sequence[int], sizes: tuple[int, ...], round: int) -> Tensor:
        """The shares of the classes in what each sample's client trains on ``[Σb c]``, poisoned labels as they are."""
        each = torch.tensor(ids).repeat_interleave(torch.tensor(sizes))
        return self._shares(round).index_select(0, each.to(self.experiment.device))

    def _shares(self, round: int) -> Tensor:
        """The shares of the classes in what every client trains on ``[N c]``."""
        e = self.experiment
        reads = not e.objective.plain or type(e.objective).per_sample is not Objective.per_sample
        if not (reads and self._byzantine and e.attack.poisons_data and e.attack.on(round)):
            return e.priors
        if self._poisoned is None:
            self._poisoned = e.priors.clone()
            for k in self._byzantine:
                self._poisoned[k] = self._poisoned_share(k, round)
        return self._poisoned

    def _poisoned_share(self, client: int, round: int) -> Tensor:
        """The shares of the classes in an attacker's poisoned batches ``[c]``: in the mean of some epochs, if drawn."""
        e, generator = self.experiment, self._stream("poison-prior", client, 0, 0)
        counts: list[Tensor] = []
        while len(counts) < 2 or (len(counts) < PRIOR_EPOCHS and not torch.equal(counts[0], counts[1])):
            count = torch.zeros(e.classes, dtype=torch.int64)
            for part in torch.split(e.parts[client], e.settings.batch):
                _, labels = self._poison(client, *self._images(part), generator, round)
                count += torch.bincount(labels.cpu(), minlength=e.classes)
            counts.append(count)
        total = torch.stack(counts).sum(0).double()
        return (total / total.sum().clamp(min=1)).to(e.priors)

    def _images(self, index: Tensor) -> tuple[Tensor, Tensor]:
        data, here = self.experiment.train, index.to(self.experiment.device)
        return data.pixels(here, dtype=self._dtype), data.labels(here)

    def _poison(
        self, k: int, x: Tensor, y: Tensor, draws: torch.Generator, round: int, step: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Pixels and labels as attacker ``k`` poisons them in a local step of a round."""
        e, place = self.experiment, self._places[k]
        attack = self.attack.in_step(step, None)
        made = attack.poison(x, y, classes=e.classes, generator=draws, attacker=place, round=round)
        images, labels = pair(made, "images, labels", e.attack, "poison()")
        return received(images, x, e.attack, "poison()"), received(labels, y, e.attack, "poison()")

    def attackers_images(self, ids: Sequence[int], round: int) -> tuple[Tensor, Tensor]:
        """A batch of pixels and labels of each attacker, to which a trigger is fitted in this round."""
        e, parts = self.experiment, self._batches.parts
        orders = [torch.randperm(len(parts[k]), generator=stream(e.settings.seed, "adapt", k, round)) for k in ids]
        drawn = [parts[k][order[: e.settings.batch]] for k, order in zip(ids, orders, strict=True)]
        return self._images(torch.cat(drawn))

    def poisons(self, client: int) -> bool:
        """True if the client is an attacker who trains on poisoned data."""
        return client in self._byzantine and self.experiment.attack.poisons_data

    def _inputs(
        self, ids: Sequence[int], index: Tensor, sizes: tuple[int, ...], round: int, step: int
    ) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the clients' batches, augmented, and poisoned where the attack poisons data."""
        e, (x, y) = self.experiment, self._images(index)
        if e.augment is None and not any(self.poisons(k) for k in ids):
            return x, y
        xs, ys = list(torch.split(x, list(sizes))), list(torch.split(y, list(sizes)))
        for at, k in enumerate(ids):
            if e.augment is not None:
                xs[at] = e.augment(xs[at], self._stream("augment", k, round, step))
            if self.poisons(k):
                xs[at], ys[at] = self._poison(k, xs[at], ys[at], self._stream("poison", k, round, step), round, step)
        return torch.cat(xs), torch.cat(ys)

    def layout_of_batch(self, x: Tensor) -> Tensor:
        """The batch in the memory layout of the engine."""
        return channels_last(x) if self._fast else x

    def generators(self, ids: Sequence[int], round: int, step: int) -> tuple[torch.Generator, ...]:
        """The clients' streams for dropout masks; none where nothing is dropped."""
        return tuple(self._stream("dropout", k, round, step) for k in ids) if self._dropout else ()

    def task(self, client: int, round: int) -> Task:
        e = self.experiment
        return Task(
            round=round,
            adversarial=client in e.adversarial,
            prior=self._shares(round)[client],
            evasion=e.evasion,
            generator=self._stream("objective", client, round, 0),
        )

    def _stream(self, name: str, client: int, round: int, step: int) -> torch.Generator:
        e = self.experiment
        return stream(e.settings.seed, name, client, round, step, device=e.device)
