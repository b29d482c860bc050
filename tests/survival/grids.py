"""Grids in processes of their own, started from one that has everything imported, so that a kill costs no start-up."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from robustfl.reports.store import Store
from robustfl.scenarios import Scenario, grid
from robustfl.scenarios.checkpoint import Checkpoint

CELL: dict[str, Any] = {
    "attack": ["none", "mimic", "lazy"], "algorithm": "scaffold(local_steps=1)", "defense": "nnm+median",
    "norm": "fbn", "model": "mlp(hidden=(8,))", "f": 1, "clients": 5, "batch": 8, "rounds": 4, "evasions": ["fgsm"],
}  # fmt: skip
SCENARIO = Scenario.of({"name": "s", "cell": CELL})


def started(body: Callable[..., None], *given: Any) -> ForkServerProcess:
    """A process that runs ``body``; exit code 0 means that nothing went wrong."""
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "robustfl.scenarios", "robustfl.reports"])
    process = context.Process(target=body, args=given)
    process.start()
    return process


def run(out: Path) -> None:
    """The grid with a checkpoint after every round, its cells in this process: what hits it hits them."""
    _quiet()
    grid(SCENARIO, out=out, jobs=0, checkpoint_minutes=1e-9)


def run_until_step(out: Path, step: int) -> None:
    """The grid, killed in the midst of a write: at the ``step``-th flush (of half the file) or rename, or after it."""
    count = iter(range(1, 1 << 30))
    fsync, replace = os.fsync, os.replace

    def at_flush(handle: int) -> None:
        if next(count) == step:
            if os.fstat(handle).st_size:
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    def at_rename(source: Any, target: Any) -> None:
        if next(count) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if next(count) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync, os.replace = at_flush, at_rename  # type: ignore[assignment]
    run(out)


def contents(out: Path) -> dict[str, Any]:
    """The records without what may differ between two runs."""
    found = {p.stem: json.loads(p.read_text()) for p in (out / "s" / "cells").glob("*.json")}
    for record in found.values():
        record.pop("timing")
    return found


def whole(out: Path) -> set[str]:
    """The keys of the stored cells, after a look at every file: none is torn."""
    loaded = Store(out / "s").load()
    assert not loaded.problems
    for path in (out / "s" / "checkpoints").glob("*.pt"):
        assert Checkpoint(path, {}).content("cpu")
    return {r.key for r in loaded.results}


def _quiet() -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
