"""Every rule and step that ByzFL also has, against ByzFL, in the same run; ``python -m benchmarks.zoo``.

Steps are measured with the mean after them. Both sides get rows of their own that were copied before the clock started,
because ByzFL's clipping steps overwrite what they are given. Ratios are medians over paired turns, with quartiles.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import robustfl
from robustfl.randomness import stream

from .kernels import installed

SIZES = ((10, 3, 1_000_000), (10, 3, 100_000), (30, 7, 200_000))
# ByzFL tries all subsets one by one.
SUBSETS = ("mda", "smea")
# ours, and how the peer is built from f
RULES: dict[str, Callable[[Any, int], Callable[[Tensor], Any]]] = {
    "mean": lambda b, f: b.Average(),
    "median": lambda b, f: b.Median(),
    "trimmed-mean": lambda b, f: b.TrMean(f=f),
    "geometric-median(nu=0.1, max_steps=3, tol=0, init=zero)": lambda b, f: b.GeometricMedian(),
    "krum(variant=nf)": lambda b, f: b.Krum(f=f),
    "multi-krum(variant=nf)": lambda b, f: b.MultiKrum(f=f),
    "centered-clipping": lambda b, f: b.CenteredClipping(),
    "mda": lambda b, f: b.MDA(f=f),
    "monna": lambda b, f: b.MoNNA(f=f),
    "meamed": lambda b, f: b.Meamed(f=f),
    "caf": lambda b, f: b.CAF(f=f),
    "smea": lambda b, f: b.SMEA(f=f),
    "nnm+mean": lambda b, f: _before_mean(b, b.NNM(f=f)),
    "bucketing(s=2)+mean": lambda b, f: _before_mean(b, b.Bucketing(s=2)),
    "clipping+mean": lambda b, f: _before_mean(b, b.Clipping()),
    "arc+mean": lambda b, f: _before_mean(b, b.ARC(f=f)),
}


def _before_mean(byzfl: Any, step: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    mean = byzfl.Average()
    return lambda X: mean(step(X))


def seconds(way: Callable[[Tensor], Any], X: Tensor, repeats: int) -> float:
    """The mean of ``repeats`` calls, each on a copy of its own."""
    copies = [X.clone() for _ in range(repeats)]
    start = time.perf_counter()
    for copy in copies:
        way(copy)
    return (time.perf_counter() - start) / repeats


def measure(rule: str, n: int, f: int, d: int, turns: int = 5) -> list[float]:
    """One row of the table: milliseconds of both sides, and the quartiles of their ratio."""
    import byzfl

    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    defense, generator = robustfl.defense(rule), stream(0, "bench")
    if defense.refusal(n, f) is not None:
        f = (n - 1) // 4  # buckets of two need n > 4f
    ways: dict[str, Callable[[Tensor], Any]] = {
        "ours": lambda X: defense(X, f=f, generator=generator),
        "byzfl": RULES[rule](byzfl, f),
    }
    repeats = {}
    for name, way in ways.items():
        seconds(way, X, 1)
        repeats[name] = max(1, min(20, int(0.02 / seconds(way, X, 1))))
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            taken[name].append(seconds(way, X, repeats[name]))
    ratios = [b / o for b, o in zip(taken["byzfl"], taken["ours"], strict=True)]
    return [1e3 * statistics.median(taken[name]) for name in ways] + statistics.quantiles(ratios, n=4)


def main() -> None:
    """Print the table."""
    if installed("byzfl") == "-":
        print("byzfl is not installed; pip install -e '.[peers]'")
        return
    versions = f"torch {torch.__version__}, byzfl {installed('byzfl')}, Python {platform.python_version()}"
    print(f"# zoo: float32, {torch.get_num_threads()} threads, {versions}, {platform.machine()}")
    print(f"{'rule':24.24} {'n':>3} {'d':>8} {'ms':>8} {'byzfl ms':>9} × faster (quartiles)")
    for n, f, d in SIZES:
        for rule in RULES:
            if rule in SUBSETS and n > 10:
                continue
            ours, byzfl, low, middle, high = measure(rule, n, f, d)
            print(f"{rule:24.24} {n:3} {d:8} {ours:8.2f} {byzfl:9.2f} {middle:6.1f} ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
