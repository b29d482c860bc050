"""Figures in notebooks, as matplotlib axes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robustfl.records import CellResult

from .figures.layout import picture
from .figures.plots import KINDS, figures_of, target_of, write_numbered
from .loading import open_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Drawn(list["Axes"]):
    """The axes of one kind of figures, to go on drawing on; a notebook shows the ``figures`` they are in."""

    def __init__(self, kind: str, figures: Iterable[Figure]) -> None:
        self.kind, self.figures = kind, tuple(figures)
        super().__init__(axes for figure in self.figures for axes in figure.axes)

    def __repr__(self) -> str:
        return f"<{self.kind}: {len(self)} axes in {len(self.figures)} figures>"

    def _repr_html_(self) -> str:
        shown = [b64encode(picture(figure, "png")).decode() for figure in self.figures]
        return "\n".join(f'<img style="max-width: 100%" src="data:image/png;base64,{data}">' for data in shown)

    def save(self, path: str | Path) -> list[Path]:
        """Write the figures to ``path`` (pdf, png or svg), several of them as ``x-1.pdf``, ``x-2.pdf``."""
        target, form = target_of(path, "save")
        return write_numbered(target, [picture(figure, form) for figure in self.figures])


class Plots:
    """The figures of some records: a method for each kind of ``robustfl plot``, which returns matplotlib axes.

    Those are ``heatmap breakdown pareto ranks curves forgetting labels bn_pca representations``. ``metric`` keeps one
    metric, ``where`` the cells with these labels, ``lines`` is the label that panels of curves overlay. Each raises
    ``UsageError`` if there is nothing to draw, saying what the records lack.
    """

    def __init__(self, records: Callable[[], list[CellResult]]) -> None:
        self._records = records

    @classmethod
    def of(cls, path: str | Path) -> Plots:
        """The figures of the store or board at ``path``: ``Plots.of("runs/quickstart").heatmap()``."""
        return cls(lambda: list(open_source(path).load().results))


def _method(kind: str) -> Callable[..., Drawn]:
    def draw(
        self: Plots, *, metric: str | None = None, where: Mapping[str, str] | None = None, lines: str | None = None
    ) -> Drawn:
        return Drawn(kind, figures_of(self._records(), kind, metric=metric, where=where, lines=lines))

    draw.__doc__ = f"{KINDS[kind].shows}."
    return draw


for _kind in KINDS:
    setattr(Plots, _kind.replace("-", "_"), _method(_kind))
