"""Named random streams. Every draw in robustfl comes from a generator made here; nothing seeds globally.

Two cells that differ only in attack or defense draw the same data split, initial weights and batches, because those
streams are named without them: the cells of a row are paired.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit integer that depends on ``seed`` and every name, and on nothing else (stable across platforms).

    Names are Python's own ``str`` and ``int``: a NumPy integer is another name, so convert it.
    """
    text = "\x1f".join([str(int(seed)), *(f"{type(n).__name__}:{n}" for n in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *names: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """The torch generator of the stream ``names``.

    >>> a, b = stream(0, "client", 3), stream(0, "client", 3)
    >>> bool((torch.rand(2, generator=a) == torch.rand(2, generator=b)).all())
    True
    """
    return torch.Generator(device=device).manual_seed(derive(seed, *names))


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """The numpy generator of the stream ``names``; used where whole index sets are drawn (partitions, batches)."""
    return np.random.default_rng(derive(seed, *names))
