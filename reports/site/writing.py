"""A static site of a board: pages that work from ``file://``, without a network and, but for sorting, without scripts.

The same store gives the same bytes: nothing on a page depends on the time, the machine or the order of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from robustfl.records import CellResult

from ..board import Board, row_name, slug_of
from ..columns import remarks, state_counts
from ..figures.clients import distributions
from ..figures.curves import curves
from ..figures.layout import picture, titled
from ..figures.summaries import breakdown_figures, pareto_figures
from ..paired import LEVEL, METHOD, compare, rank_over_scenarios
from ..store import write_atomic
from ..tables import FORMS
from ..tradeoff import pareto
from .pages import contestants, entries, everything, facts_of, heat_grids, notes_of, ranking, state_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parents[1] / "templates"
ASSETS = ("style.css", "site.js")
MAX_PICTURES = 12
"""So many pictures of one kind stand on a page; ``robustfl plot`` draws all."""
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
    for name, content in _files(board, results, description, papers or {}, figures):
        written.append(Path(folder) / name)
        write_atomic(written[-1], content)
    return written


def _files(
    board: Board, results: Sequence[CellResult], description: str, papers: Mapping[str, str], figures: Sequence[str]
) -> Iterator[tuple[str, str | bytes]]:
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
    pictures: dict[str, bytes] = {}
    pages: dict[str, dict[str, Any]] = {
        "index": {"table": ranking(board, notes), "drawn": _drawn("pareto", pareto_figures(board), pictures)}
        | _pareto(board),
        "results": {"table": everything(board, notes), "unreadable": board.problems},
        "heatmaps": {"grids": heat_grids(board, notes)},
        "plots": {
            "breakdown": _drawn("breakdown", breakdown_figures(board), pictures),
            "labels": _drawn("labels", distributions(results), pictures),
        },
        "statistics": _statistics(board),
        "about": {"constants": board.constants, "versions": board.versions},
    }
    for name, facts in pages.items():
        page = templates.get_template(f"{name}.html")
        yield f"{name}.html", page.render(shared | facts | {"page": name, "up": ""})
    page = templates.get_template("contestant.html")
    for contestant in contestants(board, known):
        labels, stem = tuple(label for _, label in contestant.labels), f"contestants/{contestant.slug}"
        facts = facts_of(board, contestant, notes, papers) | {
            "curves": _drawn(f"{stem}-curves", curves(contestant.records, ("sa",), lines="attack"), pictures),
            "breakdown": _drawn(f"{stem}-breakdown", breakdown_figures(board, labels=labels), pictures),
        }
        yield f"{stem}.html", page.render(shared | {"it": facts, "page": "", "up": "../"})
    yield from pictures.items()
    for asset in ASSETS:
        yield asset, (TEMPLATES / asset).read_text(encoding="utf-8")
    for suffix in DOWNLOADS:
        yield f"leaderboard.{suffix}", FORMS[suffix](board)


def _drawn(stem: str, figures: Iterator[tuple[str, Figure]], pictures: dict[str, bytes]) -> list[tuple[str, str]]:
    """Add the figures to ``pictures``; the names of their files and the words for those who cannot see them."""
    made = []
    for i, (words, figure) in enumerate(islice(titled(figures), MAX_PICTURES), 1):
        pictures[f"{stem}-{i}.svg"] = picture(figure, "svg")
        made.append((f"{stem}-{i}.svg", words))
    return made


def template_environment() -> Environment:
    """The templates, which escape what they are given."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, auto_reload=False,
    )  # fmt: skip


def _pareto(board: Board) -> dict[str, Any]:
    """The rows that no other beats, with their numbers and pages."""
    found = pareto(board)
    front = [found.points[i] for i in found.front]
    kept = [(row_name(board.label_names, labels), x, y, slug_of(labels)) for labels, x, y in front]
    return {"front": kept, "pareto_left_out": found.left_out, "pareto_labels": found}


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
