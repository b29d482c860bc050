"""The figures of a GPU: robust rounds against plain training and ByzFL, local steps, median against one read, kernels.

``python -m benchmarks gpu`` wants a GPU; ``gpu --device cpu --small`` shows on any machine that it works. Ratios are
medians over turns taken one after another in this process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice, product
from unittest import mock

import torch
from torch import nn

import robustfl
from benchmarks import local_steps
from benchmarks.federations import federation
from benchmarks.gradients import centralised
from robustfl.engine import clients, train
from robustfl.engine.cuda_graphs import recorded_on
from robustfl.gradients import channels_last
from robustfl.registry import create

SHAPE, BATCH = (3, 32, 32), 50


def wait(device: torch.device) -> None:
    """Let the device finish what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(steps: Iterator[object], device: torch.device, count: int) -> float:
    """Median seconds of a step, after two to warm up."""
    times = []
    for _ in islice(steps, 2):
        pass
    for _ in range(count):
        wait(device)
        clock = time.perf_counter()
        next(steps)
        wait(device)
        times.append(time.perf_counter() - clock)
    return statistics.median(times)


def rounds(model: str, n: int, batch: int, device: torch.device, count: int) -> Iterator[object]:
    """Robust rounds: ALIE against NNM and trimmed mean, FBN."""
    return train(
        federation(model, SHAPE, n=n, f=3 * n // 10, batch=batch, rounds=count + 4, norm="fbn",
                   defense="nnm+trimmed-mean", device=device)
    )  # fmt: skip


def plain(model: str, samples: int, device: torch.device) -> Iterator[object]:
    """Centralised training with momentum on one batch of all clients' samples."""
    network = centralised(create("model", model).build(create("norm", "naive-bn"), shape=SHAPE, classes=10)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x = channels_last(torch.rand(samples, *SHAPE, device=device))
    y = torch.randint(0, 10, (samples,), device=device)
    while True:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
        yield None


def throughput(device: torch.device, *, small: bool) -> None:
    """Images per second of whole rounds. Only honest clients compute, so only their images count."""
    model, batch, count = ("simple-cnn", 4, 2) if small else ("fbn-cnn", BATCH, 20)
    print(f"{'n':>4} {'products':>8} {'robust images/s':>16} {'plain images/s':>15} {'share':>6}   goal ≥ 0.50")
    for n, short in product((10, 20) if small else (10, 100), (False, True)):
        images = (n - 3 * n // 10) * batch
        torch.backends.cudnn.allow_tf32 = short  # as a cell's precision decides
        robust = images / seconds(rounds(model, n, batch, device, count), device, count)
        ordinary = images / seconds(plain(model, images, device), device, count)
        words = "tf32" if short else "float32"
        print(f"{n:4} {words:>8} {robust:16.0f} {ordinary:15.0f} {robust / ordinary:6.2f}", flush=True)
        if find_spec("byzfl") is not None and not small and short:  # torch's default for convolutions
            from benchmarks.rounds import Case, byzfl

            case = Case("gpu", model, SHAPE, n, 3 * n // 10, batch, 5, "")
            theirs = images / statistics.median(byzfl(case, device=str(device)))
            print(f"     ByzFL {theirs:.0f} images/s: {robust / theirs:.1f} ×   goal ≥ 10", flush=True)


RECORDED: tuple[tuple[str, tuple[int, int, int], int, int, str, str], ...] = (  # model, image, clients, batch, norm
    ("mlp", (1, 28, 28), 50, 10, "fbn", "fedavg(local_steps=5)"),
    ("simple-cnn", (3, 32, 32), 10, 4, "hbn", "fedavg(momentum=0.9, clip_norm=10, local_steps=10)"),
    ("simple-cnn", (3, 32, 32), 10, 4, "gn(groups=2)", "fedavg(momentum=0.9, clip_norm=10, local_steps=10)"),
    ("resnet20", (3, 16, 16), 5, 32, "gn(groups=2)", "fedavg(local_steps=5)"),
    ("resnet20", (3, 16, 16), 5, 32, "fedtan", "fedavg(local_steps=5)"),
    ("mnist-cnn", (1, 28, 28), 10, 25, "fbn", "dsgd(momentum=0.9)"),
    ("fbn-cnn", (3, 32, 32), 10, 50, "fbn", "dsgd(momentum=0.9)"),
)


def recordings(device: torch.device, *, small: bool) -> None:
    """Rounds whose passes are launched operation by operation, and replayed (``robustfl.engine.cuda_graphs``)."""
    print("ms per round: launched, replayed, their ratio")
    for model, shape, n, batch, norm, algorithm in RECORDED[:1] if small else RECORDED:
        found = []
        for recorder in (None, recorded_on(device)):
            with mock.patch.object(clients, "recorded_on", return_value=recorder):
                steps = train(
                    federation(model, shape, n=n, f=0, batch=batch, rounds=20, norm=norm, attack="none", defense="mean",
                               device=device, algorithm=algorithm)
                )  # fmt: skip
                list(islice(steps, 5))  # recorded by now
                found.append(1e3 * seconds(steps, device, 10))
        launched, replayed = found
        print(f"{model:11} {n:4} {norm:13} {algorithm:52} {launched:8.1f} {replayed:8.1f} {launched / replayed:6.2f}")


def median_against_read(device: torch.device, *, small: bool) -> None:
    """The median of 100 rows of 1.3e6 entries against one weighted sum of the same rows."""
    n, d = (100, 13_000) if small else (100, 1_300_000)
    X, w = torch.randn(n, d, device=device), torch.rand(n, device=device)
    rule = robustfl.defense("median")
    ours = seconds(_again(lambda: rule(X, f=30)), device, 20)
    read = seconds(_again(lambda: w @ X), device, 20)
    print(f"median over {n} × {d}: {1e3 * ours:.2f} ms, one read {1e3 * read:.2f} ms, {ours / read:.1f} ×   goal ≤ 3")


def _again(what: Callable[[], object]) -> Iterator[object]:
    while True:
        yield what()


def golden(device: torch.device, *, small: bool) -> None:
    """The golden cases in float64 on the device."""
    chosen = "float64 and cuda" if device.type == "cuda" else "krum and float64" if small else "float64"
    plain = ("-p", "no:cacheprovider", "-p", "no:benchmark")
    command = [sys.executable, "-m", "pytest", *plain, "tests/reference", "-k", chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"golden cases ({chosen}): exit {done.returncode}, {done.stdout.strip().splitlines()[-1]}")


def kernels(device: torch.device, *, small: bool) -> None:
    """The ten operations of a round that take longest."""
    from torch.profiler import ProfilerActivity, profile

    model, batch = ("simple-cnn", 4) if small else ("fbn-cnn", BATCH)
    steps = rounds(model, 10, batch, device, 6)
    for _ in islice(steps, 3):
        pass
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        for _ in islice(steps, 3):
            wait(device)
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=10, max_name_column_width=60))


def main(words: tuple[str, ...] = ()) -> None:
    """Print everything."""
    device = torch.device(words[words.index("--device") + 1] if "--device" in words else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU here; `python -m benchmarks gpu --device cpu --small` shows that the script works")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"{name}, torch {torch.__version__}")
    os.environ["ROBUSTFL_NATIVE"] = "always"  # as in a run of some dozens of rounds
    for part in (throughput, local_steps.table, recordings, median_against_read, golden, kernels):
        part(device, small="--small" in words)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
