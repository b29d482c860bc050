"""Records as a grid would leave them, without training anything."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robustfl.records import CellResult, CurvePoint, Metrics, Timing, digest
from robustfl.reports import rank_board
from robustfl.reports.board import Board
from robustfl.reports.frame import frame
from robustfl.reports.store import Store
from robustfl.reports.table_cell import TableCell

BREAKS = {"none": 0.0, "sf": 0.5, "foe": 0.4, "alie": 0.25}
HOLDS = {"mean": 0.0, "median": 0.5, "trimmed-mean": 0.6, "nnm+median": 0.85, "nnm+trimmed-mean": 0.9}
LEVEL = {"naive-bn": 0.75, "fbn": 0.95, "gn": 0.93}


def record(
    *, sa: float = 0.9, ra: dict[str, float] | None = None, status: str = "done", reason: str | None = None,
    round: int | None = None, seconds_per_round: float = 0.01, curve: Sequence[float] = (),
    metrics: Mapping[str, Any] | None = None, certificates: Mapping[str, Any] | None = None, **labels: Any,
) -> CellResult:  # fmt: skip
    """One record with further ``metrics`` and ``certificates``; every label not given has a default."""
    known: dict[str, Any] = {
        "dataset": "digits", "partition": "iid", "model": "digits-cnn", "norm": "fbn", "algorithm": "dsgd",
        "attack": "sf", "defense": "mean", "seed": 0, "f": 3, "f_declared": 3, "clients": 10, "scope": "both",
    }  # fmt: skip
    known |= labels
    robust = {"pgd": round_down(sa / 2)} if ra is None else ra
    worst = min(robust.values(), default=None)
    known_metrics = {"sa": sa, "loss": 1 - sa, "ra": robust, "ra_worst": worst, "samples": 360}
    done = status == "done"
    return CellResult(
        key=digest({"cell": known}),
        scenario="fake",
        status=status,  # type: ignore[arg-type]
        reason=reason,
        round=round,
        cell={"cell": known},
        labels=known,
        metrics=Metrics.model_validate(known_metrics | dict(metrics or {})) if done else None,
        curve=[CurvePoint(round=10 * i, sa=v, loss=1 - v, ra=v / 2) for i, v in enumerate(curve)],
        label_counts=[[40 if (c % 10) == i else 3 for c in range(10)] for i in range(10)],
        certificates={"versions": {"torch": "2.6.0"}, "smallest_variance": 0.01, **(certificates or {})},
        timing=Timing(seconds=1.5, seconds_per_round=seconds_per_round, peak_memory_bytes=200 * 2**20),
    )


def round_down(value: float) -> float:
    """Three decimals are enough for a test."""
    return math.floor(value * 1000) / 1000


def grid(
    *, partitions: Sequence[str] = ("gamma(gamma=0.0)", "gamma(gamma=0.5)"), seeds: int = 2, points: int = 11
) -> list[CellResult]:
    """Five defenses × four attacks × three norms × partitions × seeds, with plausible numbers."""
    draw = random.Random(0)
    cells = []
    for partition, norm, defense, attack, seed in itertools.product(partitions, LEVEL, HOLDS, BREAKS, range(seeds)):
        level = LEVEL[norm] - (0.5 if norm == "naive-bn" and partition.endswith("0.0)") else 0.0)
        end = max(0.1, level * (1 - BREAKS[attack] * 1.7 * (1 - HOLDS[defense]))) - draw.uniform(0, 0.04)
        curve = [max(0.0, end * (1 - math.exp(-i / 2.5)) + draw.uniform(-0.02, 0.02)) for i in range(points)]
        curve[-1] = end
        labels = {"partition": partition, "norm": norm, "defense": defense, "attack": attack, "seed": seed}
        cells.append(record(sa=end, curve=curve, seconds_per_round=0.01 + 0.01 * len(defense) / 10, **labels))
    return cells


def stored(folder: Path, records: Sequence[CellResult]) -> Store:
    """A store that holds ``records``."""
    store = Store(folder)
    for item in records:
        store.commit(item)
    return store


def board(*records: CellResult) -> Board:
    """The board of these records."""
    return rank_board(frame(records))


def place(*values: float, expected: int = 0, **more: Any) -> TableCell:
    """A place of a table with a value per seed."""
    return TableCell(tuple((str(seed), v) for seed, v in enumerate(values)), expected or len(values), **more)
