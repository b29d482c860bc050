"""Evaluation of a built cell: the global model on the test set, or every user's model on its own data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Evasion
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, branched, through
from robustfl.data import Resident
from robustfl.engine import LocalModels, Personal, State, lent, propagate_statistics
from robustfl.errors import Diverged
from robustfl.evaluation import (
    Accuracy,
    evaluation_batch,
    forgetting,
    limit_doubt,
    mean_over_users,
    robust_accuracy,
    standard_accuracy,
)
from robustfl.evaluation.accuracy import attack_success
from robustfl.evaluation.probes import PROBED, Evaluated, traits
from robustfl.gradients import NEAR, channels_last, evaluating
from robustfl.layout import write_statistics
from robustfl.models.network import representing
from robustfl.randomness import stream
from robustfl.records import Metrics

from .bn_statistics import picture
from .build import DTYPES, Built
from .cell import Cell

T = TypeVar("T")


_ABOUT_ALL = 0.99


class Evaluator:
    """Accuracies of one cell's model or models.

    A model common to all is tested on the test set; with domains every honest user counts alike, on its own domain's
    test part; with private parts every honest user's own model is tested, on its own part or on the whole test set.
    """

    def __init__(self, cell: Cell, built: Built) -> None:
        self._cell, self._built, self._e = cell, built, built.experiment
        self._e.model.eval()
        first = torch.zeros(2, dtype=torch.int64, device=self._e.device)  # a batch norm may take no single image
        self._batch = evaluation_batch(self._e.model, built.test.pixels(first, dtype=DTYPES[cell.dtype]))
        byzantine = self._e.settings.byzantine()
        self.users = [k for k in range(cell.clients) if k not in byzantine]
        self.shift: float | None = None  # by attackers of what was propagated for the last test
        # Factors of layers are private, too, but no model is tested with them.
        self.personal = bool(self._e.norm.private)
        self.branch = CLEAN if cell.branch == "clean" else ADVERSARIAL

    @property
    def description(self) -> str:
        """Which model is tested on what, in words."""
        where = "their own test parts" if self._built.tests else "the test set"
        who = "the honest users' own models" if self.personal else "the global model"
        if self._built.tests and not self.personal:
            where = "the honest users' test parts"
        through_branch = f", {self.branch} branch" if branched(self._e.model) else ""
        return f"{who} on {where}, evaluation mode, white box through the evaluated model{through_branch}"

    @property
    def samples(self) -> int:
        """Images that accuracy is measured on, of all honest users together where each has its own."""
        return sum(map(len, self._parts()))

    @property
    def equal_samples(self) -> float | None:
        """Images of a test set whose accuracy is as uncertain as the mean over users with ``n`` each, ``U²/Σ 1/n``.

        ``None`` where that is about all of them.
        """
        sizes = [len(part) for part in self._parts() if len(part)]
        found = len(sizes) ** 2 / sum(1 / n for n in sizes)
        return found if found < _ABOUT_ALL * sum(sizes) else None

    @property
    def ra_samples(self) -> int:
        """Images that robust accuracy is measured on, of one user where users differ."""
        most = max(map(len, self._parts()))
        return min(most, self._cell.ra_limit or most)

    @property
    def doubts(self) -> list[str]:
        """Doubts about the images that are attacked, told of one user where several have the same one."""
        limit, traits = self._cell.ra_limit, [*self._trait_doubts(), *self._backdoor_doubts()]
        if not self._built.evasions or limit is None:
            return traits
        parts = self._parts()
        reached = [part for part in parts if len(part) >= limit] or parts
        found = (limit_doubt(self._built.test.y[part], limit) for part in reached)
        return [*traits, *[words for words in found if words][:1]]

    def _trait_doubts(self) -> list[str]:
        """Doubts about a model whose outputs depend on more than the image and its weights."""
        doubts = []
        if self._randomised:
            several = len(self._built.evasions) > 1
            worst = "; ra_worst is not given, since every attack meets other draws" if several else ""
            doubts.append(f"the model is randomised: two forwards of the same test images differ{worst}")
        if self._tested is self._e.model:
            return doubts
        return [
            *doubts,
            "the model's outputs depend on the other images of a batch: every forward has batch size "
            f"{self._batch}, filled up with the first test images; accuracies at another batch size differ",
        ]

    @cached_property
    def _traits(self) -> tuple[bool, bool]:
        """True if the model's outputs are random at test time, and if they depend on the whole batch."""
        e, index = self._e, torch.cat(self._parts())[:PROBED]
        devices = [e.device] if e.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), through(e.model, self.branch):
            return traits(e.model, self._built.test.pixels(index, dtype=DTYPES[self._cell.dtype]))

    @property
    def _randomised(self) -> bool:
        return self._traits[0]

    @cached_property
    def _tested(self) -> nn.Module:
        """The model; one whose outputs depend on the whole batch with a fixed batch size."""
        if not self._traits[1]:
            return self._e.model
        first = torch.cat(self._parts())[: min(self._batch, NEAR)]
        self._batch = len(first)
        return Evaluated(self._e.model, fill=self._built.test.pixels(first, dtype=DTYPES[self._cell.dtype]))

    def _worst(self, robust: list[list[Accuracy]]) -> float | None:
        """Accuracy on the inputs that resist every attack; None of several attacks on a model that draws for each."""
        return None if self._randomised and len(robust) > 1 else _worst(robust)

    def _backdoor_doubts(self) -> list[str]:
        """Users on whose test images the success of a backdoor cannot be measured."""
        without = sum(not others for others in self._others.values())
        if not without:
            return []
        what = f"the attack's target, {self._e.attack.target}"
        if without == len(self._others):
            return [f"asr: no test image is of another class than {what}"]
        return [f"asr: {without} of {len(self._others)} users have test images of {what}, alone; they do not count"]

    def standard(self, state: State) -> tuple[float, float]:
        """Standard accuracy and test loss."""
        with self.as_tested(state) as at:
            found = self._measure(at, None, self.branch)
            return mean_over_users([a.value for a in found]), mean_over_users([a.loss for a in found])

    def robust_worst(self, state: State) -> float | None:
        """Accuracy on the inputs that resist every evasion attack of the cell, or None without one."""
        with self.as_tested(state) as at:
            return self._worst([self._measure(at, named, self.branch) for named in self._built.evasions])

    def on_validation(self, state: State) -> float:
        """The value a round is selected by: the mean over honest users of accuracy on their own validation data.

        Of users that train adversarially it is accuracy under the attack they train against.
        """
        e = self._e
        users = [k for k in self.users if len(self._built.validation[k])]
        kept = self._built.validation
        with self.as_tested(state) as at:
            return mean_over_users(
                self._each(at, users, lambda k: self._validated(kept[k], k if k in e.adversarial else None))
            )

    def metrics(self, state: State) -> Metrics:
        """Everything about a model."""
        kept = self._built.validation
        with self.as_tested(state) as at:
            everything = self._everything(at, self.branch)
            standard = everything["sa"]
            robust = {spec: everything[spec] for spec, _ in self._built.evasions}
            loss = mean_over_users([a.loss for a in standard])
            if not math.isfinite(loss):
                raise Diverged(state.round, "the test loss")
            groups = self._groups(everything)
            if branched(self._e.model) and self._cell.branch == "both" and self._trains_clean:
                groups |= self._branches(at, everything)
            if self._cell.across:
                groups |= self._across(at)
            per_user = len(standard) == len(self.users)
            return Metrics(
                sa=mean_over_users([a.value for a in standard]),
                loss=loss,
                ra={spec: mean_over_users([a.value for a in found]) for spec, found in robust.items()},
                ra_worst=self._worst(list(robust.values())),
                per_class={
                    name: Accuracy(
                        torch.cat([a.hits for a in found]), torch.cat([a.labels for a in found]), 0.0
                    ).per_class(self._e.classes)
                    for name, found in everything.items()
                },
                per_client={
                    "sa": self._each(at, range(len(kept)), lambda k: self._validated(kept[k]) if len(kept[k]) else None)
                }
                if self._cell.validation
                else {},
                per_user={name: self._seated(found) for name, found in everything.items()} if per_user else {},
                groups=groups,
                evaluation=self.description,
                asr=self._attack_success(at),
                samples=self.samples,
            )

    def forgetting(self, state: State, local: LocalModels) -> dict[str, Any]:
        """Forgetting F of a round: local models against the received one on the participants' data."""
        e = self._e

        def accuracies(theta: Tensor, statistics: Tensor) -> list[float]:
            write_statistics(e.model, e.layout, statistics)
            with lent(state.theta, theta), through(e.model, self.branch):
                return [self._validated(self._built.validation[d]) for d in local.clients]

        before = accuracies(local.received, local.before)
        after = []
        for update, statistics in zip(local.updates, local.statistics, strict=True):
            whole = local.received + e.privacy.whole(update, e.layout.d)
            after.append(accuracies(whole, statistics if e.norm.sends_statistics else local.before))
        write_statistics(e.model, e.layout, state.statistics)
        return {"clients": list(local.clients), **asdict(forgetting(before, after))}

    # --- users and their models --------------------------------------------------------------------------------------

    @contextmanager
    def as_tested(self, state: State) -> Iterator[State]:
        """The state as it is tested: with what is propagated to users just before."""
        e, personal = self._e, state.personal
        write_statistics(e.model, e.layout, state.statistics)
        if e.propagate is None or personal is None:
            yield state
            return
        own = Personal(personal.parameters, personal.statistics.clone())
        self.shift = propagate_statistics(e, own.statistics, state.round, state.attack, tested=True)
        yield State(state.round, state.theta, state.statistics, state.memory, state.defense, state.server, own)

    @contextmanager
    def _model_of(self, state: State, user: int) -> Iterator[None]:
        """Within, the network is the user's own, where users have models of their own."""
        e, personal = self._e, state.personal
        if not self.personal:
            yield
            return
        assert personal is not None
        with lent(state.theta, personal.models_of([user], e.privacy, state.theta)[0]):
            if e.privacy.statistics:
                write_statistics(e.model, e.layout, personal.statistics[user])
            try:
                yield
            finally:
                write_statistics(e.model, e.layout, state.statistics)

    def _each(self, state: State, users: Iterable[int], ask: Callable[[int], T], branch: str = "") -> list[T]:
        """The answers to ``ask(user)``, in turn with the model of every one of the users."""
        found = []
        for k in users:
            with self._model_of(state, k), through(self._e.model, branch or self.branch):
                found.append(ask(k))
        return found

    def _everything(self, state: State, branch: str) -> dict[str, list[Accuracy]]:
        """Standard accuracy, as ``"sa"``, and robust accuracy under every evasion attack of the cell."""
        found = {"sa": self._measure(state, None, branch)}
        return found | {spec: self._measure(state, (spec, attack), branch) for spec, attack in self._built.evasions}

    def _measure(self, state: State, named: tuple[str, Evasion] | None, branch: str) -> list[Accuracy]:
        """Accuracy of every honest user, or one for all where model and data are common."""
        limit = None if named is None else self._cell.ra_limit
        if self.personal:
            return self._each(state, self.users, lambda k: self._accuracy(self._part(k)[:limit], named, (k,)), branch)
        parts, who = [part[:limit] for part in self._parts()], ("users",) if self._built.tests else ()
        with through(self._e.model, branch):
            together = self._accuracy(torch.cat(parts), named, who)
        hits, labels = (torch.split(of, list(map(len, parts))) for of in (together.hits, together.labels))
        return [Accuracy(h, y, together.loss) for h, y in zip(hits, labels, strict=True)]  # the loss is common

    def _parts(self) -> list[Tensor]:
        """The test images of every honest user, or of all together where they share them."""
        return [self._part(k) for k in (self.users if self._built.tests else self.users[:1])]

    def _part(self, user: int) -> Tensor:
        if self._built.tests:
            return self._built.tests[user]
        return torch.arange(len(self._built.test), device=self._e.device)

    def _accuracy(self, index: Tensor, named: tuple[str, Evasion] | None, who: Sequence[str | int]) -> Accuracy:
        test, tested = self._built.test, self._tested  # which may set the batch
        pixels = self._pixels(test, index)
        if named is None:
            return standard_accuracy(tested, innermost(pixels), test.y[index], batch=self._batch)
        spec, attack = named
        generator = stream(self._cell.seed, "evasion", spec, *who, device=self._e.device)
        return robust_accuracy(tested, pixels, test.y[index], attack, batch=self._batch, generator=generator)

    def _pixels(self, data: Resident, index: Tensor) -> Callable[[Tensor], Tensor]:
        """Gives, of the samples ``index`` of ``data``, the images of those at some places."""
        return lambda chosen: data.pixels(index[chosen], dtype=DTYPES[self._cell.dtype])

    def _validated(self, index: Tensor, attacked: int | None = None) -> float:
        """Accuracy on training images that were kept aside; of user ``attacked`` under the training attack."""
        e = self._e
        pixels = self._pixels(e.train, index)
        if attacked is None:
            return standard_accuracy(e.model, innermost(pixels), e.train.y[index], batch=self._batch).value
        draws = stream(self._cell.seed, "selection", attacked, device=e.device)
        return robust_accuracy(e.model, pixels, e.train.y[index], e.evasion, batch=self._batch, generator=draws).value

    def _attack_success(self, state: State) -> float | None:
        """The success rate of the attack's backdoor, or None for attacks without one, or without images to show it."""
        e, test = self._e, self._built.test
        attack = e.attack.adapted(state.attack.get("data", {}))

        def success(user: int) -> float:
            index = self._part(user)
            return attack_success(e.model, self._pixels(test, index), test.y[index], attack, batch=self._batch)

        users = [user for user, others in self._others.items() if others]
        return mean_over_users(self._each(state, users, success)) if users else None

    @cached_property
    def _others(self) -> dict[int, int]:
        """Of a backdoor the test images of other classes than its target, of each user that is tested by itself."""
        attack = self._e.attack
        if not attack.triggers or attack.target is None or not self._e.settings.f:
            return {}
        users = self.users if self.personal or self._built.tests else self.users[:1]
        return {user: int((self._built.test.y[self._part(user)] != attack.target).sum()) for user in users}

    # --- summaries ---------------------------------------------------------------------------------------------------

    def _seated(self, found: list[Accuracy]) -> list[float | None]:
        """Values by client, None for Byzantine ones."""
        values: list[float | None] = [None] * self._cell.clients
        for k, accuracy in zip(self.users, found, strict=True):
            values[k] = accuracy.value
        return values

    def _groups(self, everything: dict[str, list[Accuracy]]) -> dict[str, dict[str, float]]:
        """Means over the users of each domain and role, and the spread over all users."""
        groups: dict[str, dict[str, float]] = {}
        first = next(iter(everything.values()))
        if len(first) != len(self.users):
            return groups
        members: dict[str, list[int]] = {}
        for place, k in enumerate(self.users):
            if self._built.domain_of:
                members.setdefault(f"domain {self._cell.domains[self._built.domain_of[k]]}", []).append(place)
            if self._e.adversarial:
                members.setdefault("AT users" if k in self._e.adversarial else "ST users", []).append(place)
        for name, places in members.items():
            groups[name] = {m: mean_over_users([found[i].value for i in places]) for m, found in everything.items()}
        if self._cell.tests == "own":
            groups["worst client"] = {m: min(a.value for a in found) for m, found in everything.items()}
        groups["spread"] = {m: _deviation([a.value for a in found]) for m, found in everything.items()}
        return groups

    @property
    def _trains_clean(self) -> bool:
        """True if everybody has statistics of the clean branch."""
        e = self._e
        return e.objective.trains_clean or not (e.adversarial and e.privacy.statistics)

    def _branches(self, state: State, adversarial: dict[str, list[Accuracy]]) -> dict[str, dict[str, float]]:
        """The clean branch beside the adversarial one, and the lower of both."""
        clean = self._everything(state, CLEAN)
        values = {m: mean_over_users([a.value for a in found]) for m, found in clean.items()}
        lower = {m: min(values[m], mean_over_users([a.value for a in found])) for m, found in adversarial.items()}
        return {"branch clean": values, "branch min": lower}

    def representations(self, state: State) -> dict[str, Any] | None:
        """The model's view of test images: what its last layer receives of them, in two principal components.

        Of every domain (or of the test set) the first ``representations`` images, clean and, where the cell has an
        evasion attack, attacked by the first one, through every branch, by the first honest user's model of the domain.
        The keys are those of the picture of batch-norm statistics; ``groups`` name domain and images, ``clients`` the
        users. ``None`` where there is nothing to tell apart.
        """
        names = self._cell.domains or ("",)
        branches = (CLEAN, ADVERSARIAL) if branched(self._e.model) else ("",)
        rows, told = [], list[tuple[int, str, str]]()
        with self.as_tested(state) as at:
            for d, name in enumerate(names):
                user = next((k for k in self.users if not self._built.domain_of or self._built.domain_of[k] == d), None)
                if user is None:
                    continue
                index = self._part(user)[: self._cell.representations]
                for branch in branches:
                    with self._model_of(at, user), through(self._e.model, branch):
                        for images, features in self._seen(index, user, branch).items():
                            rows.append(features)
                            told += [(user, branch, " · ".join(w for w in (name, images) if w))] * len(index)
        return picture(torch.cat(rows), told) if rows else None

    def _seen(self, index: Tensor, user: int, branch: str) -> dict[str, Tensor]:
        """Representations ``[b k]`` of clean test images, and of the same attacked through the model as it stands."""
        model, test = self._e.model, self._built.test
        x, y = test.pixels(index, dtype=DTYPES[self._cell.dtype]), test.y[index]
        found = {"clean images": represented(model, x)}
        for spec, attack in self._built.evasions[:1]:
            generator = stream(self._cell.seed, "representations", spec, user, branch, device=self._e.device)
            with evaluating(model):
                attacked = attack.perturb(model, x, y, generator=generator)
            found["attacked images"] = represented(model, attacked)
        return found

    def _across(self, state: State) -> dict[str, dict[str, float]]:
        """Every domain's models on every domain's test images, and the mean over the test domains.

        The models are those of the domain's honest users, the mean over them; a domain's test images are those of all
        its users together, and of domains with equally many images each counts alike.
        """
        domain_of, names = self._built.domain_of, self._cell.domains
        owners = [[k for k in self.users if domain_of[k] == d] for d in range(len(names))]
        tests = [
            torch.cat([part for k, part in enumerate(self._built.tests) if domain_of[k] == d])
            for d in range(len(names))
        ]
        attacks: list[tuple[str, Evasion] | None] = [None, *self._built.evasions]
        groups: dict[str, dict[str, float]] = {}
        for d, users in enumerate(owners):
            if not users:
                continue
            found = [
                {("sa" if a is None else a[0]): self._crossed(state, users, test, a) for a in attacks} for test in tests
            ]
            groups |= {f"models of {names[d]} on {names[t]}": on for t, on in enumerate(found)}
            groups[f"models of {names[d]}"] = {m: mean_over_users([on[m] for on in found]) for m in found[0]}
        return groups

    def _crossed(self, state: State, users: Sequence[int], test: Tensor, attack: tuple[str, Evasion] | None) -> float:
        """Mean accuracy of some users' own models on the same test images."""
        limited = test[: None if attack is None else self._cell.ra_limit]
        return mean_over_users(self._each(state, users, lambda k: self._accuracy(limited, attack, ("across", k)).value))


def represented(model: nn.Module, x: Tensor) -> Tensor:
    """The inputs as the model's last linear layer receives them, ``[b k]``, in evaluation mode."""
    with evaluating(model), torch.no_grad(), representing(model) as seen:
        model(x)
    return seen[0]


def _worst(robust: list[list[Accuracy]]) -> float | None:
    """Accuracy on the inputs that resist every attack, mean over users."""
    if not robust:
        return None
    users = zip(*robust, strict=True)
    return mean_over_users([float(torch.stack([a.hits for a in user]).all(0).double().mean()) for user in users])


def _deviation(values: list[float]) -> float:
    mean = mean_over_users(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def innermost(pixels: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same images in the memory layout of the engine, for the model alone: a third less time on the CPU."""
    return lambda index: channels_last(pixels(index))
