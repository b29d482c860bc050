"""The look of all figures: line breaks, panel headings, the order of defenses, margins, the files they go into.

Figures are made without pyplot, under matplotlib's defaults, and carry no dates: the same records give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from robustfl.errors import UsageError

from ..board import natural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine

WIDTHS = {"column": 3.4, "page": 7.0}
"""Inches of one column of a two-column paper, and of both."""
SMALLEST, SMALLEST_SCALE = 5.0, 0.55
"""Points, below which letters are not read in print; and how far a figure may shrink before its letters collide."""
COMFORTABLE = 0.66
"""How far panels shrink before fewer of them stand side by side."""
MARKERS = "osD^vPX<>*"
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


def wrapped(name: str, width: float = 24) -> str:
    """A long method name broken after ``+``, ``(``, ``,`` or ``·`` into lines of about ``width`` letters.

    >>> wrapped("trimmed-mean · naive-bn · γ = 0.5", 26)
    'trimmed-mean · naive-bn ·\\nγ = 0.5'
    """
    lines = [""]
    for part in re.findall(r"(?:[^+,(· ]| = )*(?: ·|[+,(·])?\s*", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line.strip())


def panel_title(norm: str, block: str, inches: float) -> str:
    """The heading of a panel that is so many inches wide: on one line if it fits."""
    letters = 12 * inches
    parts = [p for p in (norm, block) if p]
    one = " · ".join(parts)
    return one if len(one) <= letters else "\n".join(wrapped(p, letters) for p in parts)


def longest(names: Iterable[str]) -> int:
    """The letters of the longest line among ``names``."""
    return max((len(line) for name in names for line in name.splitlines()), default=0)


def tallest(names: Iterable[str]) -> int:
    """The lines of the tallest among ``names``."""
    return max(name.count("\n") + 1 for name in names)


def roomy(width: float, *, between: float = 0.02) -> LayoutEngine:
    """A layout for a figure ``width`` inches wide that keeps labels, which it measures a little short, off the edge."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    edge = 0.12 / width
    return ConstrainedLayoutEngine(rect=(edge, 0, 1 - 2 * edge, 1), wspace=between)


def simple_first(defense: str) -> tuple[bool, int, Any]:
    """A sort key: the plain mean, then single rules, then pipelines."""
    return defense != "mean", defense.count("+"), natural(defense)


def across(panels: int, width: str | None, *, each: float, edge: float) -> int:
    """The number of panels side by side, each so many inches wide beside an edge: all, or what is read in print.

    >>> across(3, None, each=2.75, edge=1), across(3, "page", each=2.75, edge=1), across(3, "column", each=2.75, edge=1)
    (3, 3, 1)
    """
    if width is None:
        return panels
    return max(1, min(panels, int((WIDTHS[width] / COMFORTABLE - edge) / each)))


def in_rows(panels: int, row: int, width: str | None, *, each: float, edge: float) -> int:
    """The number of panels side by side (``across``) of rows of so many, so that no row of the figure stays open."""
    beside = across(row, width, each=each, edge=edge)
    return row if beside == row else max(k for k in range(1, beside + 1) if panels % k == 0)


def fitted(figure: Figure, kind: str, width: str) -> None:
    """Bring a figure to the width of a column or a page, its letters with it.

    Raises ``UsageError`` where letters would become too small to read.
    """
    from matplotlib.text import Text

    wide, tall = figure.get_size_inches()
    scale = min(1.0, WIDTHS[width] / wide)
    if scale < SMALLEST_SCALE:
        remedy = "--width page, or " if width == "column" else ""
        raise UsageError(
            f"plot {kind}: the figure is {wide:.1f} inches wide, and in {WIDTHS[width]:g} its letters could not be "
            f"read; use {remedy}--where LABEL=VALUE for fewer panels"
        )
    for shown in figure.findobj(Text):
        shown.set_fontsize(max(SMALLEST, shown.get_fontsize() * scale))
    figure.set_size_inches(WIDTHS[width], tall * scale)


def heat_map(
    axes: Axes,
    values: Sequence[Sequence[float]],
    texts: Sequence[Sequence[tuple[str, float]]],
    *,
    cmap: str,
    low: float,
    high: float,
    linewidth: float,
) -> QuadMesh:
    """Draw rows of values from the top, grey where there is none, with ``texts`` and their sizes on top.

    Not seaborn's: it draws the whole figure once per panel, seconds for a large board.
    """
    import numpy as np

    table = np.ma.masked_invalid(np.array(values, dtype=float))
    mesh = axes.pcolormesh(table, cmap=cmap, vmin=low, vmax=high, edgecolors="white", linewidth=linewidth)
    axes.set(xlim=(0, table.shape[1]), ylim=(len(values), 0), facecolor="#ececec")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for y, line in enumerate(texts):
        for x, (text, size) in enumerate(line):
            colour = "white" if values[y][x] <= low + 0.55 * (high - low) else "black"  # black where it is NaN
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour, fontsize=size)
    return mesh


_MAX_PIXELS = 6000
_DATELESS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


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
