"""Whole DSGD rounds against ByzFL's own client and server classes: same model, data, rule and attack.

``python -m benchmarks rounds`` runs each side in processes of its own, taking turns, and prints ratios of the median
time per round and of peak memory. ByzFL is measured with the default allocator and with large-block caching on
(``MALLOC_TOP_PAD_``, ``MALLOC_MMAP_THRESHOLD_``), which is its best case. robustfl's compiled kernels are on from the
first round on, as they are in a cell after its first seconds. Needs the extra ``[peers]``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

TUNED = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TOP_PAD_": str(2**28), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    shape: tuple[int, int, int]
    n: int
    f: int
    batch: int
    rounds: int
    goal: str


CASES = (
    Case("fbn-cnn n=10", "fbn-cnn", (3, 32, 32), 10, 3, 50, 4, "≥ 1.5"),
    Case("mnist-cnn n=13", "mnist-cnn", (1, 28, 28), 13, 3, 25, 10, "≥ 3"),
    Case("mnist-cnn n=50", "mnist-cnn", (1, 28, 28), 50, 15, 25, 4, "≥ 15, memory ≤ 0.5"),
)


def _peak_mib() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))


def ours(case: Case) -> list[float]:
    """Seconds per round of robustfl's fast engine."""
    from benchmarks.federations import federation
    from robustfl.engine import train

    experiment = federation(
        case.model, case.shape, n=case.n, f=case.f, batch=case.batch, rounds=case.rounds + 2, attack="sf",
        defense="nnm+trimmed-mean",
    )  # fmt: skip
    return timed(train(experiment))[2:]


def timed(rounds: Iterable[object]) -> list[float]:
    """Seconds of each."""
    times, clock = [], time.perf_counter()
    for _ in rounds:
        times.append(time.perf_counter() - clock)
        clock = time.perf_counter()
    return times


def byzfl(case: Case, device: str = "cpu") -> list[float]:
    """Seconds per round of ByzFL's Client, ByzantineClient and Server, as its own benchmark calls them."""
    from byzfl import ByzantineClient, Client, Server
    from byzfl.fed_framework import models
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.gradients import centralised
    from robustfl.registry import create

    architecture, norm = create("model", case.model), create("norm", "naive-bn")

    def build() -> nn.Module:
        return centralised(architecture.build(norm, shape=case.shape, classes=10))

    models.bench_model = build
    generator, count = torch.Generator().manual_seed(0), 2 * case.n * case.batch
    pixels = torch.randint(0, 256, (count, *case.shape), generator=generator).float().div_(255)
    y = torch.randint(0, 10, (count,), generator=generator)
    loaders = [
        DataLoader(TensorDataset(pixels[part], y[part]), batch_size=case.batch, shuffle=True)
        for part in torch.arange(len(y)).chunk(case.n)[: case.n - case.f]
    ]
    common: dict[str, Any] = {
        "model_name": "bench_model", "device": device, "optimizer_name": "SGD", "learning_rate": 0.01,
        "weight_decay": 0.0, "milestones": [10**6], "learning_rate_decay": 1.0,
    }  # fmt: skip
    clients = [
        Client({**common, "loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10, "momentum": 0.9,
                "training_dataloader": loader, "store_per_client_metrics": False})
        for loader in loaders
    ]  # fmt: skip
    rule = {"name": "TrMean", "parameters": {"f": case.f}}
    mixing = [{"name": "NNM", "parameters": {"f": case.f}}]
    server = Server({**common, "test_loader": loaders[0], "aggregator_info": rule, "pre_agg_list": mixing})
    attacker = ByzantineClient({"f": case.f, "name": "SignFlipping", "parameters": {}})

    def rounds() -> Iterator[None]:
        for _ in range(case.rounds + 2):
            for client in clients:
                client.compute_gradients()
            honest = [client.get_flat_gradients_with_momentum() for client in clients]
            server.update_model_with_gradients(honest + attacker.apply_attack(honest))
            state = server.get_dict_parameters()
            for client in clients:
                client.set_model_state(state)
            yield None

    return timed(rounds())[2:]


def _child(side: str, place: int) -> dict[str, Any]:
    environment = {**os.environ, "ROBUSTFL_NATIVE": "always", **(TUNED if side == "byzfl-tuned" else {})}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.rounds", side, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(repeats: int = 3) -> None:
    """Print the table."""
    print(f"whole rounds, SF against NNM + trimmed mean, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'case':16} {'ours s':>8} {'MiB':>6} | {'byzfl':>6} {'memory':>7} | {'tuned':>6} {'spread':>11} | goal")
    for place, case in enumerate(CASES):
        seconds: dict[str, list[float]] = {}
        memory: dict[str, float] = {}
        for _ in range(repeats):
            for side in ("ours", "byzfl", "byzfl-tuned"):
                found = _child(side, place)
                seconds.setdefault(side, []).append(statistics.median(found["seconds"]))
                memory[side] = found["mib"]
        ratios = {s: [b / a for a, b in zip(seconds["ours"], t, strict=True)] for s, t in seconds.items()}
        middle = {s: statistics.median(r) for s, r in ratios.items()}
        spread = f"{min(ratios['byzfl-tuned']):.1f}–{max(ratios['byzfl-tuned']):.1f}"
        print(
            f"{case.name:16} {statistics.median(seconds['ours']):8.3f} {memory['ours']:6.0f} | {middle['byzfl']:5.1f}× "
            f"{memory['ours'] / memory['byzfl']:6.2f}× | {middle['byzfl-tuned']:5.1f}× {spread:>11} | {case.goal}",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run = ours if sys.argv[1] == "ours" else byzfl
        spent = run(CASES[int(sys.argv[2])])
        print(json.dumps({"seconds": spent, "mib": _peak_mib()}))
    else:
        main()
