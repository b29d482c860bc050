"""Gradient phase of a DSGD round against one centralised SGD step on the merged batch.

``python -m benchmarks.gradients`` prints, for each model and norm: the step's time and, as ratios to it in the same
run, the pass of all clients together and the loop over them, with their spread. The centralised step is torch's own:
the same network with ``nn.BatchNorm2d`` and ``nn.Dropout``, forward, backward and SGD update, in the same memory format
and dtype.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from robustfl.contracts import NormLayer
from robustfl.gradients import channels_last
from robustfl.layout import flatten_parameters, layout_of
from robustfl.models.network import ClientDropout
from robustfl.randomness import stream
from robustfl.registry import create
from tests.passes import plain_gradients, shared_gradients


@dataclass(frozen=True)
class Case:
    model: str
    shape: tuple[int, int, int]
    clients: int
    batch: int
    rounds: int


CASES = (
    Case("fbn-cnn", (3, 32, 32), 10, 50, 7),
    Case("mnist-cnn", (1, 28, 28), 13, 25, 15),
    Case("digits-cnn", (1, 8, 8), 10, 25, 61),
)
NORMS = ("naive-bn", "fbn", "gn")


def _after_linear(sequence: nn.Sequential, name: str) -> bool:
    names = list(dict(sequence.named_children()))
    return isinstance(sequence[names.index(name) - 1], nn.Linear)


def centralised(network: nn.Module) -> nn.Module:
    """The network with torch's own batch norm and dropout."""
    for module in network.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, NormLayer):
                plain = (
                    nn.BatchNorm1d
                    if isinstance(module, nn.Sequential) and _after_linear(module, name)
                    else nn.BatchNorm2d
                )
                setattr(module, name, plain(child.weight.numel()))
            elif isinstance(child, ClientDropout):
                setattr(module, name, nn.Dropout(child.p))
    return network


def interleaved(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, taking turns so that a noisy machine disturbs all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return times


def ways_of(case: Case) -> dict[str, Callable[[], None]]:
    generator = torch.Generator().manual_seed(0)
    total, sizes = case.clients * case.batch, (case.batch,) * case.clients
    x = torch.rand(total, *case.shape, generator=generator)
    y = torch.randint(10, (total,), generator=generator)
    build = create("model", case.model).build
    plain = centralised(build(create("norm", "naive-bn"), shape=case.shape, classes=10)).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    last = channels_last(x)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(last), y).backward()
        optimizer.step()

    ways: dict[str, Callable[[], None]] = {"centralised step": step}
    for name in NORMS:
        network = build(create("norm", name), shape=case.shape, classes=10).train()
        layout = layout_of(network)
        flatten_parameters(network, layout)
        out = torch.empty(case.clients, layout.d)
        streams = tuple(stream(0, "dropout", k) for k in range(case.clients))
        for label, method in (("shared", shared_gradients), ("loop", plain_gradients)):

            def way(method=method, network=network, layout=layout, out=out, streams=streams) -> None:  # type: ignore[no-untyped-def]
                method(network, layout, x, y, sizes, generators=streams, out=out)

            ways[f"{label} {name}"] = way
    return ways


def main(only: str = "") -> None:
    torch.set_num_threads(2)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads, float32")
    print(f"{'model':<12} {'way':<20} {'ms':>9} {'ratio':>7}  spread (quartiles)")
    for case in CASES:
        if only and only != case.model:
            continue
        times = interleaved(ways_of(case), case.rounds)
        base = times["centralised step"]
        for name, seconds in times.items():
            ratios = [mine / reference for mine, reference in zip(seconds, base, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            print(
                f"{case.model:<12} {name:<20} {1e3 * statistics.median(seconds):9.2f} "
                f"{statistics.median(ratios):7.2f}  {low:.2f} to {high:.2f}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:2])
