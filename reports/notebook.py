"""Boards and figures in notebooks: HTML tables, and figures as matplotlib axes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from robustfl.records import CellResult

from .board import Board, Section
from .paired import words_below
from .tables.columns import Markup, remarks, state_counts, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_HTML = Markup(escape, " <sup>{}</sup>", "<b>{}</b>")


def to_html(board: Board) -> str:
    """All tables of a board with their caption and footnotes, as a part of an HTML page."""
    parts = [f"<p><b>{escape(board.scenario)}</b>. {escape(board.caption)}</p>"]
    for section in board.sections:
        parts += [f"<h4>{escape(title(board, section))}</h4>", _table(board, section)]
        parts += [f"<p>{escape(words_below(section))}</p>"] if words_below(section) else []
    parts += [f"<p>{escape(' '.join(board.notes))}</p>"] if board.notes else []
    parts += [f"<p><sup>{escape(mark)}</sup> {escape(text)}</p>" for mark, text in remarks(board)]
    return "\n".join([*parts, f"<p>Cells: {escape(state_counts(board))}.</p>"])


def _table(board: Board, section: Section) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HTML.head(board))
    lines = ("".join(f"<td>{text}</td>" for text in _HTML.line(board, row)) for row in section.rows)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


class Drawn(list["Axes"]):
    """The axes of one kind of figures, to go on drawing on; a notebook shows the ``figures`` they are in."""

    def __init__(self, kind: str, figures: Iterable[Figure]) -> None:
        self.kind, self.figures = kind, tuple(figures)
        super().__init__(axes for figure in self.figures for axes in figure.axes)

    def __repr__(self) -> str:
        return f"<{self.kind}: {len(self)} axes in {len(self.figures)} figures>"

    def _repr_html_(self) -> str:
        from .figures.writing import picture

        shown = [b64encode(picture(figure, "png")).decode() for figure in self.figures]
        return "\n".join(f'<img style="max-width: 100%" src="data:image/png;base64,{data}">' for data in shown)

    def save(self, path: str | Path) -> list[Path]:
        """Write the figures to ``path`` (pdf, png or svg), several of them as ``x-1.pdf``, ``x-2.pdf``."""
        from .figures.plots import target_of, write_numbered
        from .figures.writing import picture

        target, form = target_of(path, "save")
        return write_numbered(target, [picture(figure, form) for figure in self.figures])


class Plots:
    """The kinds of figures of some records; each is a method that returns matplotlib axes (``Drawn``).

    ``metric`` keeps one metric, ``where`` the cells with these labels, as for ``robustfl plot``. Each raises
    ``UsageError`` if there is nothing to draw, saying what the records lack.
    """

    def __init__(self, records: Callable[[], list[CellResult]]) -> None:
        self._records = records

    @classmethod
    def of(cls, path: str | Path) -> Plots:
        """The figures of the store or board at ``path``: ``Plots.of("runs/quickstart").heatmap()``."""
        from .sources import open_source

        return cls(lambda: list(open_source(path).load().results))

    def heatmap(self, *, metric: str | None = None, where: Mapping[str, str] | None = None) -> Drawn:
        """Contestants against attacks."""
        return self._drawn("heatmap", metric, where)

    def breakdown(self, *, metric: str | None = None, where: Mapping[str, str] | None = None) -> Drawn:
        """Worst case against the number of attackers or heterogeneity."""
        return self._drawn("breakdown", metric, where)

    def pareto(self, *, where: Mapping[str, str] | None = None) -> Drawn:
        """Standard against robust accuracy."""
        return self._drawn("pareto", None, where)

    def ranks(self, *, metric: str | None = None, where: Mapping[str, str] | None = None) -> Drawn:
        """Mean ranks with the critical difference."""
        return self._drawn("ranks", metric, where)

    def curves(
        self, *, metric: str | None = None, where: Mapping[str, str] | None = None, lines: str | None = None
    ) -> Drawn:
        """Accuracy by round; ``lines`` is the label that panels overlay: ``defense``, ``norm`` or ``objective``."""
        return self._drawn("curves", metric, where, lines)

    def forgetting(self, *, where: Mapping[str, str] | None = None) -> Drawn:
        """Client forgetting, model by data."""
        return self._drawn("forgetting", None, where)

    def labels(self, *, where: Mapping[str, str] | None = None) -> Drawn:
        """Which client has how many images of each class."""
        return self._drawn("labels", None, where)

    def bn_pca(self, *, where: Mapping[str, str] | None = None) -> Drawn:
        """The clients' batch-norm statistics in two dimensions."""
        return self._drawn("bn-pca", None, where)

    def representations(self, *, where: Mapping[str, str] | None = None) -> Drawn:
        """Inputs of the last layer for test images, clean and attacked, in two dimensions."""
        return self._drawn("representations", None, where)

    def _drawn(self, kind: str, metric: str | None, where: Mapping[str, str] | None, lines: str | None = None) -> Drawn:
        from .figures.plots import figures_of

        return Drawn(kind, figures_of(self._records(), kind, metric=metric, where=where, lines=lines))
