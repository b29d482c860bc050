"""Figures: heatmaps, trade-offs, ranks, curves, label distributions, forgetting; each as PNG and PDF.

Figures are made without pyplot, under matplotlib's defaults, and carry no dates: the same records give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..board import Board
from ..store import write_atomic
from .breakdown import breakdown_figures
from .curves import curves
from .distribution import distributions
from .forgetting import forgetting_maps
from .heatmap import heatmaps
from .pareto import pareto_figures
from .ranks import rank_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_PIXELS = 6000
PARTS = ("heatmaps", "summaries", "sa", "ra")
APART = 3000
"""From so many records on, starting a second process pays."""
_DATELESS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def write_figures(board: Board, results: Sequence[CellResult], folder: str | Path) -> list[Path]:
    """Write every figure the records have data for into ``folder``; returns the files.

    Half of the figures of a large store are drawn by a second process; the files are the same.
    """
    if len(results) < APART:
        return [path for part in PARTS for path in _part(part, board, results, folder)]
    from joblib.externals.loky import get_reusable_executor

    with get_reusable_executor(max_workers=1, timeout=60) as second:
        theirs = {part: second.submit(_part, part, board, results, folder) for part in ("ra", "heatmaps")}
        own = {part: _part(part, board, results, folder) for part in PARTS if part not in theirs}
        drawn = own | {part: future.result() for part, future in theirs.items()}
    return [path for part in PARTS for path in drawn[part]]


def _part(part: str, board: Board, results: Sequence[CellResult], folder: str | Path) -> list[Path]:
    if part == "heatmaps":
        figures = heatmaps(board)
    elif part == "summaries":
        figures = chain(summaries(board, results), forgetting_maps(results))
    else:
        figures = curves(results, [part])
    written: list[Path] = []
    taken: set[str] = set()
    for title, figure in titled(figures):
        stem = _free(title, taken)
        for form in ("png", "pdf"):
            written.append(Path(folder) / f"{stem}.{form}")
            write_atomic(written[-1], picture(figure, form))
    return written


def summaries(board: Board, results: Sequence[CellResult]) -> Iterator[tuple[str, Figure]]:
    """Clean against robust, breakdown, ranks, label distributions.

    Batch-norm statistics are drawn on demand (``plots``): there is a figure for every cell but its seed.
    """
    yield from pareto_figures(board)
    yield from breakdown_figures(board)
    yield from rank_figures(board)
    yield from distributions(results)


def titled(figures: Iterable[tuple[str, Figure]]) -> Iterator[tuple[str, Figure]]:
    """The titles and figures themselves, laid out once for all forms, in the look of all figures."""
    with _style():
        for title, figure in figures:
            engine = figure.get_layout_engine()
            if engine is not None:
                engine.execute(figure)
            figure.set_layout_engine("none")
            yield title, figure


def picture(figure: Figure, form: str) -> bytes:
    """A figure as the bytes of a ``pdf``, ``png`` or ``svg`` file."""
    out = io.BytesIO()
    dpi = min(160.0, _MAX_PIXELS / max(figure.get_size_inches()))
    with _style():
        figure.savefig(out, format=form, dpi=dpi, metadata=_DATELESS[form], facecolor="white")
    return out.getvalue()


def _free(title: str, taken: set[str]) -> str:
    """A file name made of ``title`` that no other figure has."""
    base = re.sub(r"[^a-z0-9.=]+", "-", title.lower()).strip("-.")[:100]
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name


@contextmanager
def _style() -> Iterator[None]:
    """The look of all figures, with the caller's settings restored afterwards."""
    import matplotlib
    import seaborn

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        look = seaborn.axes_style("whitegrid") | seaborn.plotting_context("paper", font_scale=1.1)
        look |= {
            "grid.color": "#e6e6e6",
            "axes.edgecolor": "#9a9a9a",
            "axes.linewidth": 0.8,
            "pdf.fonttype": 42,
            "svg.hashsalt": "robustfl",
        }
        look |= {"font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"], "axes.titlesize": 10}
        matplotlib.rcParams.update(look)
        yield
