"""A static site of a board: pages that work from ``file://``, without a network and, but for sorting, without scripts.

The same store gives the same bytes: nothing on a page depends on the time, the machine or the order of files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from robustfl.records import CellResult

from ..board import Board, row_name
from ..contestants import contestants, entries, slug_of
from ..paired import LEVEL, METHOD, compare
from ..rank_test import rank_over_scenarios
from ..store import write_atomic
from ..tables.columns import remarks, state_counts
from ..tables.writing import FORMS
from ..tradeoff import best_first, breakdowns, pareto
from .charts import LOOKS, scatter
from .pages import breakdown_chart, facts_of, heat_grids, label_plots, state_words
from .tables import everything, notes_of, ranking

TEMPLATES = Path(__file__).parents[1] / "templates"
ASSETS = ("style.css", "site.js")
DOWNLOADS = {"csv": "CSV", "json": "JSON", "tex": "LaTeX", "md": "Markdown"}


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
    written = []
    for name, text in _files(board, results, description, papers or {}, figures):
        written.append(Path(folder) / name)
        write_atomic(written[-1], text)
    return written


def _files(
    board: Board, results: Sequence[CellResult], description: str, papers: Mapping[str, str], figures: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The names and contents of the site's files."""
    known = entries(board, results)
    notes = notes_of(board, known)
    templates = template_environment()
    shared = {
        "board": board,
        "description": description,
        "remarks": remarks(board),
        "counts": state_counts(board),
        "downloads": DOWNLOADS,
        "figures": figures,
        "sources": state_words(known),
        "doubts": len(notes.doubts),
        "version": version("robustfl"),
    }
    pages: dict[str, dict[str, Any]] = {
        "index": {"table": ranking(board, notes), **_pareto(board)},
        "results": {"table": everything(board, notes), "unreadable": board.problems},
        "heatmaps": {"grids": heat_grids(board, notes)},
        "plots": _plots(board, results),
        "statistics": _statistics(board),
        "about": {"constants": board.constants, "versions": board.versions},
    }
    for name, facts in pages.items():
        page = templates.get_template(f"{name}.html")
        yield f"{name}.html", page.render(shared | facts | {"page": name, "up": ""})
    page = templates.get_template("contestant.html")
    for contestant in contestants(board, known):
        facts = {"it": facts_of(board, contestant, notes, papers), "page": "", "up": "../"}
        yield f"contestants/{contestant.slug}.html", page.render(shared | facts)
    for asset in ASSETS:
        yield asset, (TEMPLATES / asset).read_text(encoding="utf-8")
    for suffix in DOWNLOADS:
        yield f"leaderboard.{suffix}", FORMS[suffix](board)


def template_environment() -> Environment:
    """The templates, which escape what they are given."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, auto_reload=False,
    )  # fmt: skip
    made.filters["look"] = lambda number: int(number) % LOOKS
    return made


def _pareto(board: Board) -> dict[str, Any]:
    found = pareto(board)
    points = [(row_name(board.label_names, n), x, y) for n, x, y in found.points]
    chart = None
    if points:
        chart = scatter("Clean against robust", points, x_label=found.x_label, y_label=found.y_label, front=found.front)
    kept = [(*points[i], slug_of(found.points[i][0])) for i in found.front]
    return {"pareto": chart, "front": kept, "pareto_left_out": found.left_out, "pareto_labels": found}


def _plots(board: Board, results: Sequence[CellResult]) -> dict[str, Any]:
    """Label distributions, and the breakdown curves of the best rows in one drawing per metric."""
    labels, large = label_plots(results)
    drawn, most = [], 0
    known: dict[str, dict[str, int]] = defaultdict(dict)
    for found in breakdowns(board):
        best = replace(found, lines=tuple(best_first(found)[:LOOKS]))
        drawn.append(breakdown_chart(best, known[found.against], f", against {found.against}"))
        most = max(most, len(found.lines))
    return {"labels": labels, "labels_left_out": large, "breakdown": drawn, "breakdown_lines": most, "looks": LOOKS}


def _statistics(board: Board) -> dict[str, Any]:
    tables = [next(s for s in board.sections if s.metric == m) for m in board.metrics]
    return {
        "comparisons": [(s.metric_title, compare(s)) for s in tables],
        "rankings": [(s.metric_title, rank_over_scenarios(board, s.metric)) for s in tables],
        "rows": {own: (row_name(board.label_names, own), slug_of(own)) for own in {row.labels for row in board.rows}},
        "level": LEVEL,
        "method": METHOD,
        "table": board.blocks[0] if board.task_names else "",
    }
