"""One cell in one call: ``robustfl.run``, also shared by the processes that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from robustfl.distributed import ALONE, Team
from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports.store import Store

from .cell import Cell
from .checkpoint import commit
from .expand import expand, fingerprints
from .noop_settings import cell_warnings
from .plan import ResolvedCell
from .run import run_resolved
from .run_options import OF_A_GRID, WARNING, OnRound, RunOptions, device_of, unheard, warned
from .spec import Scenario

# As long as a round may take, and the evaluation for which the others wait.
_PATIENCE = timedelta(days=2)


def run(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    on_round: OnRound = unheard,
    on_note: Callable[[str], None] = warned,
    **options: Any,
) -> CellResult:
    """Run one cell and return its record: ``status``, ``metrics.sa``, ``metrics.ra``, ``curve``, ``certificates`` …

    ``scenario`` is a mapping of cell settings such as ``{"attack": "alie", "f": 3, "defense": "krum"}``, the others at
    their defaults; or a scenario, a preset's name or a file, with exactly one cell. With ``out`` the record is also
    kept in the store ``<out>/<name>``, where the cell keeps checkpoints; it runs whether or not a record is there.
    ``keep_model`` keeps the trained model there as well (``load_model``).
    ``on_round(round, rounds, loss)`` is called after every round, ``on_note`` with every warning, also of the record
    (default: Python's warnings); ``options`` are those of ``RunOptions`` that are not of a grid. Under ``torchrun`` the
    processes share the cell, and the first one's record is the whole one. A cell that is refused,
    diverges or crashes says so in its record. Raises ``UsageError`` for settings that are none, or make several cells.

    >>> record = run({"rounds": 1, "clients": 2, "evasions": []})
    >>> record.status, 0 <= record.metrics.sa <= 1
    ('done', True)
    """
    for name in OF_A_GRID.intersection(options):
        raise UsageError(f"run: {name}={options[name]!r} is for a grid; run runs one cell")
    how = RunOptions(on_round=on_round, on_note=on_note, **options)
    if isinstance(scenario, Mapping):
        scenario = Scenario.of({"name": "run", "cell": dict(scenario)})
    elif not isinstance(scenario, Scenario):
        scenario = Scenario.load(scenario)
    record = run_one(scenario, how, out=out)
    for warning in record.certificates.get("warnings", []):
        on_note(WARNING + warning)
    return record


def run_one(scenario: Scenario, options: RunOptions, *, out: str | Path | None) -> CellResult:
    """Run the one cell of ``scenario``, as ``run`` does."""
    cell = _only(scenario)
    store = None if out is None else Store(Path(out) / scenario.name)
    for warning in cell_warnings([cell]):
        options.on_note(WARNING + warning)
    with joined(options.device) as (team, where):
        if store is not None and team.is_rank0:
            store.ready()
            store.sweep()
        # The data are fetched and decoded by one process, while the others wait for the digest.
        known = fingerprints([cell], options.root)[cell] if team.is_rank0 else ""
        resolved = ResolvedCell.of(cell, known if team.size == 1 else team.broadcast(known), scenario.name)
        here = replace(options, device=where, team=team, store=None if store is None else store.folder)
        record = run_resolved(resolved, here)
    if store is not None and team.is_rank0:
        commit(store, record)
    return record


def _only(scenario: Scenario) -> Cell:
    """The cell of a scenario that has one. Raises ``UsageError`` naming the axes that are open."""
    cells = expand(scenario)
    if len(cells) == 1:
        return cells[0]
    axes = {k: sorted({str(getattr(c, k)) for c in cells}) for k in {**scenario.cell, "scope": None}}
    open_axes = "; ".join(f"{k}: {', '.join(v)}" for k, v in axes.items() if len(v) > 1)
    raise UsageError(
        f"run takes one cell, {scenario.name!r} has {len(cells)}; fix these settings (--set, or settings= of "
        f"Scenario.load): {open_axes}"
    )


def processes() -> int:
    """The number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """The number of this process among those that torchrun started; 0 leads."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


@contextmanager
def joined(device: str) -> Iterator[tuple[Team, str]]:
    """The team of this process and the device it works on: a GPU each, or all on the CPU."""
    if processes() == 1:
        yield ALONE, device
        return
    where = device_of(device)
    if where.type == "cuda":
        here = int(os.environ.get("LOCAL_RANK", "0"))
        if here >= torch.cuda.device_count():
            raise UsageError(f"process {here} of this machine has no GPU of its own: there are "
                             f"{torch.cuda.device_count()}; use as many processes or --device cpu")  # fmt: skip
        where = torch.device("cuda", here)
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), where), str(where)
    finally:
        dist.destroy_process_group()
