"""Processes that share one federation: who has which clients, who has which columns, and what they tell each other.

Clients are dealt out over the ranks. Once their messages exist, every rank gets all rows of its own columns, and from
then on works on these. A team of one does nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Team:
    """``size`` processes, of which this one is number ``rank``; all call the same methods in the same order.

    ``device`` is where the backend of ``torch.distributed`` wants tensors.
    """

    rank: int = 0
    size: int = 1
    device: torch.device | str = "cpu"

    @property
    def is_rank0(self) -> bool:
        """True if this process writes and speaks for all."""
        return self.rank == 0

    def mine(self, seats: Sequence[int]) -> list[int]:
        """Which of the ``seats`` belong to this rank, as places in the sequence; always the same seats."""
        return [i for i, seat in enumerate(seats) if seat % self.size == self.rank]

    def part(self, d: int, rank: int | None = None) -> slice:
        """The columns of ``d`` that belong to a rank, by default to this one; the last ranks' may be fewer."""
        who, width = self.rank if rank is None else rank, -(-d // self.size)
        return slice(min(d, who * width), min(d, (who + 1) * width))

    def columns(self, rows: Tensor, seats: Sequence[int], n: int) -> Tensor:
        """This rank's columns ``[n d_r]`` of everybody's messages, from its own ``rows [k d]`` of clients at ``seats``.

        The rows come in the order of ``seats``, which names all clients that computed; further ones, up to ``n``, are
        not set.
        """
        d, k = rows.shape[1], len(rows)
        parts = [self.part(d, r) for r in range(self.size)]
        places = [[i for i, seat in enumerate(seats) if seat % self.size == r] for r in range(self.size)]
        here = parts[self.rank].stop - parts[self.rank].start
        sent = torch.cat([rows[:, part].reshape(-1) for part in parts])
        received = sent.new_empty(len(seats) * here)
        dist.all_to_all_single(
            received, sent,
            output_split_sizes=[len(p) * here for p in places],
            input_split_sizes=[k * (p.stop - p.start) for p in parts],
        )  # fmt: skip
        stack = rows.new_empty((n, here))
        order = torch.tensor([i for p in places for i in p], dtype=torch.int64, device=rows.device)
        stack[order] = received.view(len(seats), here)
        return stack

    def rows(self, local: Tensor, places: Sequence[int], n: int) -> Tensor:
        """Everybody's small rows ``[n …]``, float64, from this rank's ``local [k …]`` at ``places``."""
        full = torch.zeros((n, *local.shape[1:]), dtype=torch.float64, device=self.device)
        if len(places):
            full[torch.tensor(places, device=self.device)] = local.to(full)
        dist.all_reduce(full)
        return full

    def whole(self, columns: Tensor, d: int) -> Tensor:
        """The vector ``[d]`` whose columns the ranks have."""
        if self.size == 1:
            return columns
        full = columns.new_zeros(d)
        full[self.part(d)] = columns
        dist.all_reduce(full)
        return full

    def total(self, values: Tensor) -> Tensor:
        """The sum of the ranks' ``values``, on the device they were on."""
        if self.size == 1:
            return values
        summed = values.to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.to(values.device)

    def norm(self, columns: Tensor) -> float:
        """The length of a vector whose columns the ranks have."""
        if self.size == 1:
            return float(columns.norm())
        return float(self.total(columns.double().square().sum().cpu()).sqrt())

    def agree(self, fine: bool) -> bool:
        """True if all ranks say so."""
        return fine if self.size == 1 else int(self.total(torch.tensor(int(fine)))) == self.size

    def gathered(self, columns: Tensor, d: int) -> Tensor | None:
        """The rows ``[n d]`` whose columns the ranks have, on rank 0; ``None`` elsewhere."""
        n, width = len(columns), -(-d // self.size)
        padded = columns.new_zeros((n, width))
        padded[:, : columns.shape[1]] = columns
        found = [torch.empty_like(padded) for _ in range(self.size)] if self.is_rank0 else None
        dist.gather(padded, found)
        return None if found is None else torch.cat(found, dim=1)[:, :d]

    def scattered(self, rows: Tensor | None, like: Tensor, n: int, d: int) -> Tensor:
        """This rank's columns ``[n d_r]`` of the ``rows [n d]`` that rank 0 has, in the dtype of ``like``."""
        width, part = -(-d // self.size), self.part(d)
        mine = like.new_empty((n, width))
        cut = None
        if rows is not None:
            padded = rows.new_zeros((n, width * self.size))
            padded[:, :d] = rows
            cut = [piece.contiguous() for piece in torch.split(padded, width, dim=1)]
        dist.scatter(mine, cut)
        return mine[:, : part.stop - part.start]

    def broadcast(self, value: Any) -> Any:
        """The value that rank 0 has."""
        box = [value]
        dist.broadcast_object_list(box, device=torch.device(self.device))
        return box[0]


ALONE = Team()
