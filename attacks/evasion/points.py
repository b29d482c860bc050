"""The common part of evasion attacks: the images attacked, and the best points found for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Evasion
from robustfl.gradients import NEAR, channels_last, right
from robustfl.randomness import stream

from .balls import Draws
from .whitebox import check_labels, check_pixels, cross_entropy, frozen, logits_of, per_image, take


class PixelAttack(Evasion):
    """An evasion attack on single images.

    ``black_box``: it asks for outputs only, never for gradients. ``spares_fooled``: it is over once an image is
    misclassified, so images that are from the start come back as they are, for nothing.
    """

    black_box: ClassVar[bool] = False
    spares_fooled: ClassVar[bool] = True

    @abstractmethod
    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        """Adversarial images of ``x``, all of which are to be attacked, through a ``frozen`` model."""

    @property
    @abstractmethod
    def passes(self) -> int:
        """Forward-sized passes per image, at most; a backward counts as two."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        check_pixels(x, self.name)
        check_labels(x, y, self.name)
        draws = Draws(generator or stream(0, self.name, device=x.device), len(x))
        x = channels_last(x.detach())
        with frozen(model):
            if not self.spares_fooled:
                return self.craft(model, x, y, draws)
            rows = torch.nonzero(resists(model, x, y)).flatten()
            found = x.clone()
            if len(rows):
                found[rows] = self.craft(model, take(x, rows), y[rows], draws.of(rows))
            return found


def resists(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images are classified right, ``bool [b]``."""
    if not len(x):
        return torch.zeros(0, dtype=torch.bool, device=x.device)
    return right(logits_of(model, x), y)


class Harvest:
    """The worst image found so far for each of ``x``: a misclassified one, or else that of the highest cross-entropy.

    ``rows`` are the images that still resist; at first all do.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> None:
        self._model, self._x, self._y, self._draws = model, x, y, draws
        self.images = x.clone()
        self._loss = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        self.rows = torch.arange(len(x), device=x.device)
        self._used = 0

    def left(self) -> tuple[Tensor, Tensor, Draws]:
        """The original images, labels and draws of the rows that resist."""
        return take(self._x, self.rows), self._y[self.rows], self._draws.of(self.rows)

    def tries(self, count: int) -> Iterator[tuple[int, Tensor, Tensor, Draws]]:
        """The number of each of ``count`` tries, from 0, with what is ``left`` for it, until nothing is."""
        for number in range(count):
            if not len(self.rows):
                return
            yield number, *self.left()

    def aimed(self, classes: Tensor, restarts: int) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Draws]]:
        """The number of each restart, with what is ``left`` and the classes ``[b k]`` that it aims at, one by one.

        The likeliest, in the first column, comes alone, since it fools most; of the others as many together as a batch
        may hold, the images once for each. What is found is what one after another would find.
        """
        for restart in range(restarts):
            column = 0
            while column < classes.shape[1] and len(self.rows):
                together = max(1, NEAR // len(self.rows)) if column + restart else 1
                goal = classes[self.rows, column : column + together]
                tries, (x, y, draws) = goal.shape[1], self.left()
                own, images = draws.times(tries), channels_last(x.repeat(tries, *(1,) * (x.dim() - 1)))
                yield restart, images, y.repeat(tries), goal.T.flatten(), own
                if own.states and not len(self.rows):  # one after another, later tries would not have drawn
                    own.generator.set_state(own.states[self._used - 1])
                column += tries

    def offer(self, found: Tensor) -> None:
        """Take what one or more tries made of the rows that are ``left``; an image's first misclassified one stays."""
        rows, tries = self.rows, len(found) // len(self.rows)
        for self._used, made in enumerate(found.chunk(tries), start=1):
            self._take(made if tries == 1 else take(made, torch.isin(rows, self.rows).nonzero().flatten()))
            if not len(self.rows):
                break

    def _take(self, found: Tensor) -> None:
        logits, y = logits_of(self._model, found), self._y[self.rows]
        holds, loss = right(logits, y), cross_entropy(logits, y).to(self._loss.dtype)
        worse = ~holds | (loss > self._loss[self.rows])
        self.images[self.rows] = torch.where(per_image(worse, found), found, self.images[self.rows])
        self._loss[self.rows] = torch.maximum(loss, self._loss[self.rows])
        self.rows = self.rows[holds]


class InTurn(PixelAttack):
    """Several attacks one after the other, each on the images that are still classified right."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Evasion, ...]:
        """The attacks in their order."""

    @property
    def passes(self) -> int:
        return sum(getattr(part, "passes", 1) for part in self.parts)

    def craft(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
        """Each part draws from the same state of the generator, as it would alone, so no part with these draws fools an
        image that all together do not. The first one moves the generator on, as it would alone: from the second batch
        on the others have draws of their own.
        """
        harvest, others = Harvest(model, x, y, draws), draws.fork()
        for i, part in enumerate(self.parts):
            own = draws if i == 0 else others.fork()
            if not len(harvest.rows):
                continue
            left, labels, _ = harvest.left()
            of_rows = own.of(harvest.rows)
            if isinstance(part, PixelAttack):
                harvest.offer(part.craft(model, left, labels, of_rows))
            else:
                harvest.offer(part.perturb(model, left, labels, generator=of_rows.generator))
        return harvest.images
