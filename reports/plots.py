"""Figures on demand: one kind of figure of a store, into the file the caller names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from robustfl.errors import StoreError, UsageError, closest
from robustfl.records import CellResult

from .frame import frame
from .loading import matching
from .ranking import rank_board
from .statistic import counted
from .store import open_store, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .board import Board

KINDS = ("curves", "heatmap", "breakdown", "pareto", "ranks", "forgetting", "labels", "bn-pca", "representations")
FORMATS = ("pdf", "png", "svg")
MAX_FIGURES = 40
_WHY_NONE = {
    "curves": "no record holds a curve of at least two points",
    "heatmap": "there is no finished cell",
    "breakdown": "only one value of f and one γ or α were run; make one of them an axis",
    "pareto": "fewer than two rows have both numbers of a worst case",
    "ranks": "Friedman's test needs three to forty contestants and two scenarios (task × attack) that all of them have",
    "forgetting": "no record holds certificates['forgetting']; give the grid forgetting = true and validation > 0",
    "labels": "no record holds label counts",
    "bn-pca": "no record holds certificates['bn_statistics'] (norms without statistics have none)",
    "representations": "no record holds certificates['representations']; give the grid representations = 20",
}


def plot(
    path: str | Path,
    kind: str,
    save: str | Path,
    *,
    metric: str | None = None,
    where: Mapping[str, str] | None = None,
    on_problem: Callable[[str], None] = lambda words: None,
) -> list[Path]:
    """Draw the figures of one kind from the store at ``path`` into ``save`` (pdf, png or svg).

    Several figures become ``x-1.pdf``, ``x-2.pdf``. ``metric`` keeps one metric, ``where`` cells with these labels
    (``"alie"`` matches every ``alie(...)``). ``on_problem`` is told of every file that is not counted. Returns the
    files. Raises ``UsageError`` if there is nothing to draw, saying what the records lack, ``StoreError`` if none of
    the files can be read.
    """
    if kind not in KINDS:
        raise UsageError(f"plot: no kind {kind!r}; {closest(kind, KINDS)}")
    target, form = target_of(save, "plot")
    store = open_store(path)
    loaded = store.load()
    problems = [f"{p.path.name}: {p.reason}" for p in loaded.problems]
    if problems and not loaded.results:
        raise StoreError(f"{store.folder}: none of {len(problems)} files is a record; {problems[0]}")
    for words in problems:
        on_problem(words)
    results = matching(loaded.results, where or {})
    from .figures import drawn

    found = [content for _, content in drawn(_figures(kind, results, metric), form)]
    if not found:
        raise UsageError(f"plot {kind}: {_WHY_NONE[kind]}")
    return write_numbered(target, found)


def target_of(save: str | Path, what: str) -> tuple[Path, str]:
    """A file that figures go into, and the form that its ending names; ``UsageError`` in the name of ``what``."""
    target = Path(save)
    form = target.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise UsageError(f"{what}: {str(save)!r} must end in .{', .'.join(FORMATS)}")
    return target, form


def write_numbered(target: Path, contents: Sequence[bytes]) -> list[Path]:
    """Write figures to ``target``, several of them as ``x-1.pdf``, ``x-2.pdf``; the files."""
    names = [target.with_name(f"{target.stem}-{i}{target.suffix}") for i in range(1, len(contents) + 1)]
    files = [target] if len(contents) == 1 else names
    for file, content in zip(files, contents, strict=True):
        write_atomic(file, content)
    return files


def figures_of(
    results: Sequence[CellResult], kind: str, *, metric: str | None = None, where: Mapping[str, str] | None = None
) -> list[Figure]:
    """The figures of one kind, of records. Raises ``UsageError`` if there is nothing to draw."""
    from .figures import titled

    chosen = matching(results, where or {})
    found = [figure for _, figure in titled(_figures(kind, chosen, metric))]
    if not found:
        raise UsageError(f"plot {kind}: {_WHY_NONE[kind]}")
    return found


def _figures(kind: str, results: Sequence[CellResult], metric: str | None) -> Iterator[tuple[str, Figure]]:
    from .figure_bn_pca import bn_pca_figures, representation_figures
    from .figure_curves import curves
    from .figure_distribution import distributions
    from .figure_forgetting import forgetting_maps

    by_records = {
        "curves": curves, "labels": distributions, "forgetting": forgetting_maps, "bn-pca": bn_pca_figures,
        "representations": representation_figures,
    }  # fmt: skip
    made = by_records[kind](results) if kind in by_records else _of_board(kind, _board(results, metric))
    for count, figure in enumerate(_checked(made, kind, metric), 1):
        if count > MAX_FIGURES:
            raise UsageError(f"plot {kind}: more than {MAX_FIGURES} figures; choose cells with --where LABEL=VALUE")
        yield figure


def _board(results: Sequence[CellResult], metric: str | None) -> Board:
    table, _ = counted(frame(results))
    board = rank_board(table)
    return board.select(metric=metric) if metric else board


def _of_board(kind: str, board: Board) -> Iterator[tuple[str, Figure]]:
    from .figure_breakdown import breakdown_figures
    from .figure_heatmap import heatmaps
    from .figure_pareto import pareto_figures
    from .figure_ranks import rank_figures

    makers = {"heatmap": heatmaps, "breakdown": breakdown_figures, "pareto": pareto_figures, "ranks": rank_figures}
    return makers[kind](board)


def _checked(made: Iterable[tuple[str, Figure]], kind: str, metric: str | None) -> Iterator[tuple[str, Figure]]:
    """Curves are of ``sa`` and ``ra``; other kinds that read records have no metric."""
    if metric is None or kind in ("heatmap", "breakdown", "ranks"):
        yield from made
        return
    if kind != "curves":
        raise UsageError(f"plot {kind} has no metric to choose")
    wanted = metric.lower()
    if wanted not in ("sa", "ra"):
        raise UsageError(f"plot curves: metric {metric!r} must be sa or ra")
    yield from ((title, figure) for title, figure in made if title.startswith(f"curves {wanted} "))
