"""Storage of thousands of clients' state: in memory, or beyond a limit in a file that is mapped into it.

The file has no name, so that nothing is left behind however the process ends, and its space is taken at once, so that
a full disk is an error at the start and not a crash in mid-training.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile

import torch
from torch import Tensor

from robustfl.errors import StoreError, reason

LIMIT = 4 << 30
"""Bytes of clients' state that stay in memory unless a run says otherwise."""


def allocate_client_state(first: Tensor, clients: int, limit: int) -> tuple[Tensor, mmap.mmap | None]:
    """Rows ``[N k]`` that all are ``first [k]``, and the file they lie in, if they take more than ``limit`` bytes.

    Rows in a file are on the CPU. Raises ``StoreError`` if the file does not fit on the disk.
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
