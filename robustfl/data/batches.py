"""Clients' batches of their own data, drawn from their own streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from robustfl.errors import Refused
from robustfl.randomness import numpy_stream


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
        self.parts = [part.cpu() for part in parts]
        self._batch, self._seed, self._whole, self._least = batch, seed, whole, least
        self._anew = anew
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def check(self, clients: Iterable[int]) -> None:
        """Raise ``Refused`` for the first of the clients who has no batch of ``least`` samples."""
        for k in clients:
            size = self._batch if self._anew else min(self._batch, len(self.parts[k]))
            if size < self._least:
                raise Refused(
                    f"client {k} trains on batches of {size} sample, and the model normalizes with the variance of a "
                    f"batch, which needs at least {self._least}: a larger batch, fewer clients, a milder partition or "
                    "its min_size gives them more"
                )

    def usable(self, client: int) -> int:
        """The number of the client's samples that take part in an epoch."""
        samples = len(self.parts[client])
        if self._anew:
            return samples
        rest = samples % min(self._batch, samples)
        return samples - rest if 0 < rest < self._least else samples

    def indices(self, client: int, step: int) -> Tensor:
        """The training indices ``[b]`` of the ``step``-th batch of ``client``, on the CPU."""
        part = self.parts[client]
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
