"""Images and batches on the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.data.checks import Array
from robustfl.errors import Refused
from robustfl.randomness import numpy_stream


@dataclass(frozen=True, eq=False)
class Resident:
    """Images ``x [N H W C]`` (uint8, or float in [0, 1]) and labels ``y [N]`` on one device. Never written to."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, images: Array, labels: Array, *, device: str | torch.device = "cpu") -> Resident:
        """Arrays on ``device``. On the CPU nothing is copied: processes that map one file share its memory."""
        return cls(_tensor(images).to(device), _tensor(labels).to(device=device, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.y)

    def pixels(self, index: Tensor | slice, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The chosen images as ``[b C H W]`` in [0, 1], with channels-last strides."""
        chosen = self.x[index] if isinstance(index, slice) else self.x.index_select(0, index)
        pixels = chosen.permute(0, 3, 1, 2).to(dtype, copy=isinstance(index, slice))  # never a view of the data set
        return pixels.div_(255) if self.x.dtype == torch.uint8 else pixels

    def labels(self, index: Tensor | slice) -> Tensor:
        """The chosen labels ``[b]``."""
        return self.y[index] if isinstance(index, slice) else self.y.index_select(0, index)


def _tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        # torch warns of memory it must not write to; a Resident is only read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(np.asarray(array))


@dataclass(frozen=True)
class Augment:
    """Random horizontal flip, padded crop and rotation on the device, drawn for each sample from one generator.

    ``crop_padding`` pixels of zeros are added on every side before a window of the old size is cut out. ``rotate``
    turns about the centre by up to so many degrees either way, evenly drawn; the nearest pixel is taken, and zero where
    there is none. What one client's images become depends on its generator alone: call it per client.
    """

    flip: bool = False
    crop_padding: int = 0
    rotate: float = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented copies of ``x [b C H W]``."""
        if self.flip or self.crop_padding:
            x = self._moved(x, generator)
        if self.rotate:
            turns = 2 * torch.rand(len(x), generator=generator, device=generator.device) - 1
            x = rotated(x, self.rotate * turns.to(x.device))
        return x

    def _moved(self, x: Tensor, generator: torch.Generator) -> Tensor:
        b, _, height, width = x.shape
        columns = torch.arange(width, device=x.device).expand(b, width)
        if self.flip:
            coin = torch.rand(b, 1, generator=generator, device=generator.device).to(x.device) < 0.5
            columns = torch.where(coin, columns.flip(1), columns)
        rows = torch.arange(height, device=x.device).expand(b, height)
        if p := self.crop_padding:
            shift = torch.randint(0, 2 * p + 1, (2, b, 1), generator=generator, device=generator.device).to(x.device)
            rows, columns = rows + shift[0], columns + shift[1]
            x = nn.functional.pad(x, (p, p, p, p))
        samples = torch.arange(b, device=x.device)
        # Indexing around the channel axis puts it last, so the result keeps channels-last strides.
        return x[samples[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def rotated(x: Tensor, degrees: Tensor) -> Tensor:
    """The images ``x [b C H W]`` turned counter-clockwise about their centres by ``degrees [b]``.

    Every pixel becomes the one nearest to where it came from, or zero if that lies outside.
    """
    b, _, height, width = x.shape
    angle = torch.deg2rad(degrees.to(torch.float64))[:, None, None]
    down = torch.arange(height, device=x.device, dtype=torch.float64)[None, :, None] - (height - 1) / 2
    right = torch.arange(width, device=x.device, dtype=torch.float64)[None, None, :] - (width - 1) / 2
    rows = (down * angle.cos() + right * angle.sin() + (height - 1) / 2).round().long()
    columns = (right * angle.cos() - down * angle.sin() + (width - 1) / 2).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    samples = torch.arange(b, device=x.device)[:, None, None]
    taken = x[samples, :, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside[..., None], taken, 0.0).permute(0, 3, 1, 2)


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
