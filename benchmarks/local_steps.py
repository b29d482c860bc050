"""FedAvg rounds with clients that take their local steps side by side, against one after another.

``python -m benchmarks local_steps`` prints milliseconds per round for every client alone, all side by side, and as the
engine decides (``at_once``), with their ratios; the ways take turns in one process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch

from benchmarks.federations import federation
from robustfl.engine import clients, train

Case = tuple[str, tuple[int, int, int], int, int]
CASES: tuple[Case, ...] = (  # model, image, clients, batch
    ("mlp", (1, 28, 28), 50, 10), ("digits-cnn", (1, 8, 8), 10, 25), ("digits-cnn", (1, 8, 8), 50, 8),
    ("mnist-cnn", (1, 28, 28), 10, 4), ("mnist-cnn", (1, 28, 28), 13, 25), ("fbn-cnn", (3, 32, 32), 10, 10),
)  # fmt: skip
LARGE: tuple[Case, ...] = (
    ("resnet20", (3, 32, 32), 20, 50), ("resnet18", (3, 32, 32), 20, 50), ("fbn-cnn", (3, 32, 32), 100, 50),
)  # fmt: skip
STEPS = 5
Choice = Callable[..., int]
WAYS: dict[str, Choice] = {
    "alone": lambda *at, alike: 1, "all": lambda *at, alike: 10**6, "as decided": clients.at_once
}  # fmt: skip


def rounds(case: Case, choice: Choice, device: torch.device, count: int) -> list[float]:
    """Seconds of rounds, without the first."""
    model, shape, n, batch = case
    experiment = federation(
        model, shape, n=n, f=0, batch=batch, rounds=count + 1, norm="fbn", defense="mean", device=device,
        algorithm=f"fedavg(local_steps={STEPS})", attack="none",
    )  # fmt: skip
    times, clock = [], time.perf_counter()
    with mock.patch.object(clients, "at_once", choice):
        for _ in train(experiment):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - clock)
            clock = time.perf_counter()
    return times[1:]


def table(device: torch.device, *, small: bool = False) -> None:
    """Print a row for every case."""
    cases = CASES[1:2] if small else CASES + (LARGE if device.type == "cuda" else ())
    print(f"{STEPS} local steps, fbn, ms per round on {device}")
    print(f"{'model':11} {'n':>3} {'b':>3}" + "".join(f"{way:>12}" for way in WAYS) + "   alone / decided")
    for case in cases:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(1 if small else 3):
            for way, choice in WAYS.items():
                seconds[way] += rounds(case, choice, device, 3)
        middle = {way: statistics.median(found) for way, found in seconds.items()}
        numbers = "".join(f"{1e3 * middle[way]:12.1f}" for way in WAYS)
        gain = middle["alone"] / middle["as decided"]
        print(f"{case[0]:11} {case[2]:3} {case[3]:3}{numbers}   {gain:.2f}", flush=True)


def main() -> None:
    """The table of the CPU, one thread as in a cell."""
    torch.set_num_threads(1)
    table(torch.device("cpu"))
