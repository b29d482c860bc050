"""Cells on several GPUs: every worker process takes one slot of one GPU for as long as it lives.

A slot is a locked file. The system unlocks it when its worker ends, however that happens, so a worker that takes the
place of a dead one finds the slot free.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import torch

from robustfl.errors import Refused
from robustfl.evaluation.accuracy import activations

from .build import Built, build
from .cell import Cell

# What CUDA and its libraries take on a GPU for every process.
_CONTEXT = 600 << 20
# A share of the free memory stays free.
_USABLE = 0.9
_MOST = 16


def slots_on(gpus: Sequence[int], need: int) -> int:
    """The number of cells of ``need`` bytes that fit at once on every one of the GPUs, at least one and at most 16."""
    free = min(int(torch.cuda.mem_get_info(index)[0]) for index in gpus)
    return max(1, min(_MOST, int(free * _USABLE) // max(1, need)))


def memory_of(cells: Iterable[Cell], root: str | Path | None = None) -> int:
    """An estimate of what the largest of the cells takes on a GPU; those that cannot be built take nothing."""
    built: dict[tuple[object, ...], Built] = {}
    most = 0
    for cell in cells:
        kind = (cell.dataset, cell.domains, cell.model, cell.norm, cell.algorithm, cell.dtype)
        try:
            if kind not in built:
                built[kind] = build(cell, root=root)
        except Refused:
            continue
        most = max(most, _bytes(cell, built[kind]))
    return most


def _bytes(cell: Cell, built: Built) -> int:
    """2.5 message stacks, the images, and activations of all clients' batches with their gradients, also recorded."""
    e = built.experiment
    dtype = next(e.model.parameters()).dtype
    size = dtype.itemsize
    stack = cell.participants * e.layout.d * size
    kept = cell.clients * e.layout.d * size if e.algorithm.remembers else 0
    images = e.train.x.numel() * e.train.x.element_size() + built.test.x.numel() * built.test.x.element_size()
    samples = cell.participants * cell.batch if "one_batch" in e.algorithm.asks else cell.batch
    image = built.test.pixels(torch.arange(1), dtype=dtype)
    return _CONTEXT + int(2.5 * stack) + kept + images + 4 * samples * activations(e.model, image) * size


@cache
def claim(folder: str, gpus: tuple[int, ...], slots: int) -> str:
    """The device of this process, which keeps its slot until it ends; waits while all are taken."""
    import fcntl

    while True:
        for slot in range(slots):
            for index in gpus:
                handle = os.open(Path(folder) / f"gpu{index}-{slot}", os.O_CREAT | os.O_RDWR, 0o600)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(handle)
                    continue
                return f"cuda:{index}"
        time.sleep(0.2)
