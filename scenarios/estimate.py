"""What a grid would do and cost: cells, refusals, seconds and memory, without training it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robustfl.errors import DataMissing, Diverged, Refused, Terminated, told
from robustfl.federation import initial_state, train
from robustfl.origins import in_words, origins
from robustfl.reports.store import Store
from robustfl.running import running
from robustfl.surroundings import kept

from .build import build
from .effect import effect_warnings
from .expand import expand, fingerprints, key_of, labels, refusal, resolve
from .grid import workers_for
from .run import device_of
from .spec import Cell, Scenario, method

_PROBE_ROUNDS = 2
_EMPTY: dict[type, str] = {MemoryError: "this machine has not enough memory"}  # what errors without words mean
_LONG = 5.0  # seconds of a round that need no second to warm up


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a dry run: ``stored``, ``refused`` or ``to run``, and its estimated seconds, if it could be timed."""

    state: str
    cell: Cell
    seconds: float | None
    reason: str | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """What tables print of the cell."""
        return labels(self.cell)


@dataclass(frozen=True)
class Estimate:
    """A dry run's findings. ``seconds`` is wall-clock time of the whole grid with ``jobs`` workers."""

    cells: tuple[PlannedCell, ...]
    axes: tuple[str, ...]
    jobs: int
    seconds: float | None
    memory_bytes: int | None
    note: str
    warnings: tuple[str, ...] = ()
    untimed: int = 0
    """How many kinds of cells could not be timed: they fail here."""

    @property
    def refusals(self) -> dict[str, int]:
        """How many cells are refused for each reason."""
        return dict(Counter(c.reason for c in self.cells if c.reason is not None))

    def summary(self) -> str:
        """The closing lines of a dry run."""
        states = Counter(c.state for c in self.cells)
        lines = [", ".join(f"{n} {state}" for state, n in states.items()) + "; nothing was trained."]
        if self.seconds is not None and self.memory_bytes is not None:
            lines.append(
                f"About {_duration(self.seconds)} with {self.jobs} worker(s) on this machine, "
                f"{self.memory_bytes / 2**30:.1f} GiB per worker. {self.note}"
            )
        else:
            lines.append(self.note)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        cells = [{"state": c.state, "reason": c.reason, "seconds": c.seconds, **c.labels} for c in self.cells]
        return {
            "jobs": self.jobs, "seconds": self.seconds, "memory_bytes": self.memory_bytes, "cells": cells,
            "untimed": self.untimed, "warnings": list(self.warnings),
        }  # fmt: skip


def estimate(
    scenario: Scenario,
    *,
    out: str | Path = "runs",
    jobs: int | None = None,
    threads: int = 1,
    device: str = "auto",
    root: str | Path | None = None,
    on_probe: Callable[[int, int], None] = lambda done, kinds: None,
) -> Estimate:
    """Expand ``scenario``, look into its store, and time two rounds of every kind of cell.

    Timing large models takes minutes; ``on_probe`` is told before each kind how many of how many are done.
    """
    cells = expand(scenario)
    reasons = [refusal(cell) for cell in cells]
    axes = tuple(k for k in Cell.model_fields if len({getattr(c, k) for c in cells}) > 1) or ("attack", "defense")
    workers = workers_for(jobs, threads, device)
    warnings = tuple(effect_warnings(c for c, why in zip(cells, reasons, strict=True) if why is None))
    try:
        known = fingerprints(cells, root, download=False)
    except DataMissing as error:
        planned = tuple(_planned(c, why, None) for c, why in zip(cells, reasons, strict=True))
        return Estimate(planned, axes, workers, None, None, f"No estimate: {error}", warnings)
    keys = [key_of(resolve(cell, known[cell])) for cell in cells]
    stored = Store(Path(out) / scenario.name).done(keys)
    rows = list(zip(cells, keys, reasons, strict=True))
    kinds = {_kind(c): c for c, key, why in rows if why is None and key not in stored}
    probes = _probes(kinds, root, device, threads, on_probe)
    planned = tuple(
        PlannedCell("stored", c, None) if key in stored else _planned(c, why, _seconds(c, probes.get(_kind(c))))
        for c, key, why in rows
    )
    costs = [p.seconds for p in planned if p.state == "to run" and p.seconds is not None]
    total = sum(costs) / max(1, min(workers, len(costs))) if costs or not probes else None
    memory = max((p.memory for p in probes.values()), default=0)
    note = (
        f"Timed on up to {_PROBE_ROUNDS} rounds of {len(kinds)} kind(s) of cells; other load on the machine counts in."
    )
    for words, count in Counter(p.refused for p in probes.values() if p.refused).items():
        note += f"\n{count} kind(s) of cells could not be timed, since the first of each is refused: {words}"
    wrong = Counter(p.failed for p in probes.values() if p.failed)
    for words, count in wrong.items():
        note += f"\n{count} kind(s) of cells could not be timed, and will not run here: {words}"
    return Estimate(planned, axes, workers, total, memory, note, warnings, wrong.total())


def _planned(cell: Cell, reason: str | None, seconds: float | None) -> PlannedCell:
    return PlannedCell("refused" if reason else "to run", cell, None if reason else seconds, reason)


def _kind(cell: Cell) -> tuple[Any, ...]:
    """Cells of one kind cost the same per round."""
    return (
        cell.dataset, cell.domains, cell.model, cell.norm, cell.algorithm, cell.objective, cell.at, cell.train_evasion,
        cell.users, cell.finetune == "none",
        cell.propagation, cell.clients, cell.batch, cell.defense, cell.statistics_rule, cell.attack, cell.participation,
        cell.engine, cell.dtype,
    )  # fmt: skip


def _probes(
    kinds: Mapping[tuple[Any, ...], Cell],
    root: str | Path | None,
    device: str,
    threads: int,
    on_probe: Callable[[int, int], None],
) -> dict[tuple[Any, ...], _Probe]:
    """Time and memory of a cell of each kind."""
    probes: dict[tuple[Any, ...], _Probe] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for kind, cell in kinds.items():
            on_probe(len(probes), len(kinds))
            foreign = in_words(origins(resolve(cell, "")))
            try:
                with running(foreign), kept():
                    probes[kind] = _probe(cell, root, device)
            except Refused as error:  # what only the data or the network tell
                probes[kind] = _Probe(0.0, 0.0, 0, 0, refused=str(error))
            except Diverged:  # the grid will record it; it costs next to nothing
                probes[kind] = _Probe(0.0, 0.0, 0, 0)
            except BaseException as error:  # too large for this machine, or a plug-in's: the others go on
                if isinstance(error, (KeyboardInterrupt, Terminated)):
                    raise
                words = told(error).splitlines()[0] + _EMPTY.get(type(error), "") * (not error.args)
                of = f" [{foreign}]" if foreign else ""
                probes[kind] = _Probe(0.0, 0.0, 0, 0, failed=f"{words}{of}")
    finally:
        torch.set_num_threads(before)
    return probes


def _duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, hours and days."""
    for unit, length, limit in (("seconds", 1, 120), ("minutes", 60, 7200), ("hours", 3600, 2 * 86400)):
        if seconds < limit:
            return f"{seconds / length:.{0 if length == 1 else 1}f} {unit}"
    return f"{seconds / 86400:.1f} days"


@dataclass(frozen=True)
class _Probe:
    round: float
    image: float
    images: int
    memory: int
    validated: int = 0  # images of one look at the validation data, times the passes over each
    failed: str = ""
    refused: str = ""


def _seconds(cell: Cell, probe: _Probe | None) -> float | None:
    if probe is None or probe.failed or probe.refused:
        return None
    points = 1 + (cell.rounds // cell.evaluate_every if cell.evaluate_every else 10)
    attacked = sum(_passes(e) for e in cell.evasions) * (points if cell.evaluate_ra else 1)
    images = points * probe.images + attacked * min(probe.images, cell.ra_limit or probe.images)
    if cell.select == "validation":  # and the selected model is tested beside the last one
        images += points * probe.validated + probe.images
        images += sum(_passes(e) for e in cell.evasions) * min(probe.images, cell.ra_limit or probe.images)
    return cell.rounds * probe.round + images * probe.image


def _probe(cell: Cell, root: str | Path | None, device: str) -> _Probe:
    """Time two rounds and one forward; memory is 2.5 message stacks beside the libraries themselves."""
    where = device_of(device)
    built = build(cell, root=root, device=where)
    e = built.experiment
    clock, times = time.perf_counter(), []
    for record in train(e, initial_state(e)):
        times.append(time.perf_counter() - clock)
        if record.round == min(_PROBE_ROUNDS, cell.rounds) or times[-1] > _LONG:
            break
        clock = time.perf_counter()
    e.model.eval()
    images = built.test.pixels(
        torch.arange(min(64, len(built.test)), device=where), dtype=next(e.model.parameters()).dtype
    )
    clock = time.perf_counter()
    with torch.no_grad():
        e.model(images)
    image_seconds = (time.perf_counter() - clock) / len(images)
    stack = e.settings.participants * e.layout.d * next(e.model.parameters()).element_size()
    users = cell.clients if e.norm.private and not built.tests else 1  # each with a model of its own
    memory = int(2.5 * stack) + 700 * 2**20
    passes = {k: _passes(cell.train_evasion) if k in e.adversarial else 1 for k in range(cell.clients)}
    validated = sum(len(part) * passes[k] for k, part in enumerate(built.validation))
    return _Probe(min(times), image_seconds, len(built.test) * users, memory, validated)


def _passes(evasion: str) -> int:
    """Forward-sized passes of an evasion attack per image: a step is one forward and about two of backward."""
    built = method("evasion", evasion)
    steps = 3 * int(getattr(built, "steps", 1)) * int(getattr(built, "restarts", 1))
    return int(getattr(built, "passes", steps)) + 1
