"""Figures on demand: one kind of figure of a store, into the file the caller names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robustfl.errors import StoreError, UsageError, closest
from robustfl.records import CellResult

from ..captions import setting
from ..frame import frame
from ..loading import board_of, matching
from ..ranking import NO_ATTACK, rank_board
from ..statistic import counted
from ..store import open_store, refuse_no_file, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..board import Board

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
    width: str | None = None,
    lines: str | None = None,
    on_problem: Callable[[str], None] = lambda words: None,
    on_caption: Callable[[str], None] = lambda words: None,
) -> list[Path]:
    """Draw the figures of one kind from the store at ``path`` into ``save`` (pdf, png or svg).

    Several figures become ``x-1.pdf``, ``x-2.pdf``. ``metric`` keeps one metric, ``where`` cells with these labels
    (``"alie"`` matches every ``alie(...)``). ``width`` is that of a ``column`` or a ``page`` of a paper, 3.4 or 7
    inches; ``lines`` the label whose values the panels of curves overlay: ``defense``, ``norm`` or ``objective``.
    ``on_problem`` is told of every file that is not counted, ``on_caption`` a sentence to print below the figures.
    Returns the files. Raises ``UsageError`` if there is
    nothing to draw, saying what the records lack, ``StoreError`` if none of the files can be read.
    """
    if kind not in KINDS:
        raise UsageError(f"plot: no kind {kind!r}; {closest(kind, KINDS)}")
    target, form = target_of(save, "plot")
    refuse_no_file("save", target)
    store = open_store(path)
    loaded = store.load()
    problems = [f"{p.path.name}: {p.reason}" for p in loaded.problems]
    if problems and not loaded.results:
        raise StoreError(f"{store.folder}: none of {len(problems)} files is a record; {problems[0]}")
    for words in problems:
        on_problem(words)
    results = matching(loaded.results, where or {})
    from .writing import picture

    board = partial(board_of, store, where=where, loaded=loaded)
    figures = _drawn(kind, _figures(kind, results, board, metric, width, lines))
    files = write_numbered(target, [picture(figure, form) for figure in figures])
    on_caption(caption_of(results, kind, store.description().get("defaults")))
    return files


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


_SHOWS = {
    "curves": "Accuracy by round, mean and range over seeds",
    "heatmap": "Accuracy of every defense under every attack, and the worst case, mean over seeds",
    "breakdown": "Worst-case accuracy, mean over seeds; a divergence counts as zero",
    "pareto": "Clean against robust accuracy in the worst case; numbered rows are beaten by no other in both",
    "ranks": "Mean ranks over scenarios; contestants whose bars overlap do not differ by Nemenyi's test",
    "forgetting": "Accuracy that a client's local training loses on the data of the others, and what is left",
    "labels": "Samples per client and class",
    "bn-pca": "Clients' batch-norm means and variances in two principal components, lowest seed",
    "representations": "Inputs of the last layer for test images in two principal components, lowest seed",
}


_OF_BOARDS = ("heatmap", "breakdown", "pareto", "ranks")


def caption_of(results: Sequence[CellResult], kind: str, defaults: object = None) -> str:
    """Sentences for below a figure: what it shows with the settings that are not the ``defaults``, and which numbers.

    Where a store does not know its defaults, all settings are named.
    """
    board = _ranked(results, defaults)
    told = setting(board)
    seeds = len({r.labels.get("seed") for r in results if r.status == "done"})
    count = f"; {seeds} seeds" if seeds > 1 and "seed" in _SHOWS[kind] and "lowest" not in _SHOWS[kind] else ""
    shown = f"{_SHOWS[kind]} ({told}{count})." if told else f"{_SHOWS[kind]}{count}."
    apart = [f"{words}." for words in board.footnotes if words.startswith(f"{NO_ATTACK}:")]
    numbers = [counted(frame(results))[1], *apart] if kind in _OF_BOARDS else []
    return " ".join(filter(None, [shown, *numbers]))


def figures_of(
    results: Sequence[CellResult],
    kind: str,
    *,
    metric: str | None = None,
    where: Mapping[str, str] | None = None,
    width: str | None = None,
    lines: str | None = None,
) -> list[Figure]:
    """The figures of one kind, of records. Raises ``UsageError`` if there is nothing to draw."""
    chosen = matching(results, where or {})
    return _drawn(kind, _figures(kind, chosen, partial(_ranked, chosen), metric, width, lines))


def _drawn(kind: str, figures: Iterable[tuple[str, Figure]]) -> list[Figure]:
    """The figures, laid out. Raises ``UsageError`` if there are none, saying what the records lack."""
    from .writing import titled

    found = [figure for _, figure in titled(figures)]
    if not found:
        raise UsageError(f"plot {kind}: {_WHY_NONE[kind]}")
    return found


def _figures(
    kind: str,
    results: Sequence[CellResult],
    board: Callable[[], Board],
    metric: str | None,
    width: str | None,
    lines: str | None,
) -> Iterator[tuple[str, Figure]]:
    from .layout import WIDTHS, fitted

    if width is not None and width not in WIDTHS:
        raise UsageError(f"plot: no width {width!r}; {closest(width, WIDTHS)}")
    if lines is not None and kind != "curves":
        raise UsageError(f"plot {kind} has no lines to choose; plot curves has")
    made = _of_records(kind, results, width, lines)
    if made is None:
        ranked = board()
        made = _of_board(kind, ranked.select(metric=metric) if metric else ranked, width)
    for count, (title, figure) in enumerate(_checked(made, kind, metric), 1):
        if count > MAX_FIGURES:
            raise UsageError(f"plot {kind}: more than {MAX_FIGURES} figures; choose cells with --where LABEL=VALUE")
        if width is not None and kind not in _NATIVE:
            fitted(figure, kind, width)
        yield title, figure


_NATIVE = ("breakdown", "pareto", "ranks", "forgetting")
"""Kinds that are drawn anew for every width; the others are brought to it."""


def _of_records(
    kind: str, results: Sequence[CellResult], width: str | None, lines: str | None
) -> Iterator[tuple[str, Figure]] | None:
    from .bn_pca import bn_pca_figures, representation_figures
    from .curves import LINES, curves
    from .distribution import distributions
    from .forgetting import forgetting_maps

    if kind == "curves":
        if lines is not None and lines not in LINES:
            raise UsageError(f"plot curves: no lines {lines!r}; {closest(lines, LINES)}")
        return curves(results, lines=lines or "defense", width=width)
    if kind == "forgetting":
        return forgetting_maps(results, width or "page")
    if kind == "labels":
        return distributions(results, width)
    others = {"bn-pca": bn_pca_figures, "representations": representation_figures}
    return others[kind](results) if kind in others else None


def _ranked(results: Sequence[CellResult], defaults: object = None) -> Board:
    table, _ = counted(frame(results))
    return rank_board(table, defaults=defaults if isinstance(defaults, dict) else {})


def _of_board(kind: str, board: Board, width: str | None) -> Iterator[tuple[str, Figure]]:
    from .breakdown import breakdown_figures
    from .heatmap import heatmaps
    from .pareto import pareto_figures
    from .ranks import rank_figures

    if kind == "heatmap":
        return heatmaps(board, width)
    makers = {"breakdown": breakdown_figures, "pareto": pareto_figures, "ranks": rank_figures}
    return makers[kind](board, width or "page")


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
    drawn = others = 0
    for title, figure in made:
        if title.startswith(f"curves {wanted} "):
            drawn += 1
            yield title, figure
        else:
            others += 1
    if others and not drawn and wanted == "ra":
        raise UsageError("plot curves: no record holds a curve of RA; give the grid evaluate_ra = true and evasions")
