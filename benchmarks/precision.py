"""Whole robust rounds in bfloat16 against the same rounds in float32.

``python -m benchmarks precision`` prints the processor time of a round of one thread and the ratio of both. What
bfloat16 is worth depends on the processor: with matrix instructions for it (AMX) it is faster, without them slower. The
two take turns in one process; the least time of each counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.federations import federation
from benchmarks.whole import least
from robustfl.engine import train

Case = tuple[str, tuple[int, int, int], str, int, int, int]
CASES: tuple[Case, ...] = (  # model, image, norm, clients, batch, turns
    ("digits-cnn", (1, 8, 8), "fbn", 10, 25, 100),
    ("mnist-cnn", (1, 28, 28), "fbn", 10, 25, 12),
    ("fbn-cnn", (3, 16, 16), "fbn", 10, 25, 10),
    ("simple-cnn", (3, 32, 32), "hbn", 10, 25, 8),
    ("resnet20", (3, 32, 32), "gn", 5, 64, 4),
)
FLAGS = ("amx_bf16", "avx512_bf16")


def instructions() -> str:
    """The instructions for bfloat16 that this processor says it has."""
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return "unknown"
    return ", ".join(flag for flag in FLAGS if flag in known) or "none"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, SF against NNM + trimmed mean; bfloat16: {instructions()}")
    print(f"{'model':11} {'norm':5} {'n':>3} {'batch':>6} {'float32 ms':>11} {'bfloat16 ms':>12} {'times as fast':>14}")
    for model, shape, norm, n, batch, turns in CASES:
        experiment = federation(
            model, shape, n=n, f=n // 5, batch=batch, rounds=turns + 1, norm=norm, attack="sf",
            defense="nnm+trimmed-mean",
        )  # fmt: skip
        ways: dict[str, Callable[[], object]] = {}
        for precision in ("full", "bf16"):
            made = replace(experiment, settings=replace(experiment.settings, precision=precision))
            ways[precision] = train(made).__next__
        found = least(ways, turns)
        full, short = 1e3 * found["full"], 1e3 * found["bf16"]
        print(f"{model:11} {norm:5} {n:3} {batch:6} {full:11.1f} {short:12.1f} {full / short:14.2f}", flush=True)
