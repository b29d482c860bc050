"""Whole robust rounds against one centralised SGD step on the honest clients' images.

``python -m benchmarks whole`` prints the processor time of a round of one thread, attack, defense and merge of the
statistics included, and its ratio to the step in torch's default layout of images and with channels innermost. The
ways take turns in one process; the least time of each counts, since a busy machine only ever adds to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.federations import federation
from benchmarks.gradients import centralised
from robustfl.engine import train
from robustfl.gradients import channels_last
from robustfl.registry import create

Case = tuple[str, tuple[int, int, int], int, int]
CASES: tuple[Case, ...] = (  # model, image, clients, turns
    ("digits-cnn", (1, 8, 8), 10, 200), ("digits-cnn", (1, 8, 8), 50, 80), ("mnist-cnn", (1, 28, 28), 10, 20),
)  # fmt: skip
NORMS = ("naive-bn", "fbn")
BATCH = 25


def step(model: str, shape: tuple[int, int, int], images: int, *, innermost: bool) -> Callable[[], None]:
    """A step of torch's own network and optimizer on so many images."""
    plain = centralised(create("model", model).build(create("norm", "naive-bn"), shape=shape, classes=10)).train()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, *shape, generator=generator)
    y = torch.randint(10, (images,), generator=generator)
    x = channels_last(x) if innermost else x
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)

    def taken() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()

    return taken


def least(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The least processor seconds of each way."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for name, way in ways.items():
            start = time.thread_time()
            way()
            found[name] = min(found[name], time.thread_time() - start)
    return found


def main() -> None:
    """Print the table."""
    os.environ.setdefault("ROBUSTFL_NATIVE", "always")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, batches of {BATCH}, SF against NNM + trimmed mean")
    print(f"{'model':11} {'n':>3} {'norm':9} {'ms':>8} {'/ step':>7} {'/ step, channels innermost':>27}")
    for model, shape, n, turns in CASES:
        images = (n - n // 5) * BATCH
        ways: dict[str, Callable[[], object]] = {
            "step": step(model, shape, images, innermost=False), "innermost": step(model, shape, images, innermost=True)
        }  # fmt: skip
        for norm in NORMS:
            experiment = federation(
                model, shape, n=n, f=n // 5, batch=BATCH, rounds=turns + 1, norm=norm, attack="sf",
                defense="nnm+trimmed-mean",
            )  # fmt: skip
            ways[norm] = train(experiment).__next__
        found = least(ways, turns)
        for norm in NORMS:
            ms, one, other = 1e3 * found[norm], found[norm] / found["step"], found[norm] / found["innermost"]
            print(f"{model:11} {n:3} {norm:9} {ms:8.2f} {one:7.2f} {other:27.2f}", flush=True)


if __name__ == "__main__":
    main()
