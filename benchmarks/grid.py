"""The grid's own costs: worker start-up, throughput of 4 workers against 2, and a second run of a finished store."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from robustfl.records import Metrics
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario, grid, plan

CELL = {
    "attack": ["none", "sf", "alie"], "defense": ["mean", "nnm+median"], "norm": ["fbn", "gn"], "seed": [0, 1],
    "partition": "gamma(gamma=0.5)", "f": 3, "rounds": 300, "batch": 25, "evasions": [],
}  # fmt: skip


def start_up() -> float:
    """Seconds until a fresh worker process has what a cell needs."""
    clock = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import robustfl.scenarios.run, robustfl.registry as r; r.load_plugins()"], check=True
    )
    return time.perf_counter() - clock


def throughput(jobs: int) -> float:
    """Cells per second once every worker has finished a cell or two, so that start-up does not enter."""
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        scenario = Scenario.of({"name": "bench", "cell": CELL})
        grid(scenario, out=out, jobs=jobs, on_cell=lambda finished: stamps.append(time.perf_counter()))
    return (len(stamps) - 1 - 8) / (stamps[-1] - stamps[8])


def finished_grid(cells: int) -> float:
    """Seconds of the command for a store in which all of so many cells are done."""
    with tempfile.TemporaryDirectory() as out:
        settings = {**CELL, "attack": "none", "defense": "mean", "norm": "fbn", "seed": list(range(cells))}
        file = Path(out) / "bench.toml"
        rows = [f"{k} = {v!r}".replace("'", '"') for k, v in settings.items()]
        file.write_text('name = "bench"\n[cell]\n' + "\n".join(rows), encoding="utf-8")
        todo = plan(Scenario.load(str(file)), out=out)
        store = Store(todo.folder)
        for cell in todo.cells.values():
            store.commit(cell.record(status="done", metrics=Metrics(sa=0.5, loss=1.0)))
        clock = time.perf_counter()
        command = [sys.executable, "-m", "robustfl", "grid", str(file), "--out", out]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - clock


def main(repeats: int = 3) -> None:
    """Print the table."""
    starts = [start_up() for _ in range(repeats)]
    print(f"worker start-up: {statistics.median(starts):.1f} s (goal < 4 s)")
    ratios = [throughput(4) / throughput(2) for _ in range(repeats)]
    print(f"throughput of 4 workers / 2 workers: {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f}–{max(ratios):.2f}; goal ≥ 0.9 on 2 cores)")  # fmt: skip
    print(f"finished store of 1,000 cells: {finished_grid(1000):.1f} s (goal < 5 s)")


if __name__ == "__main__":
    main()
