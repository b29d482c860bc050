"""``robustfl verify`` and ``robustfl submit``: run cells of a published board again; write or check a submission."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustfl.cli import options as shared
from robustfl.cli.options import PATH, Command, given, tolerance
from robustfl.cli.printing import as_json, console, say, table
from robustfl.errors import UsageError

if TYPE_CHECKING:
    from robustfl.scenarios.submission import Finding
    from robustfl.scenarios.verify import Check, Verification

_WORDS = {True: "passes", False: "REFUSED", None: "not checked"}


@click.command(cls=Command, short_help="Run cells of a published board again and compare.")
@click.argument("board", type=PATH)
@shared.CELLS
@shared.EVERY_CELL
@shared.where("Only cells of this row, e.g. defense=krum.")
@shared.SAMPLE
@tolerance("By how much an accuracy may differ here, whatever the board claims.", default=None)
@click.option("--check-only", is_flag=True, help="Check the file and the versions; run nothing.")
@click.option("--isolated", is_flag=True, help="Train without test data, evaluate without attacks and defenses.")
@shared.WORK
@shared.PREPARE
@shared.CELL_MINUTES
@shared.plugins()
@click.option("--device", metavar="auto|cpu|cuda[:i]", help="Where to train [default: as the board says].")
@click.option("--threads", type=click.IntRange(1), help="Threads per cell [default: as the board says].")
@shared.DATA_ROOT
@shared.FORMAT
def verify(
    board: Path,
    *,
    cells: int | None,
    everything: bool,
    tolerance: float | None,
    check_only: bool,
    form: str,
    **how: Any,
) -> int:
    """Run cells of a published BOARD again and say which agree; 1 if one does not, or if the file was edited.

    \b
    robustfl verify board.json
    robustfl verify board.json --where defense=nnm+median --where norm=fbn --all
    robustfl verify board.json --isolated --plugin my_defense.py
    """
    from robustfl.reports.published import TOLERANCE
    from robustfl.scenarios import verify as verified

    unused = given("cells", "everything", "sample", "tolerance", "device", "threads", "root", "isolated")
    if check_only and unused:
        raise UsageError(f"--check-only runs no cell, and {unused} is for cells that run: leave one of them out")
    shown = _Lines(quiet=form == "json")
    found = verified(
        board, cells=drawn(cells, everything=everything), tolerance=TOLERANCE if tolerance is None else tolerance,
        check_only=check_only, on_start=shown.start, on_cell=shown.cell, **how,
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


@click.command(cls=Command, short_help="Write a submission from a store, or check one.")
@click.argument("target", metavar="STORE|SUBMISSION", type=PATH)
@click.option("--check", "checks", is_flag=True, help="Check a submission instead of writing one.")
@click.option("--out", type=PATH, help="Folder of the submission  [default: submissions/NAME]")
@click.option("--name", help="What it is called  [default: the store's name]")
@shared.plugins("A file that methods of the cells are from.")
@tolerance("By how much an accuracy may differ when a cell is run again.")
@click.option("--trust", is_flag=True, help="Run its code, in processes of its own: you have read it.")
@click.option("--against", type=PATH, help="The board it wants to join: its attacks and seeds.")
@shared.CELLS
@shared.EVERY_CELL
@shared.SAMPLE
@shared.WORK
@shared.PREPARE
@shared.CELL_MINUTES
@shared.DATA_ROOT
@shared.FORMAT
def submit(
    target: Path, *, checks: bool, out: Path | None, name: str | None, plugins: tuple[str, ...], tolerance: float,
    cells: int | None, everything: bool, form: str, **how: Any,
) -> int:  # fmt: skip
    """Write the results of STORE for others: a board, and the plug-ins it needs. --check looks at a SUBMISSION.

    \b
    robustfl submit runs/my-study --plugin my_defense.py
    robustfl submit --check submissions/my-study --trust
    """
    if checks:
        if given("out", "name", "plugins"):
            raise UsageError("--check looks at a submission that is there; --out, --name and --plugin make one")
        return _check(target, form, cells=drawn(cells, everything=everything), tolerance=tolerance, **how)
    if unused := given("trust", "against", "cells", "everything", "sample", "work", "prepare_only", "cell_minutes"):
        raise UsageError(f"{unused} goes with --check")
    from robustfl.reports.published.submitting import write_submission

    made = write_submission(target, out, name=name, plugins=plugins, tolerance=tolerance)
    if form == "json":
        as_json({
            "folder": str(made.folder), "board": made.board.name, "plugins": dict(made.plugins),
            "packages": list(made.packages), "wrong": list(made.wrong),
        })  # fmt: skip
    else:
        say(f"{made.folder}: {len(made.board.cells)} cells, {len(made.plugins)} plug-ins")
        for words in made.wrong:
            say(f"it would be refused: {words}", err=True)
        say(f"check it as others will: robustfl submit --check {made.folder}{' --trust' * bool(made.plugins)}")
    return 1 if made.wrong else 0


def _check(folder: Path, form: str, **how: Any) -> int:
    from robustfl.scenarios.submission import check_submission

    quiet = form == "json"

    def told(finding: Finding) -> None:
        if not quiet:
            say(f"{finding.step}: {_WORDS[finding.passed]}: {finding.words}")

    found = check_submission(folder, on_finding=told, **how)
    name = found.submitted.board.name
    verdict = "ACCEPTED" if found.accepted else "REFUSED" if found.refused else "UNDECIDED"
    if quiet:
        as_json({"name": name, "verdict": verdict, "findings": [dataclasses.asdict(f) for f in found.findings]})
    else:
        say(f"\n{name}: {verdict}")
    return 0 if found.accepted else 1
