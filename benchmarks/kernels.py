"""Aggregation kernels against ByzFL's rules and against one read of the stack, in the same run.

``python -m benchmarks.kernels`` prints the table twice: with the default allocator and with large blocks cached
(``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TOP_PAD_``), which makes ByzFL's large temporaries cheaper. ``limit`` is
``w @ X`` with a weight vector; ratios are medians over paired turns, with their quartiles.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

import robustfl
from robustfl import kernels
from robustfl.contracts import Rehearsal, View
from robustfl.defenses import parse_pipeline
from robustfl.kernels import native

TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
}
# (rule, n, f, d); ByzFL's mixing needs n·n·d floats, so n = 50 is measured on fewer columns.
CASES = (
    ("median", 10, 3, 1_000_000),
    ("trimmed-mean", 10, 3, 1_000_000),
    ("krum", 10, 3, 1_000_000),
    ("geometric-median", 10, 3, 1_000_000),
    ("nnm+trimmed-mean", 10, 3, 1_000_000),
    ("mean-and-std", 10, 0, 1_000_000),
    ("opt-alie", 10, 3, 1_000_000),
    ("nnm+trimmed-mean", 50, 15, 200_000),
    ("median", 10, 3, 10_000),
    ("krum", 10, 3, 10_000),
    ("nnm+trimmed-mean", 10, 3, 10_000),
)


def ours(rule: str, f: int) -> Callable[[Tensor], Any]:
    """robustfl's way."""
    if rule == "mean-and-std":
        return kernels.mean_and_std
    if rule == "opt-alie":
        return searched(f)
    defense = robustfl.defense(rule)
    return lambda X: defense(X, f=f)


def searched(f: int) -> Callable[[Tensor], Any]:
    """The 20 evaluations of Opt-ALIE against NNM + geometric median; the first ``n - f`` rows are the honest ones."""
    defense, attack = parse_pipeline("nnm+geometric-median"), robustfl.attack("opt-alie")
    server = Rehearsal(lambda rows: defense(rows, f=f), defense.isometric)
    generator = torch.Generator()
    return lambda X: attack.forge(View(len(X), f, honest=X[:-f], aggregate=server), generator=generator)


def peer(rule: str, f: int) -> Callable[[Tensor], Any]:
    """ByzFL's way; mean and deviation as its ALIE computes them."""
    import byzfl

    mixing, trimmed = byzfl.NNM(f), byzfl.TrMean(f=f)
    optimal = byzfl.Optimal_ALittleIsEnough(agg=byzfl.GeometricMedian(), pre_agg_list=[mixing], f=f)
    return {
        "median": byzfl.Median(),
        "trimmed-mean": trimmed,
        "krum": byzfl.Krum(f=f),
        "geometric-median": byzfl.GeometricMedian(),
        "nnm+trimmed-mean": lambda X: trimmed(mixing(X)),
        "opt-alie": lambda X: optimal(X[:-f]),
        "mean-and-std": lambda X: (torch.mean(X, dim=0), torch.std(X, dim=0)),
    }[rule]


def seconds(way: Callable[[Tensor], Any], X: Tensor) -> float:
    """One call, or the mean of several where one is too short to time."""
    start = time.perf_counter()
    way(X)
    once = time.perf_counter() - start
    repeats = min(200, int(0.01 / once))
    if repeats < 2:
        return once
    start = time.perf_counter()
    for _ in range(repeats):
        way(X)
    return (time.perf_counter() - start) / repeats


def measure(rule: str, n: int, f: int, d: int, how: str, turns: int) -> dict[str, Any]:
    """One row of the table; all ways take turns so that a noisy machine disturbs them alike."""
    os.environ["ROBUSTFL_NATIVE"] = how
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    weights = torch.full((n,), 1 / n)
    ways: dict[str, Callable[[Tensor], Any]] = {
        "ours": ours(rule, f),
        "limit": lambda X: weights @ X,
        "byzfl": peer(rule, f),
    }
    for way in ways.values():
        way(X)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            taken[name].append(seconds(way, X))
    ratios = [b / o for b, o in zip(taken["byzfl"], taken["ours"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    own, read, theirs = (1e3 * statistics.median(times) for times in taken.values())
    code = "C" if how == "always" else "torch"
    return {"rule": rule, "n": n, "d": d, "code": code, "ms": own, "byzfl_ms": theirs, "x_limit": own / read,
            "x_faster": middle, "spread": [low, high]}  # fmt: skip


def table(turns: int = 5) -> list[dict[str, Any]]:
    """All cases, with the torch code and, where a C compiler is there, with the compiled kernels."""
    codes = ["never"] + (["always"] if native.library() is not None else [])
    before = os.environ.get("ROBUSTFL_NATIVE")
    try:
        return [measure(*case, how=how, turns=turns) for case in CASES for how in codes]
    finally:
        os.environ.pop("ROBUSTFL_NATIVE", None)
        if before is not None:
            os.environ["ROBUSTFL_NATIVE"] = before


def installed(name: str) -> str:
    """The version of a distribution, or ``-``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def main() -> None:
    """Print the table for both allocators, each in a process of its own."""
    versions = f"torch {torch.__version__}, byzfl {installed('byzfl')}, Python {platform.python_version()}"
    print(f"# kernels: float32, {torch.get_num_threads()} threads, {versions}, {platform.machine()}")
    if installed("byzfl") == "-":
        print("byzfl is not installed; pip install -e '.[peers]'")
        return
    for name, extra in (("default allocator", {}), ("large blocks cached", TUNED)):
        command = [sys.executable, "-m", "benchmarks.kernels", "--json"]
        done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=True)
        columns = f"{'rule':18} {'n':>3} {'d':>8} {'code':>5} {'ms':>8} {'× limit':>8} {'byzfl ms':>9}"
        print(f"\n{name}\n{columns} × faster (quartiles)")
        for row in json.loads(done.stdout.splitlines()[-1]):
            print(
                f"{row['rule']:18} {row['n']:3} {row['d']:8} {row['code']:>5} {row['ms']:8.2f} {row['x_limit']:8.1f} "
                f"{row['byzfl_ms']:9.2f} {row['x_faster']:6.1f} ({row['spread'][0]:.1f} to {row['spread'][1]:.1f})"
            )


if __name__ == "__main__":
    if "--json" in sys.argv:
        print(json.dumps(table()))
    else:
        main()
