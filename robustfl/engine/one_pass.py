"""Clients of a network in one pass, held against each of them alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustfl.engine.statistics import begin, collect
from robustfl.errors import RobustflError
from robustfl.gradients import Plan, Unsupported, batched, sequential
from robustfl.layout import flatten_parameters, layout_of
from robustfl.randomness import stream

_SIZES = (3, 2)
_TOLERANCE, _SAME = 1e-6, 1e-9  # between ways of computing, and between repetitions


class Mixed(RobustflError):
    """Clients in one pass have other losses, gradients or reports than each of them alone."""


def in_one_pass(network: nn.Module, images: Tensor, classes: int, *, training: bool = True) -> str:
    """Hold two clients in one pass against each of them alone; in words, whether the pass is taken.

    A copy of ``network`` in double precision takes the first five ``images [b C H W]``, three of one client and two of
    another, in training at equal models, and at two. Raises ``Mixed`` where it mixes them or a row of the table of
    layer kinds is not what its layer does, and ``RobustflError`` for a layer that remembers what it has seen.
    """
    with torch.random.fork_rng(devices=[]):
        return _held_against_each(copy.deepcopy(network).double().train(training), images.double(), classes)


def _held_against_each(made: nn.Module, images: Tensor, classes: int) -> str:
    trial = _Trial(made, images[: sum(_SIZES)], classes)
    before = {name: buffer.clone() for name, buffer in made.named_buffers()}
    for rows in (trial.theta.expand(2, -1), trial.apart())[0 if made.training else 1 :]:
        alone = [trial.alone(rows, 0), trial.alone(rows, 1)]
        if not all(bool(torch.isfinite(part).all()) for each in alone for part in each):
            raise RobustflError("the network's losses, gradients or statistics are not finite before training")
        try:
            both, single = trial.served(rows, _SIZES), trial.served(rows[:1], _SIZES[:1])
        except Unsupported as error:
            return f"clients run one after another ({error})"
        if found := _differing(trial.alone(rows, 0), alone[0], _SAME):
            raise RobustflError(
                f"a layer remembers between clients, or draws from a generator of its own: the same batch has other "
                f"{found} the second time"
            )
        each = [[part[k : k + 1] for part in both] for k in range(2)]
        for mine, own in zip((*each, single), (*alone, alone[0]), strict=True):
            if found := _differing(mine, own, _TOLERANCE):
                raise Mixed(
                    f"clients in one pass have other {found} than each alone: a layer looks at the rest of the batch, "
                    "or its row in the table of layer kinds does not compute what its own forward does"
                )
    for name, buffer in made.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise RobustflError(
                f"buffer {name} changes in training; clients share layers, and neither messages nor checkpoints hold "
                "buffers: statistics go into the report of a robustfl.contracts.StatisticsLayer"
            )
    return "all clients in one pass"


class _Trial:
    """Losses ``[n]``, gradients ``[n d]``, statistics ``[n s]`` and their counts, of both clients or of one."""

    def __init__(self, made: nn.Module, images: Tensor, classes: int) -> None:
        self._made, self._x, self._layout = made, images, layout_of(made)
        self._flat = flatten_parameters(made, self._layout)
        self.theta = self._flat.clone()
        draws = torch.randn(len(images), classes, generator=stream(0, "check loss"))
        self._weights = draws.to(images)

    def apart(self) -> Tensor:
        """Two models that differ a little from each other and from the network's."""
        away = torch.randn(2, self._layout.d, generator=stream(0, "check rows"), dtype=torch.float64)
        return self.theta + 0.1 * away.to(self.theta)

    def served(self, rows: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
        self._begin(None if len(sizes) == 1 else sizes, range(len(sizes)))
        x, weights = (part[: sum(sizes)] for part in (self._x, self._weights))
        out = self.theta.new_zeros(len(sizes), self._layout.d)

        def losses() -> Tensor:
            return torch.stack([part.sum() for part in torch.split(self._made(x) * weights, list(sizes))])

        return self._told(batched(Plan(self._made, self._layout), rows, sizes, losses, out=out), out)

    def alone(self, rows: Tensor, k: int) -> list[Tensor]:
        self._begin(None, (k,))
        x, weights = (torch.split(part, list(_SIZES))[k] for part in (self._x, self._weights))
        out = self.theta.new_zeros(1, self._layout.d)

        def backward(_: int) -> Tensor:
            loss: Tensor = (self._made(x) * weights).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        losses = sequential(self._made, self._layout, self._flat, rows[k : k + 1], backward, out=out)
        return self._told(losses, out)

    def _begin(self, sizes: tuple[int, ...] | None, ids: Sequence[int]) -> None:
        torch.default_generator.manual_seed(0)  # a layer that draws from the global generator is another law's
        device = self.theta.device
        begin(self._made, sizes, generators=tuple(stream(k, "check dropout", device=device) for k in ids))

    def _told(self, losses: Tensor, gradients: Tensor) -> list[Tensor]:
        reports = collect(self._made, self._layout, clients=len(losses))
        return [losses, gradients, reports.rows.clone(), reports.counts.clone()]


def _differing(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> str:
    """The first of losses, gradients, statistics and counts that differ; empty if they agree."""
    for name, one, other in zip(("losses", "gradients", "statistics", "counts"), found, wanted, strict=True):
        size = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        if one.shape != other.shape or not bool(((one - other).abs() <= tolerance * size).all()):
            return name
    return ""
