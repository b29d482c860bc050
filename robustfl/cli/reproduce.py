"""``robustfl reproduce``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustfl import __version__
from robustfl.cli import options as shared
from robustfl.cli.grid import options_of, run_shown
from robustfl.cli.options import PATH, Command, Word
from robustfl.cli.printing import as_json, console, say, table
from robustfl.errors import UsageError
from robustfl.records import CellResult

if TYPE_CHECKING:
    from robustfl.reports.reproduction import Page

TOLERANCE = 0.03
"""What boards of the papers' tables claim: trainings that end far from where they would settle amplify what another
processor or another order of sums rounds away. Two commits differ by up to 1.6 points in one cell."""


@click.command(cls=Command, short_help="Measure the papers' tables and figures again; write claim beside measurement.")
@click.argument("target", required=False, metavar="[PAPER[/TABLE]]")
@click.option("--scale", type=Word(("paper", "reduced")), default="reduced", show_default=True, metavar="paper|reduced",
              help="The protocol's size.")  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="Print every table and figure with its state and time left.")
@click.option("--run/--no-run", default=True, show_default=True, help="Run what is missing before writing the page.")
@shared.STORES
@click.option("--report", default="reproduction", show_default=True, type=PATH, help="Folder of the page.")
@click.option("--from", "boards", multiple=True, type=PATH, help="Read this board; run nothing.")
@click.option("--board", type=PATH, help="Also write the cells as one board.")
@shared.JOBS
@shared.THREADS
@shared.DEVICE
@shared.DATA_ROOT
@shared.FORMAT
def reproduce(
    target: str | None, *, scale: Any, listing: bool, run: bool, out: str, report: Path, boards: tuple[Path, ...],
    board: Path | None, form: str, **how: Any,
) -> int:  # fmt: skip
    """Hold what a paper claims beside what robustfl measures: fbn, wsm, fedrbn, hbn, fedtan, or one TABLE of them.

    \b
    robustfl reproduce --list
    robustfl reproduce fedtan/figure6
    """
    from robustfl.reports.published import sound_board
    from robustfl.reports.reproduction import Page, find_items
    from robustfl.reports.reproduction.page import write_page
    from robustfl.scenarios.reproduce import entry, run_missing

    chosen = find_items(target)
    if listing:
        return _list(chosen, scale, out=out, root=how["root"], form=form)
    _check(target, run=run, boards=boards, board=board)
    options = options_of(**how)
    failed = False
    runner = partial(run_shown, options=options, out=out, quiet=form == "json")
    if run and not boards:
        for paper, item in chosen:
            at = item.at(scale)
            if at is not None:
                say(f"{paper.name}/{item.id}: {item.title}", err=True)
                failed |= run_missing(at, runner, on_note=options.on_note, out=out, root=options.root)
    given = {path: list(sound_board(path).records()) for path in boards}
    records = [r for found in given.values() for r in found] if boards else None
    entries = tuple(entry(p, item, scale, out=out, root=options.root, records=records) for p, item in chosen)
    _say_unused(given, {key for e in entries for key in e.evidence.records}, target)
    page = with_figures(Page(entries, __version__), report)
    files = [*write_page(page, report), *(report / name for entry in page.entries for name in entry.figures)]
    if board is not None:
        files.append(_write_board(page, board))
    _print(page, files, form)
    return 1 if failed else 0


def _say_unused(given: Mapping[Path, Sequence[CellResult]], used: set[str], target: str | None) -> None:
    """Name the boards that have nothing to do with what was asked for."""
    for path, records in given.items():
        if not any(record.key in used for record in records):
            asked = f"{target} at this scale" if target else "a table or figure at this scale"
            say(f"{path}: none of its {len(records)} cells belongs to {asked}", err=True)


def _check(target: str | None, *, run: bool, boards: tuple[Path, ...], board: Path | None) -> None:
    """Raise ``UsageError`` for what cannot be meant together, and where nobody said which table to run."""
    from robustfl.reports.store import refuse_board

    if target is None and run and not boards:
        raise UsageError(
            "reproduce: name a paper or a table, as in 'robustfl reproduce fedtan/figure6'; --list shows all and "
            "their time, --no-run writes the page of what has run"
        )
    if boards and board is not None:
        raise UsageError("--from reads boards and --board writes one; use one of them")
    refuse_board(board)


def _list(chosen: Sequence[tuple[Any, Any]], scale: Any, *, out: str, root: str | None, form: str) -> int:
    from robustfl.reports.reproduction import Entry
    from robustfl.scenarios.progress import duration
    from robustfl.scenarios.reproduce import gather, pace

    found = [Entry(paper, item, scale, gather(item.at(scale), out=out, root=root), ()) for paper, item in chosen]
    lacking = list(dict.fromkeys(e.evidence.lacking for e in found if e.evidence.lacking))
    slower = pace()
    facts: list[dict[str, Any]] = [
        {"name": e.name, "title": e.item.title, "scale": scale, "cells": len(e.evidence.planned),
         "done": len(e.evidence.ran), "seconds": e.seconds_left(slower),
         "statements": len(e.item.statements_at(scale)), "words": e.evidence.lacking or e.needs}
        for e in found
    ]  # fmt: skip
    if form == "json":
        as_json(facts)
        return 0
    rows = [
        [line["name"], line["title"], line["statements"] or "–",
         f"{line['done']} of {line['cells']}" if line["cells"] else "–",
         "–" if line["seconds"] is None else duration(line["seconds"]) if line["seconds"] else "none",
         f"data, see ({lacking.index(line['words']) + 1})" if line["words"] in lacking else line["words"]]
        for line in facts
    ]  # fmt: skip
    head = ["table or figure", "what it shows", "claims", "cells run", "time left", "needs"]
    console().print(table(head, rows, title=f"Scale {scale!r}; times for one worker on this machine"))
    for number, words in enumerate(lacking, 1):
        say(f"({number}) {words}")
    return 0


def with_figures(page: Page, folder: Path, forms: Sequence[str] = ("png", "pdf")) -> Page:
    """The page with every plot drawn into ``folder``, in these forms."""
    from robustfl.reports.figures.layout import picture, titled
    from robustfl.reports.store import write_atomic

    entries = []
    for entry in page.entries:
        names = []
        for title, figure in titled(entry.paper.drawings(entry.item, entry.evidence)):
            for form in forms:
                names.append(f"{entry.paper.name}-{title}.{form}")
                write_atomic(folder / names[-1], picture(figure, form))
        entries.append(replace(entry, figures=tuple(names)))
    return replace(page, entries=tuple(entries))


def _write_board(page: Any, path: Path) -> Path:
    from robustfl.reports.published import publish, write_board

    records = {key: record for entry in page.entries for key, record in entry.evidence.records.items()}
    name = "-".join(dict.fromkeys(entry.paper.name for entry in page.entries))
    made = publish(list(records.values()), name=f"reproduction-{name}", tolerance=TOLERANCE, curves=True)
    return write_board(made, path)


def _print(page: Any, files: Sequence[Path], form: str) -> None:
    from robustfl.reports.reproduction.page import HEAD, to_json

    if form == "json":
        say(to_json(page), nl=False)
        return
    screen = console()
    for entry in page.ordered:
        if entry.findings:
            rows = list(map(list, entry.rows))
            screen.print(table(list(HEAD), rows, title=f"{entry.name}: {entry.item.title}"))
        else:
            screen.print(f"{entry.name}: {entry.item.title}", markup=False)
        screen.print(f"{entry.state}\n", markup=False)
    say(page.summary)
    say(f"Written: {', '.join(str(f) for f in files[:4])}" + (" and figures" if len(files) > 4 else ""))
