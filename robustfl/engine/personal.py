"""Clients' state: entries that they keep to themselves, in memory or beyond a limit in a mapped file."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from robustfl.contracts import Norm, Tag
from robustfl.errors import StoreError, reason
from robustfl.layout import Layout

LIMIT = 4 << 30
"""Bytes of clients' state that stay in memory unless a run says otherwise."""


def allocate_client_state(first: Tensor, clients: int, limit: int) -> tuple[Tensor, mmap.mmap | None]:
    """Rows ``[N k]`` that all are ``first [k]``, and the file they lie in, if they take more than ``limit`` bytes.

    Rows in a file are on the CPU. The file has no name, so that nothing is left behind however the process ends, and
    its space is taken at once: a disk that is full is an error now (``StoreError``), not a crash in mid-training.
    """
    size = clients * first.numel() * first.element_size()
    if size <= limit or not size:
        rows = first.new_zeros((clients, first.numel()))  # pages that nobody writes to take no memory
        return rows.copy_(first) if bool(first.any()) else rows, None
    file = _mapped(size)
    rows = torch.frombuffer(file, dtype=first.dtype).view(clients, first.numel())
    if bool(first.any()):  # a new file is full of zeros
        rows.copy_(first.cpu())
    settle(file)
    return rows, file


def settle(file: mmap.mmap) -> None:
    """Let go of the file's pages; the system writes them when it likes and keeps what it has room for."""
    if hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED)


def _mapped(size: int) -> mmap.mmap:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(prefix="robustfl-state-", dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise StoreError(
            f"the clients' state of {math.ceil(size / 2**20)} MiB does not fit into {folder}: "
            f"{reason(error)}; free space there, or set TMPDIR to a folder on a larger disk"
        ) from None


@dataclass(frozen=True)
class Privacy:
    """Which entries of θ are communicated and whether statistics are.

    ``shared`` and ``private`` are columns of θ (int64), ``mask [d]`` is True where shared; all three are ``None`` when
    the whole θ is communicated. ``statistics``: every client has its own.
    """

    shared: Tensor | None = None
    private: Tensor | None = None
    mask: Tensor | None = None
    statistics: bool = False

    @classmethod
    def of(cls, norm: Norm, layout: Layout, device: torch.device) -> Privacy:
        """The privacy a norm asks for; factors of the layers themselves (``Tag.PRIVATE``) are private in any case."""
        tags = norm.private | {Tag.PRIVATE}
        statistics = bool(tags & {Tag.MEAN, Tag.VARIANCE}) and layout.s > 0
        kept = layout.tagged(tags).to(device)
        if not bool(kept.any()):
            return cls(statistics=statistics)
        return cls((~kept).nonzero().flatten(), kept.nonzero().flatten(), ~kept, statistics)

    @property
    def personal(self) -> bool:
        """True if clients have models of their own."""
        return self.private is not None or self.statistics

    def sent(self, message: Tensor) -> Tensor:
        """The communicated entries of ``[d]``, or of every row of ``[n d]``."""
        return message if self.shared is None else message[..., self.shared]

    def whole(self, aggregate: Tensor, d: int) -> Tensor:
        """Communicated entries as a vector ``[d]``, zero where clients keep theirs."""
        if self.shared is None:
            return aggregate
        full = aggregate.new_zeros(d)
        full[self.shared] = aggregate
        return full


@dataclass(frozen=True)
class Personal:
    """The clients' own entries: ``parameters [N p]`` and ``statistics [N s]``, the engine's memory.

    Absent clients keep theirs; one that never takes part has the initial values.
    """

    parameters: Tensor
    statistics: Tensor

    @classmethod
    def initial(
        cls, privacy: Privacy, layout: Layout, theta: Tensor, clients: int, limit: int = LIMIT
    ) -> tuple[Personal, list[mmap.mmap]]:
        """Everybody's entries as the initial model has them, and the files of those that take more than ``limit``."""
        own = theta[privacy.private] if privacy.private is not None else theta.new_empty(0)
        statistics = layout.initial_statistics(theta) if privacy.statistics else theta.new_empty(0)
        (parameters, a), (rows, b) = (allocate_client_state(one, clients, limit) for one in (own, statistics))
        return cls(parameters, rows), [file for file in (a, b) if file is not None]

    def sum(self, clients: Sequence[int] | None = None) -> Tensor:
        """The sum of all entries, or of some clients': finite if every one of them is."""
        if clients is None:
            return self.parameters.sum() + self.statistics.sum()
        chosen = list(clients)
        return self.parameters[chosen].sum() + self.statistics[chosen].sum()

    def keep(self, clients: Sequence[int], privacy: Privacy, models: Tensor, statistics: Tensor) -> None:
        """Take the clients' own entries from their models ``[n d]`` and statistics ``[n s]``."""
        rows = list(clients)
        if privacy.private is not None:
            self.parameters[rows] = models[:, privacy.private].to(self.parameters)
        if privacy.statistics:
            self.statistics[rows] = statistics.to(self.statistics)

    def models_of(self, clients: Sequence[int], privacy: Privacy, theta: Tensor) -> Tensor:
        """The clients' models ``[n d]``: the given one with their own entries in place."""
        models = theta.expand(len(clients), -1)
        if privacy.private is None:
            return models
        return models.index_copy(1, privacy.private, self.parameters[list(clients)].to(theta.device))


@contextmanager
def lent(theta: Tensor, other: Tensor) -> Iterator[None]:
    """``theta``, which model parameters are views of, holding ``other`` for a while."""
    before = theta.clone()
    try:
        theta.copy_(other)
        yield
    finally:
        theta.copy_(before)
