"""One cell in one call: ``robustfl.run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports import tracking
from robustfl.reports.store import Store
from robustfl.storage import LIMIT

from .cell import Cell
from .checkpoint import commit
from .execution import CHECKPOINT_MINUTES, WARNING, Execution, OnRound, unheard, warned
from .expand import expand, fingerprints, key_of, labels, resolve
from .noop_settings import cell_warnings
from .ranks import joined
from .run import run_cell
from .spec import Scenario


def run(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    threads: int = 1,
    root: str | Path | None = None,
    checkpoint_minutes: float = CHECKPOINT_MINUTES,
    keep_model: bool = False,
    track: Sequence[str] = (),
    state_memory: int = LIMIT,
    on_round: OnRound = unheard,
    on_note: Callable[[str], None] = warned,
) -> CellResult:
    """Run one cell and return its record: ``status``, ``metrics.sa``, ``metrics.ra``, ``curve``, ``certificates`` …

    ``scenario`` is a mapping of cell settings such as ``{"attack": "alie", "f": 3, "defense": "krum"}``, the others at
    their defaults; or a scenario, a preset's name or a file, with exactly one cell. With ``out`` the record is also
    kept in the store ``<out>/<name>``, where the cell keeps checkpoints; it runs whether or not a record is there.
    ``keep_model`` keeps the trained model there as well (``load_model``).
    ``on_round(round, rounds, loss)`` is called after every round, ``on_note`` with every warning, also of the record
    (default: Python's warnings); the other arguments are those of ``grid``. Under
    ``torchrun`` the processes share the cell, and the first one's record is the whole one. A cell that is refused,
    diverges or crashes says so in its record. Raises ``UsageError`` for settings that are none, or make several cells.

    >>> record = run({"rounds": 1, "clients": 2, "evasions": []})
    >>> record.status, 0 <= record.metrics.sa <= 1
    ('done', True)
    """
    execution = Execution(
        device=device, threads=threads, root=root, state_memory=state_memory, checkpoint_minutes=checkpoint_minutes,
        keep_model=keep_model, track=tuple(track), on_round=on_round, on_note=on_note,
    )  # fmt: skip
    record = run_one(_scenario(scenario), execution, out=out)
    for warning in record.certificates.get("warnings", []):
        on_note(WARNING + warning)
    return record


def run_one(scenario: Scenario, execution: Execution, *, out: str | Path | None) -> CellResult:
    """Run the one cell of ``scenario``, as ``run`` does."""
    cell = _only(scenario)
    folder = Path(out or "runs") / scenario.name
    store = None if out is None else Store(folder)
    for warning in cell_warnings([cell]):
        execution.on_note(WARNING + warning)
    with joined(execution.device) as (team, where):
        if store is not None and team.leads:
            store.ready()
            store.sweep()
        # The data are fetched and decoded by one process, while the others wait for the digest.
        known = fingerprints([cell], execution.root)[cell] if team.leads else ""
        fingerprint = known if team.size == 1 else team.told(known)
        names = execution.track if team.leads else ()
        followed = tracking.Followed(names, folder, key_of(resolve(cell, fingerprint)), labels(cell))
        here = replace(
            execution, device=where, team=team, on_point=followed.evaluated, store=None if store is None else folder
        )
        record = run_cell(cell, scenario=scenario.name, fingerprint=fingerprint, execution=here)
    if not team.leads:
        return record
    if store is not None:
        commit(store, record)
    followed.finished(record)
    return record


def _scenario(given: Scenario | Mapping[str, Any] | str | Path) -> Scenario:
    if isinstance(given, Scenario):
        return given
    if isinstance(given, Mapping):
        return Scenario.of({"name": "run", "cell": dict(given)})
    return Scenario.load(given)


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
