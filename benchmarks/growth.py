"""How a round grows: time against clients and trainable entries with fitted exponents, memory against the messages.

``python -m benchmarks growth`` runs every size in a process of its own; ``growth --small`` only the smaller ones. Time
should be linear in both (exponents near 1), peak memory at most 2.5 stacks of messages beside the model and its images.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from typing import Any

import numpy as np

SHAPE, BATCH, ROUNDS = (1, 28, 28), 8, 6
CLIENTS = [(n, 100_000) for n in (10, 32, 100, 316, 1000)]
WIDTHS = [(10, d) for d in (100_000, 316_000, 1_000_000, 3_160_000, 10_000_000)]
RULES = ("trimmed-mean", "nnm+trimmed-mean")


def measured(n: int, d: int, rule: str) -> dict[str, float]:
    """Median seconds of a round, and the peak of memory over what was there before, in stacks of messages."""
    import torch

    from benchmarks.federations import federation
    from benchmarks.rounds import timed
    from robustfl.engine import train
    from robustfl.scenarios.memory import peak_bytes, reset_peak

    torch.set_num_threads(1)
    hidden = max(1, d // (math.prod(SHAPE) + 13))
    experiment = federation(f"mlp(hidden=({hidden},))", SHAPE, n=n, f=n // 5, batch=BATCH, rounds=ROUNDS, defense=rule)
    cpu = torch.device("cpu")
    reset_peak(cpu)
    before = peak_bytes(cpu)
    times = timed(train(experiment))
    width = experiment.layout.d
    model = width * 4
    return {
        "d": width,
        "seconds": statistics.median(times[2:]),
        "stacks": (peak_bytes(cpu) - before - model) / (n * width * 4),
    }


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The slope of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _child(n: int, d: int, rule: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.growth", str(n), str(d), rule]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(words: tuple[str, ...] = ()) -> None:
    """Print the tables."""
    small = "--small" in words
    for rule in RULES:
        for name, sizes in (("clients", CLIENTS), ("entries", WIDTHS)):
            chosen = sizes[:3] if small else sizes
            found = [_child(n, d, rule) for n, d in chosen]
            print(f"\nALIE against {rule}, growing {name}\n{'n':>6} {'d':>10} {'s/round':>9} {'peak, stacks':>13}")
            for (n, _), one in zip(chosen, found, strict=True):
                print(f"{n:6} {one['d']:10.0f} {one['seconds']:9.4f} {one['stacks']:13.2f}", flush=True)
            along = [float(n) if name == "clients" else one["d"] for (n, _), one in zip(chosen, found, strict=True)]
            half = len(along) // 2
            seconds = [one["seconds"] for one in found]
            upper = exponent(along[half:], seconds[half:])
            print(f"exponent {exponent(along, seconds):.2f}, of the larger half {upper:.2f}")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(measured(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
    else:
        main(tuple(sys.argv[1:]))
