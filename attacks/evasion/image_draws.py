"""Random numbers of single images, whichever others are still attacked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """Numbers are drawn for all ``total`` images of a batch; those of ``rows`` (None: all) are handed out.

    So what an image gets does not depend on which others have been fooled before, and an attack alone draws what it
    draws as part of a sequence.
    """

    generator: torch.Generator
    total: int
    rows: Tensor | None = None

    def of(self, rows: Tensor) -> Draws:
        """Those of ``rows`` of the present rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def fork(self) -> Draws:
        """A second source that will yield what this one is about to."""
        generator = torch.Generator(device=self.generator.device)
        generator.set_state(self.generator.get_state())
        return replace(self, generator=generator)

    def uniform(self, shape: tuple[int, ...], like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        """``[rows *shape]`` uniform in ``[low, high)``, in the dtype and on the device of ``like``."""
        return self._chosen(self._empty(shape, like).uniform_(low, high, generator=self.generator), like)

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """``[rows *shape]`` from the standard normal distribution."""
        return self._chosen(self._empty(shape, like).normal_(generator=self.generator), like)

    def _empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.empty((self.total, *shape), dtype=like.dtype, device=self.generator.device)

    def _chosen(self, drawn: Tensor, like: Tensor) -> Tensor:
        drawn = drawn.to(like.device)
        return drawn if self.rows is None else drawn.index_select(0, self.rows)
