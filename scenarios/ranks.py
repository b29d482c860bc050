"""One cell shared by the processes that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from robustfl.errors import UsageError
from robustfl.team import ALONE, Team

from .execution import device_of

# As long as a round may take, and the evaluation for which the others wait.
_PATIENCE = timedelta(days=2)


def processes() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """The number of this process among those that torchrun started; 0 leads."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


@contextmanager
def joined(device: str) -> Iterator[tuple[Team, str]]:
    """The team of this process and the device it works on: a GPU each, or all on the CPU."""
    if processes() == 1:
        yield ALONE, device
        return
    where = device_of(device)
    if where.type == "cuda":
        here = int(os.environ.get("LOCAL_RANK", "0"))
        if here >= torch.cuda.device_count():
            raise UsageError(f"process {here} of this machine has no GPU of its own: there are "
                             f"{torch.cuda.device_count()}; use as many processes or --device cpu")  # fmt: skip
        where = torch.device("cuda", here)
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), where), str(where)
    finally:
        dist.destroy_process_group()
