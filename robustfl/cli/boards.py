"""Commands on stores and boards that run nothing: ``report``, ``plot``, ``compare``, ``merge`` and ``diff``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustfl.cli.options import FORMAT, PATH, PLOTS, Command, Word, load_plugins, plugins, tolerance, where
from robustfl.cli.printing import as_json, console, print_board, say, table
from robustfl.errors import UsageError
from robustfl.origins import named_methods
from robustfl.records import CellResult

if TYPE_CHECKING:
    from robustfl.reports.comparison import Comparison


@click.command(cls=Command, short_help="Print a leaderboard; write tables, figures, a web site, a board.")
@click.argument("store", type=PATH)
@click.option(
    "--out", type=PATH, help="Folder of the report [default: STORE/report, or report-… beside it with --where]."
)
@click.option("--site", type=PATH, help="Also write a web site into this folder.")
@click.option("--board", type=PATH, help="Also write a board that `verify` can check, e.g. board.json.gz.")
@click.option("--curves", is_flag=True, help="The board also holds the accuracies during training.")
@click.option(
    "--cells",
    type=PATH,
    help="Also write the table of all cells, a line each, as .csv, .csv.gz or .parquet.",
)
@tolerance("What the board claims: by how much an accuracy may differ when a cell is run again.", default=None)
@click.option(
    "--statistic",
    type=click.Choice(("final", "tail", "selected", "validation")),
    help="Rank the last round, the mean of the last rounds, the round chosen on validation data, or the validation "
    "accuracy of that round [default: what each cell says with its setting 'select'].",
)
@click.option("--figures/--no-figures", default=True, show_default=True, help="Also draw figures.")
@where("Only these cells, e.g. rounds=5 or attack=alie.")
@click.option(
    "--compare", multiple=True, metavar="LABEL", help="Rank values of this label, too, instead of within each."
)
@click.option(
    "--columns",
    multiple=True,
    metavar="NAME,NAME",
    help="Columns of the printed tables, in this order: rank, labels, attacks, costs, or single ones by their heading.",
)
@click.option("--drop", multiple=True, metavar="NAME,NAME", help="Columns that printed tables leave out, e.g. costs.")
@click.option(
    "--names", type=PATH, help='TOML file with the names of methods and columns in print: "foe(eta=10)" = "FoE".'
)
@click.option("--all-pairs", is_flag=True, help="Ranks by all pairs of rows, not by each against the first.")
@plugins("Load methods (their papers) from a file.")
@FORMAT
def report(
    store: Path, *, site: Path | None, columns: tuple[str, ...], drop: tuple[str, ...], names: Path | None,
    all_pairs: bool, plugins: tuple[str, ...], form: str, **how: Any,
) -> int:  # fmt: skip
    """Print the leaderboard of STORE (e.g. runs/quickstart) and write it as CSV, Markdown, LaTeX, JSON and figures.

    STORE may also be a published board, here and in `plot` and `diff`.

    \b
    robustfl report runs/quickstart --site site --board board.json.gz
    robustfl report board.json.gz --out report
    robustfl report runs/quickstart --columns "defense,none,worst case" --names names.toml
    """
    from robustfl.reports.display import Display, columns_of, read_names
    from robustfl.reports.writing import publish_store

    papers = (lambda results: papers_of(results, plugins)) if site is not None else None
    display = Display(
        tuple(name for text in columns for name in columns_of(text)),
        tuple(name for text in drop for name in columns_of(text)),
        {} if names is None else read_names(names),
        all_pairs,
    )
    made = publish_store(
        store, site=site, papers=papers, display=display,
        on_board=lambda found, folder: print_board(found, form, full=str(folder / "leaderboard.csv")), **how,
    )  # fmt: skip
    for name in made.unused:
        say(f"{names}: nothing is called {name!r} here", err=True)
    if form == "json":
        return 0
    say("\nWritten:")
    drawn = [file for file in made.files if file.suffix in (".png", ".pdf")]
    for file in made.files:
        if file not in drawn:
            say(f"  {file}")
    if drawn:
        say(f"  {len(drawn)} figures (*.png, *.pdf) in {drawn[0].parent}")
    if made.site:
        say(f"  {made.site[0]} and {len(made.site) - 1} more files; open it in a browser")
    return 0


def papers_of(results: Iterable[CellResult], plugins: tuple[str, ...]) -> dict[str, str]:
    """The line ``paper`` of every method the records name and this installation knows, by ``"defense nnm"``."""
    from robustfl.registry import entries

    load_plugins(plugins)
    named = {str(method["name"]) for record in results for _, method in named_methods(record.cell)}
    return {f"{e.kind} {e.name}": e.cls.paper for e in entries() if e.name in named and e.cls.paper}


@click.command(cls=Command, short_help="Draw one kind of figure into a file.")
@click.argument("kind", type=Word(PLOTS), metavar="KIND")
@click.argument("store", type=PATH)
@click.option("--save", type=PATH, help="File, .pdf .png or .svg [default: KIND.pdf].")
@click.option("--metric", help="sa, ra, ... where the figure has one.")
@click.option("--width", type=click.Choice(["column", "page"]), help="For print: one column (3.4 in) or two (7 in).")
@click.option("--lines", type=click.Choice(["defense", "norm", "objective", "attack"]), help="What curves overlay.")
@where("Only these cells, e.g. attack=alie.")
def plot(kind: str, store: Path, *, save: Path | None, **how: Any) -> int:
    """Draw one KIND of figure of STORE into a file; several figures get numbers.

    KIND: curves, heatmap, breakdown, pareto, ranks, forgetting, labels, bn-pca, representations.

    \b
    robustfl plot breakdown runs/my-study --metric sa --save breakdown.pdf
    """
    from robustfl.reports.figures.plots import plot as draw

    files = draw(
        store, kind, save or Path(f"{kind}.pdf"), **how,
        on_problem=lambda words: say(f"not counted: {words}", err=True),
        on_caption=lambda words: say(f"caption: {words}", err=True),
    )  # fmt: skip
    for file in files:
        say(str(file))
    return 0


@click.command(cls=Command, short_help="Join the stores or boards of several people.")
@click.argument("sources", nargs=-1, required=True, metavar="STORE STORE...", type=PATH)
@click.option("--out", required=True, type=PATH, help="Folder of the joined store, or a board file (.json, .json.gz).")
@click.option("--source", "names", multiple=True, metavar="NAME", help="Who measured; once per store, in order.")
@tolerance("By how much the accuracies of one cell may differ between stores.")
@FORMAT
def merge(*, sources: tuple[Path, ...], out: Path, names: tuple[str, ...], tolerance: float, form: str) -> int:
    """Join the stores, or published boards, of several people; 1 and nothing written if they contradict each other.

    \b
    robustfl merge runs/mine yours.json.gz --out runs/ours
    robustfl merge runs/mine yours.json.gz --out ours.json.gz
    robustfl merge old-board.json --out board.json.gz        # the board in the present format
    """
    from robustfl.reports.published import merge as merging
    from robustfl.reports.published.diff import in_a_line
    from robustfl.scenarios.expand import default_labels

    if len(sources) < 2 and not sources[0].is_file():
        raise UsageError("merge: name at least two stores or boards, or one board to make a store of")
    read = merging.read_sources(sources, names)
    merged = merging.merge(read, tolerance=tolerance)
    if not merged.conflicts:
        merging.write_merge(merged, read, out, defaults=default_labels())
    if form == "json":
        as_json({
            "cells": len(merged.results), "agreed": merged.agreed, "copied": merged.copied,
            "out": None if merged.conflicts else str(out), "problems": merged.problems,
            "conflicts": [
                {"key": c.key, "first": c.first, "second": c.second, "differs": c.agreement.words()}
                for c in merged.conflicts
            ],
        })  # fmt: skip
        return 1 if merged.conflicts or merged.problems else 0
    for problem in merged.problems:
        say(f"not counted: {problem}", err=True)
    if merged.conflicts:
        rows = [
            [c.key[:12], in_a_line(c.labels), f"{c.first} → {c.second}", c.agreement.words()] for c in merged.conflicts
        ]
        console().print(table(["cell", "", "", ""], rows, title=f"{len(rows)} cells in conflict; nothing was written"))
        return 1
    for source in read:
        say(f"{source.name}: {len(source.results)} cells")
    twice = f", {merged.agreed} of them measured more than once and in agreement" if merged.agreed else ""
    say(f"{len(merged.results)} cells{twice}: {out}")
    if merged.copied:
        say(f"{merged.copied} cells are there as copies of one run's record, which measured them once")
    return 1 if merged.problems else 0


@click.command(cls=Command, short_help="Show where rows of one's own stand in a published table.")
@click.argument("mine", type=PATH)
@click.argument("published", required=False, type=PATH, metavar="[PUBLISHED]")
@click.option("--all", "whole", is_flag=True, help="All rows of the published table, not only the nearest ones.")
@FORMAT
def compare(*, mine: Path, published: Path | None, whole: bool, form: str) -> int:
    """Show where the rows of MINE, a store or board, stand in the table of a PUBLISHED board of the same tasks.

    Without PUBLISHED it is the closest of the boards that come with robustfl. 1 if no cell solves a task of it; what
    keeps cells out is printed.

    \b
    robustfl compare runs/my-study
    robustfl compare my-board.json.gz boards/bench-d-3.json.gz
    """
    from robustfl.reports.comparison import compare as comparing
    from robustfl.reports.tables import to_json
    from robustfl.scenarios.expand import default_labels

    found = comparing(mine, published, defaults=default_labels())
    code = 1 if found.board is None else 0
    if form == "json":
        made = None if found.board is None else json.loads(to_json(found.board))
        as_json({**dataclasses.asdict(dataclasses.replace(found, board=None)), "board": made})
        return code
    if whole and found.board is not None:
        print_board(found.board, form, full="")
    print_comparison(found, tables=not whole)
    return code


def print_comparison(found: Comparison, *, tables: bool = True) -> None:
    """Print where rows of one's own stand, what a reader must know of them, and what keeps cells out."""
    for title, lines in found.tables() if tables else ():
        console().print(table(["#", "row", "board", "unattacked", "worst case"], lines, title=f"{title}\n"))
        say()
    for words in found.notes:
        say(words)
    if found.left_out:
        say(f"{found.left_out} cells of {found.mine} solve no task of {found.published}:")
        rows = [[name, _short(", ".join(theirs)), _short(", ".join(own))] for name, theirs, own in found.differing]
        console().print(table(["", found.published, found.mine], rows))


@click.command(cls=Command, short_help="Explain what differs between two cells or stores.")
@click.argument("first")
@click.argument("second")
@click.option("--timing", is_flag=True, help="Also show times and machines, which differ between any two runs.")
@click.option("--limit", default=40, show_default=True, type=click.IntRange(1), help="Lines per part.")
@FORMAT
def diff(*, first: str, second: str, timing: bool, limit: int, form: str) -> int:
    """Explain what differs between two cells (STORE:KEY, or a record's file) or two stores; 1 if anything does.

    \b
    robustfl diff runs/quickstart:00af runs/quickstart:7c31
    robustfl diff runs/quickstart ../theirs/quickstart
    """
    from robustfl.reports.published.diff import CellDiff
    from robustfl.reports.published.diff import diff as compare

    found, sources = compare(first, second)
    for source in sources:
        for problem in source.problems:
            say(f"not counted: {problem}", err=True)
    if form == "json":
        as_json({"same": found.same, **dataclasses.asdict(found)})
    elif isinstance(found, CellDiff):
        heads = [found.first[:12], found.second[:12]] if found.first != found.second else [first, second]
        _cells(found, heads, timing=timing, limit=limit)
    else:
        _stores(found, limit=limit)
    return 0 if found.same else 1


def _cells(found: Any, heads: list[str], *, timing: bool, limit: int) -> None:
    parts = ["settings", "outcome", "certificates", "environment", *(["timing"] if timing else [])]
    shown = [(p, getattr(found, p)) for p in parts if getattr(found, p)]
    if not shown:
        say("The cells are the same.")
    for part, differences in shown:
        _table(part, [[path, _short(a), _short(b)] for path, a, b in differences], ["", *heads], limit)


def _stores(found: Any, *, limit: int) -> None:
    only = f"{found.only_first} only in {found.first}, {found.only_second} only in {found.second}"
    say(f"{found.common} cells in both, {only}.")
    if found.same:
        say("The stores hold the same cells with the same results.")
    rows = [[name, ", ".join(a) or "–", ", ".join(b) or "–"] for name, a, b in found.axes]
    _table("values only one has", rows, ["", found.first, found.second], limit)
    for title, name, counted in (
        ("cells that would be the same but for", "setting", found.explained),
        ("cells measured in another environment", "difference", found.environment),
    ):
        rows = [
            [f"{count}", "; ".join(f"{p}: {_short(a)} → {_short(b)}" for p, a, b in differences)]
            for differences, count in counted
        ]
        _table(title, rows, ["cells", name], limit)
    rows = [[key[:12], name, words] for key, name, words in found.results]
    _table("other results", rows, ["", "", "first → second"], limit)


def _table(title: str, rows: Sequence[list[str]], heads: list[str], limit: int) -> None:
    if rows:
        console().print(table(heads, list(rows[:limit]), title=f"\n{title}"))
    if len(rows) > limit:
        say(f"… and {len(rows) - limit} more; --limit shows them")


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 70 else text[:67] + "…"
