"""``robustfl verify``: run cells of a published board again and print what agrees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustfl.cli.printing import as_json, console, say, table
from robustfl.errors import UsageError

if TYPE_CHECKING:
    from robustfl.scenarios.verify import Check, Verification


def verify(
    *,
    board: Path,
    cells: int | None,
    everything: bool,
    where: dict[str, str],
    sample: int | None,
    tolerance: float | None,
    check_only: bool,
    isolated: bool,
    work: Path | None,
    prepare: bool,
    plugins: tuple[str, ...],
    device: str | None,
    threads: int | None,
    data_root: str | None,
    form: str,
) -> int:
    """Check a board's file, then run some of its cells; 1 unless everything agrees."""
    from robustfl.reports.published import TOLERANCE
    from robustfl.scenarios import verify as verified

    if check_only:
        _runs_nothing({
            "cells": cells, "all": everything or None, "sample": sample, "tolerance": tolerance, "device": device,
            "threads": threads, "data-root": data_root, "isolated": isolated or None,
        })  # fmt: skip
    shown = _Lines(quiet=form == "json")
    found = verified(
        board, cells=drawn(cells, everything=everything), where=where, sample=sample,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        check_only=check_only, isolated=isolated, work=work, prepare_only=prepare,
        plugins=plugins, device=device, threads=threads, root=data_root,
        on_start=shown.start, on_cell=shown.cell,
    )  # fmt: skip
    if form == "json":
        as_json({
            "board": found.board, "agrees": found.agrees, "undecided": found.undecided,
            "file": list(found.file), "tolerance": found.tolerance, "claimed_tolerance": found.claimed,
            "sample": found.sample,
            "versions": list(found.versions), "missing": list(found.missing),
            "environment": list(found.environment),
            "cells": [{"key": c.key, "verdict": c.verdict, "detail": c.detail} for c in found.checks],
        })  # fmt: skip
    else:
        _tail(found, "" if everything else f" of {found.cells} (drawn with --sample {found.sample})")
    return 0 if found.agrees else 1


def _runs_nothing(options: Mapping[str, object]) -> None:
    """Raise ``UsageError`` for the first option that was given although no cell is to run."""
    for name, given in options.items():
        if given is not None:
            raise UsageError(f"--check-only runs no cell, and --{name} is for cells that run: leave one of them out")


def drawn(cells: int | None, *, everything: bool) -> int | None:
    """The number of cells to draw, None for all of them. Raises ``UsageError`` where both are asked for."""
    if everything and cells is not None:
        raise UsageError(f"--all runs every cell, --cells {cells} draws some: give one of them")
    return None if everything else cells or 3


class _Lines:
    """Lines printed while cells run."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._done, self._all = quiet, 0, 0

    def start(self, known: Verification) -> None:
        self._all = known.chosen
        if self._quiet:
            return
        points = f"{100 * known.tolerance:g} points of accuracy"
        points += f" (the board claims {100 * known.claimed:g})" if known.claimed != known.tolerance else ""
        say(f"{known.board}: {known.published} cells, tolerance {points}")
        for words in known.file:
            say(f"the file: {words}")
        for words in known.environment:
            say(f"environment differs, so numbers may too: {words}")

    def cell(self, check: Check) -> None:
        self._done += 1
        if not self._quiet:
            detail = f": {check.detail}" if check.detail else ""
            say(f"[{self._done}/{self._all}] {check.key[:12]} {_labels(check.labels)}: {check.verdict}{detail}")


def _tail(found: Verification, which: str) -> None:
    bad = found.disagreeing
    if bad:
        rows = [[c.key[:12], _labels(c.labels), c.verdict, c.detail] for c in bad]
        console().print(table(["cell", "", "", "published → here"], rows, title="\nDoes not agree"))
    for words in found.versions:
        say(f"method differs: {words}")
    for words in found.missing:
        say(f"cannot be run here: {words}")
    if not found.checks:
        ends = " The file is consistent." if found.agrees else " UNDECIDED" if found.undecided else " REJECTED"
        say(f"\nNo cell was run.{ends}")
        return
    same = sum(c.verdict == "identical" for c in found.checks)
    n = len(found.checks)
    say(f"\n{n} cells{which}: {n - len(bad)} agree, {same} of them identical.")
    if found.undecided:
        why = f"{len(bad)} cells were not run here" if bad else "methods that other cells use are others here, or none"
        say(f"UNDECIDED: {why}, nothing else speaks against the board")
    else:
        say("ACCEPTED" if found.agrees else "REJECTED")


def _labels(labels: Mapping[str, Any]) -> str:
    """The labels of a cell in a line; data set, model and algorithm where they are not the default."""
    from robustfl.scenarios.cell import Cell

    usual = {n: Cell.model_fields[n].default for n in ("dataset", "model", "algorithm")}
    names = [n for n in ("dataset", "model", "partition", "norm", "algorithm", "attack", "defense", "f", "seed")
             if n in labels and labels[n] != usual.get(n)]  # fmt: skip
    return " ".join(f"{n}={labels[n]}" if n in ("f", "seed") else str(labels[n]) for n in names)
