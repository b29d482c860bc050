"""A static site of a board: pages that work from ``file://``, without a network and, but for sorting, without scripts.

The same store gives the same bytes: nothing on a page depends on the time, the machine or the order of files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from robustfl.records import CellResult

from ..board import Board, row_name
from ..contestants import Contestant, contestants, entries
from ..paired import LEVEL, METHOD, compare
from ..rank_test import rank_over_scenarios
from ..store import write_atomic
from ..tables.columns import remarks, state_counts
from ..tables.writing import FORMS
from ..tradeoff import breakdowns, pareto
from .charts import LOOKS, scatter
from .pages import breakdown_chart, heat_grids, label_plots, page, state_words
from .tables import Notes, everything, notes_of, ranking

TEMPLATES = Path(__file__).parents[1] / "templates"
ASSETS = ("style.css", "site.js")
DOWNLOADS = {"csv": "CSV", "json": "JSON", "tex": "LaTeX", "md": "Markdown"}


@dataclass(frozen=True)
class Site:
    """The data every page needs: the board and what is made of it once."""

    board: Board
    results: tuple[CellResult, ...]
    description: str
    found: tuple[Contestant, ...]
    notes: Notes
    papers: Mapping[str, str]
    figures: tuple[str, ...]


def write_site(
    board: Board,
    results: Sequence[CellResult],
    folder: str | Path,
    *,
    description: str = "",
    papers: Mapping[str, str] | None = None,
    figures: Sequence[str] = (),
) -> list[Path]:
    """Write the site of a board into ``folder``; returns the files, the first page first.

    ``papers`` maps ``"defense nnm"`` and the like to methods' lines ``paper``; ``figures`` are files under
    ``folder`` to link to.
    """
    known = entries(board, results)
    found = tuple(contestants(board, known))
    notes = notes_of(board, known)
    site = Site(board, tuple(results), description, found, notes, papers or {}, tuple(figures))
    environment = _environment()
    shared = _shared(site, sources=state_words(known))
    written = []

    def put(name: str, content: str | bytes) -> None:
        write_atomic(Path(folder) / name, content)
        written.append(Path(folder) / name)

    for name, facts in (
        ("index", {"table": ranking(board, found, notes), **_pareto(board, found)}),
        ("results", {"table": everything(board, found, notes), "unreadable": board.problems}),
        ("heatmaps", {"grids": heat_grids(board, found, notes)}),
        ("plots", _plots(site)),
        ("statistics", _statistics(board, found)),
        ("about", {"constants": board.constants, "versions": board.versions}),
    ):
        put(f"{name}.html", environment.get_template(f"{name}.html").render(shared | facts | {"page": name, "up": ""}))
    template = environment.get_template("contestant.html")
    for contestant in found:
        facts = {"it": page(board, contestant, notes, site.papers)}
        put(f"contestants/{contestant.slug}.html", template.render(shared | facts | {"page": "", "up": "../"}))
    for asset in ASSETS:
        put(asset, (TEMPLATES / asset).read_bytes())
    for suffix in DOWNLOADS:
        put(f"leaderboard.{suffix}", FORMS[suffix](board))
    return written


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, auto_reload=False,
    )  # fmt: skip
    made.filters["look"] = lambda number: int(number) % LOOKS
    return made


def _shared(site: Site, *, sources: str) -> dict[str, Any]:
    board = site.board
    return {
        "board": board,
        "description": site.description,
        "remarks": remarks(board),
        "counts": state_counts(board),
        "downloads": DOWNLOADS,
        "figures": site.figures,
        "sources": sources,
        "doubts": len(site.notes.doubts),
        "version": version("robustfl"),
    }


def _pareto(board: Board, of: Sequence[Contestant]) -> dict[str, Any]:
    found = pareto(board)
    slugs = {row.labels: c.slug for c in of for _, row in c.rows}
    points = [(row_name(board.label_names, n), x, y) for n, x, y in found.points]
    chart = None
    if points:
        chart = scatter("Clean against robust", points, x_label=found.x_label, y_label=found.y_label, front=found.front)
    kept = [(*points[i], slugs[found.points[i][0]]) for i in found.front]
    return {"pareto": chart, "front": kept, "pareto_left_out": found.left_out, "pareto_labels": found}


def _plots(site: Site) -> dict[str, Any]:
    """Label distributions, and the breakdown curves of the best rows in one drawing per metric."""
    labels, large = label_plots(site.results)
    drawn, most = [], 0
    known: dict[str, dict[str, int]] = defaultdict(dict)
    for found in breakdowns(site.board, [row.labels for c in site.found for _, row in c.rows]):
        best = replace(found, lines=tuple(sorted(found.lines, key=_height, reverse=True)[:LOOKS]))
        drawn.append(breakdown_chart(best, known[found.against], f", against {found.against}"))
        most = max(most, len(found.lines))
    return {"labels": labels, "labels_left_out": large, "breakdown": drawn, "breakdown_lines": most, "looks": LOOKS}


def _height(line: tuple[str, Sequence[tuple[float, float]]]) -> float:
    return sum(y for _, y in line[1]) / len(line[1])


def _statistics(board: Board, of: Sequence[Contestant]) -> dict[str, Any]:
    tables = [next(s for s in board.sections if s.metric == m) for m in board.metrics]
    return {
        "comparisons": [(s.metric_title, compare(s)) for s in tables],
        "rankings": [(s.metric_title, rank_over_scenarios(board, s.metric)) for s in tables],
        "rows": {row.labels: (row_name(board.label_names, row.labels), c.slug) for c in of for _, row in c.rows},
        "names": {tuple(v for _, v in c.labels): (c.name, c.slug) for c in of},
        "level": LEVEL,
        "method": METHOD,
        "table": board.blocks[0] if board.task_names else "",
    }
