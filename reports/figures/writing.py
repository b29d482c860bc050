"""Figures: heatmaps, trade-offs, ranks, curves, label distributions, forgetting; each as PNG and PDF.

Figures are made without pyplot, under matplotlib's defaults, and carry no dates: the same records give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustfl.records import CellResult

from ..board import Board
from ..store import write_atomic
from .clients import distributions, forgetting_maps
from .curves import curves
from .heatmap import heatmaps
from .summaries import breakdown_figures, pareto_figures, rank_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_PIXELS = 6000
_DATELESS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def write_figures(board: Board, results: Sequence[CellResult], folder: str | Path) -> list[Path]:
    """Write every figure the records have data for into ``folder``; returns the files.

    Batch-norm statistics are drawn on demand (``plots``): there is a figure for every cell but its seed.
    """
    drawn = (heatmaps(board), pareto_figures(board), breakdown_figures(board), rank_figures(board),
             distributions(results), forgetting_maps(results), curves(results))  # fmt: skip
    written: list[Path] = []
    taken: Counter[str] = Counter()
    for title, figure in titled(chain(*drawn)):
        base = re.sub(r"[^a-z0-9.=]+", "-", title.lower()).strip("-.")[:100]
        taken[base] += 1
        stem = base if taken[base] == 1 else f"{base}-{taken[base]}"
        for form in ("png", "pdf"):
            written.append(Path(folder) / f"{stem}.{form}")
            write_atomic(written[-1], picture(figure, form))
    return written


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


@contextmanager
def _style() -> Iterator[None]:
    """The look of all figures, with the caller's settings restored afterwards."""
    import matplotlib
    import seaborn

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # names may hold any sign
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
