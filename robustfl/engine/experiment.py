"""Everything one training run needs, built once and never changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from robustfl.contracts import Algorithm, Attack, Evasion, LockstepNorm, Norm, Objective, OneMachineNorm
from robustfl.data import Augment, Resident
from robustfl.defenses import Pipeline, Propagate
from robustfl.engine.personal import Privacy
from robustfl.engine.precision import Precision
from robustfl.errors import Refused
from robustfl.layout import Layout, flatten_parameters
from robustfl.randomness import numpy_stream, stream

Scope = Literal["update", "statistics", "both"]
Target = Literal["mean", "var", "both"]


@dataclass(frozen=True)
class FineTuning:
    """From round ``start`` (from 0) on only the clients ``tuners`` take part, before it only the others.

    The tuners leave the first ``frozen`` layers of weights (convolutions and linear layers, in the network's order,
    each with the normalization after it) as they received them; running statistics move in all layers.
    """

    start: int
    tuners: frozenset[int]
    frozen: int = 0


@dataclass(frozen=True)
class Settings:
    """The numbers of a federation. ``f`` clients are Byzantine; the defense is told ``f_declared``.

    ``candidates``: whom Byzantine clients are drawn from (default: everybody). ``quota``: under partial participation
    every round has the same number of them, ``f·n/N`` rounded; else as many as the draw of participants brings.
    ``precision`` is that of clients' forwards and backwards in training. With ``finetuning`` two groups of clients take
    part one after the other. A training may ``stop`` after the first of its ``rounds``.
    """

    clients: int
    f: int
    f_declared: int
    rounds: int
    batch: int
    participation: float = 1.0
    scope: Scope = "both"
    target: Target = "mean"
    seed: int = 0
    engine: Literal["fast", "reference"] = "fast"
    candidates: tuple[int, ...] | None = None
    quota: bool = False
    precision: Precision = "full"
    finetuning: FineTuning | None = None
    stop: int | None = None

    @property
    def end(self) -> int:
        """The rounds that are run."""
        return self.rounds if self.stop is None else self.stop

    @property
    def participants(self) -> int:
        """Clients per round, ``max(1, ⌊C·N⌋)``."""
        return max(1, int(self.participation * self.clients + 1e-9))

    def byzantine(self) -> frozenset[int]:
        """Which clients are Byzantine: drawn from the seed alone, so the same under every attack."""
        order = numpy_stream(self.seed, "byzantine").permutation(self.clients).tolist()
        if self.candidates is not None:
            pool = frozenset(self.candidates)
            order = [k for k in order if k in pool]
        return frozenset(order[: self.f])

    @property
    def attackers(self) -> int | None:
        """Byzantine clients of every round, or None where the draw of participants decides anew each time."""
        if self.participants == self.clients:
            return self.f
        if not self.quota:
            return None
        return (2 * self.f * self.participants + self.clients) // (2 * self.clients)  # f·n/N, halves upwards

    def sample(self, round: int) -> list[int]:
        """The participants of a round, in increasing order."""
        tuning = self.finetuning
        if tuning is not None:
            return [k for k in range(self.clients) if (k in tuning.tuners) == (round >= tuning.start)]
        if self.participants == self.clients:
            return list(range(self.clients))
        order = numpy_stream(self.seed, "participation", round).permutation(self.clients).tolist()
        if not self.quota:
            return sorted(order[: self.participants])
        byzantine, attackers = self.byzantine(), self.attackers or 0
        chosen = [k for k in order if k in byzantine][:attackers]
        honest = [k for k in order if k not in byzantine]
        return sorted(chosen + honest[: self.participants - attackers])


@dataclass(frozen=True)
class Experiment:
    """A federation with its data, model and methods. ``parts[k]`` are client ``k``'s training indices, ``root`` those
    of the server, which works as one client more where a defense needs that.

    ``adversarial`` are the AT users, ``evasion`` the attack they train against; ``priors [N c]`` the shares of the
    classes in the clients' training data. ``statistics_defense`` merges normalization statistics, by default as
    ``defense`` merges updates.
    """

    settings: Settings
    model: nn.Module
    layout: Layout
    train: Resident
    parts: tuple[Tensor, ...]
    classes: int
    algorithm: Algorithm
    norm: Norm
    attack: Attack
    defense: Pipeline
    lr: Callable[[int], float]
    objective: Objective
    evasion: Evasion
    adversarial: frozenset[int] = frozenset()
    root: Tensor | None = None
    propagate: Propagate | None = None
    augment: Augment | None = None
    statistics_defense: Pipeline | None = None

    @cached_property
    def privacy(self) -> Privacy:
        """The entries that clients keep to themselves."""
        return Privacy.of(self.norm, self.layout, self.device)

    @cached_property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of the tensors that clients send updates of, in the order of a row."""
        mask = self.privacy.mask
        return {slot.name: slot.shape for slot in self.layout.update if mask is None or bool(mask[slot.start])}

    @property
    def statistics_rule(self) -> Pipeline:
        """The server's rule on statistics: of merges, and of every exchange in lock-step."""
        return self.defense if self.statistics_defense is None else self.statistics_defense

    @property
    def seats(self) -> tuple[Tensor, ...]:
        """The training indices of all clients, and of the server after them if it has data."""
        return self.parts if self.root is None else (*self.parts, self.root)

    @cached_property
    def priors(self) -> Tensor:
        """The shares of the classes in every client's training data ``[N c]``."""
        counts = [torch.bincount(self.train.y[part], minlength=self.classes) for part in self.seats]
        return torch.stack([c.double() / max(1, int(c.sum())) for c in counts])

    @cached_property
    def flat(self) -> Tensor:
        """θ ``[d]``: the vector the model's parameters become views of."""
        return flatten_parameters(self.model, self.layout)

    @cached_property
    def byzantine(self) -> frozenset[int]:
        return self.settings.byzantine()

    def stream(self, name: str, *at: int) -> torch.Generator:
        """The generator of the stream ``name`` of this run, on its device."""
        return stream(self.settings.seed, name, *at, device=self.device)

    def weights(self, ids: Sequence[int]) -> Tensor | None:
        """The clients' shares of their samples ``[n]`` (CPU), for algorithms whose mean weighs them."""
        if not self.algorithm.weighted:
            return None
        sizes = torch.tensor([len(self.parts[k]) for k in ids], dtype=torch.float64)
        return sizes / sizes.sum()

    def held(self, round: int) -> int:
        """The number of entries of θ, the first ones, that stay as they are in a round of fine-tuning."""
        tuning = self.settings.finetuning
        return 0 if tuning is None or round < tuning.start else self._frozen_entries

    @cached_property
    def _frozen_entries(self) -> int:
        tuning = self.settings.finetuning
        if tuning is None or not tuning.frozen:
            return 0
        named = self.model.named_modules()
        layers = [name for name, m in named if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Linear))]
        if tuning.frozen >= len(layers):
            raise Refused(
                f"finetune: frozen={tuning.frozen} of the network's {len(layers)} layers leaves nothing to train; at "
                f"most {len(layers) - 1} can be"
            )
        prefix = layers[tuning.frozen] + "."
        return next(slot.start for slot in self.layout.update if slot.name.startswith(prefix))

    @property
    def device(self) -> torch.device:
        return self.train.y.device

    @property
    def merged(self) -> bool:
        """True if one machine runs the model on everybody's samples."""
        return isinstance(self.norm, OneMachineNorm)

    @property
    def lockstep(self) -> bool:
        return isinstance(self.norm, LockstepNorm)

    @property
    def attacks_updates(self) -> bool:
        return self.attack.forges and self.settings.scope in ("update", "both")

    @property
    def attacks_statistics(self) -> bool:
        sent = self.norm.sends_statistics or self.propagate is not None
        return sent and self.attack.forges and self.settings.scope in ("statistics", "both")

    @property
    def computes_own(self) -> bool:
        """True if attackers must do the honest work too, because a channel of theirs stays honest or starts from it."""
        if self.attack.sees_own or not self.attacks_updates or self.privacy.personal or self.lockstep:
            return True
        return self.layout.s > 0 and not (self.attacks_statistics and "one_batch" in self.algorithm.asks)
