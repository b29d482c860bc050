"""Figures of a store: one kind of them, into the file the caller names, or all that its records have data for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from robustfl.errors import UsageError, closest
from robustfl.records import CellResult

from ..board import Board
from ..captions import setting
from ..frame import counted, frame
from ..grouping import NO_ATTACK
from ..loading import board_of, matching, open_source, problems_of
from ..ranking import rank_board
from ..store import refuse_file, write_atomic
from .clients import bn_pca_figures, distributions, forgetting_maps, representation_figures
from .curves import LINES, curves
from .layout import WIDTHS, fitted, picture, titled
from .summaries import breakdown_figures, heatmaps, pareto_figures, rank_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")
MAX_FIGURES = 40


@dataclass(frozen=True)
class Kind:
    """One kind of figures: what it shows, what records lack that have none, how it is drawn.

    ``draw`` takes records, or the ranked ``board``, and a width. The kinds that are ``native`` are drawn anew for every
    width; the others are brought to it. Of some a ``metric`` can be chosen.
    """

    shows: str
    lacking: str
    draw: Callable[..., Iterator[tuple[str, Figure]]]
    board: bool = False
    native: bool = False
    metric: bool = False


KINDS = {
    "curves": Kind(
        "Accuracy by round, mean and range over seeds",
        "no record holds a curve of at least two points; for one of RA give the grid evaluate_ra = true and evasions",
        curves, metric=True,
    ),
    "heatmap": Kind(
        "Accuracy of every defense under every attack, and the worst case, mean over seeds",
        "there is no finished cell", heatmaps, board=True, metric=True,
    ),
    "breakdown": Kind(
        "Worst-case accuracy, mean over seeds and its interval, or the range of fewer than five; ✕: diverged",
        "only one value of f and one γ or α were run; make one of them an axis",
        breakdown_figures, board=True, native=True, metric=True,
    ),
    "pareto": Kind(
        "The two accuracies on the axes, a point per row; numbered rows are beaten by no other in both",
        "fewer than two rows have both numbers of a worst case", pareto_figures, board=True, native=True,
    ),
    "ranks": Kind(
        "Mean ranks over scenarios; contestants whose bars overlap do not differ by Nemenyi's test",
        "Friedman's test needs three to forty contestants and two scenarios (task × attack) that all of them have",
        rank_figures, board=True, native=True, metric=True,
    ),
    "forgetting": Kind(
        "Accuracy that a client's local training loses on the data of the others, and what is left",
        "no record holds certificates['forgetting']; give the grid forgetting = true and validation > 0",
        forgetting_maps, native=True,
    ),
    "labels": Kind("Samples per client and class", "no record holds label counts", distributions),
    "bn-pca": Kind(
        "Clients' batch-norm means and variances in two principal components, lowest seed",
        "no record holds certificates['bn_statistics'] (norms without statistics have none)",
        lambda results, width: bn_pca_figures(results),
    ),
    "representations": Kind(
        "Inputs of the last layer for test images in two principal components, lowest seed",
        "no record holds certificates['representations']; give the grid representations = 20",
        lambda results, width: representation_figures(results),
    ),
}  # fmt: skip


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
    """Draw the figures of one kind from the store or board at ``path`` into ``save`` (pdf, png or svg).

    Several figures become ``x-1.pdf``, ``x-2.pdf``. ``metric`` keeps one metric, ``where`` cells with these labels
    (``"alie"`` matches every ``alie(...)``). ``width`` is that of a ``column`` or a ``page`` of a paper, 3.4 or 7
    inches; ``lines`` the label whose values the panels of curves overlay (``curves.LINES``).
    ``on_problem`` is told of every file that is not counted, ``on_caption`` a sentence to print below the figures.
    Returns the files. Raises ``UsageError`` if there is
    nothing to draw, saying what the records lack, ``StoreError`` if none of the files can be read.
    """
    if kind not in KINDS:
        raise UsageError(f"plot: no kind {kind!r}; {closest(kind, KINDS)}")
    target, form = target_of(save, "plot")
    refuse_file("save", target)
    store = open_source(path)
    loaded = store.current()
    for words in problems_of(store, loaded):
        on_problem(words)
    board = partial(board_of, store, where=where, loaded=loaded)
    figures = figures_of(loaded.results, kind, metric=metric, where=where, width=width, lines=lines, board=board)
    files = write_numbered(target, [picture(figure, form) for figure in figures])
    on_caption(caption_of(matching(loaded.results, where or {}), kind, store.description().get("defaults")))
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


def caption_of(results: Sequence[CellResult], kind: str, defaults: object = None) -> str:
    """Sentences for below a figure: what it shows with the settings that are not the ``defaults``, and which numbers.

    Where a store does not know its defaults, all settings are named.
    """
    board = _ranked(results, defaults)
    told, shows = setting(board), KINDS[kind].shows
    seeds = len({r.labels.get("seed") for r in results if r.status == "done"})
    count = f"; {seeds} seeds" if seeds > 1 and "seed" in shows and "lowest" not in shows else ""
    shown = f"{shows} ({told}{count})." if told else f"{shows}{count}."
    apart = [f"{words}." for words in board.footnotes if words.startswith(f"{NO_ATTACK}:")]
    numbers = [counted(frame(results))[1], *apart] if KINDS[kind].board else []
    return " ".join(filter(None, [shown, *numbers]))


def figures_of(
    results: Sequence[CellResult],
    kind: str,
    *,
    metric: str | None = None,
    where: Mapping[str, str] | None = None,
    width: str | None = None,
    lines: str | None = None,
    board: Callable[[], Board] | None = None,
) -> list[Figure]:
    """The figures of one kind, of records, laid out; ``board`` ranks them where they are of a store.

    Raises ``UsageError`` if there is nothing to draw, saying what the records lack.
    """
    it, chosen = KINDS[kind], matching(results, where or {})
    if width is not None and width not in WIDTHS:
        raise UsageError(f"plot: no width {width!r}; {closest(width, WIDTHS)}")
    if lines is not None and kind != "curves":
        raise UsageError(f"plot {kind} has no lines to choose; plot curves has")
    if metric is not None and not it.metric:
        raise UsageError(f"plot {kind} has no metric to choose")
    if kind == "curves":
        made = _curves(chosen, metric, lines or "defense", width)
    elif it.board:
        ranked = _ranked(chosen) if board is None else board()
        made = it.draw(ranked.select(metric), width or "page" if it.native else width)
    else:
        made = it.draw(chosen, width or "page" if it.native else width)
    found = [figure for _, figure in titled(_fitting(kind, made, width))]
    if not found:
        raise UsageError(f"plot {kind}: {it.lacking}")
    return found


def _ranked(results: Sequence[CellResult], defaults: object = None) -> Board:
    table, _ = counted(frame(results))
    return rank_board(table, defaults=defaults if isinstance(defaults, dict) else {})


def _fitting(kind: str, made: Iterable[tuple[str, Figure]], width: str | None) -> Iterator[tuple[str, Figure]]:
    for count, (title, figure) in enumerate(made, 1):
        if count > MAX_FIGURES:
            raise UsageError(f"plot {kind}: more than {MAX_FIGURES} figures; choose cells with --where LABEL=VALUE")
        if width is not None and not KINDS[kind].native:
            fitted(figure, kind, width)
        yield title, figure


def _curves(
    results: Sequence[CellResult], metric: str | None, lines: str, width: str | None
) -> Iterator[tuple[str, Figure]]:
    if lines not in LINES:
        raise UsageError(f"plot curves: no lines {lines!r}; {closest(lines, LINES)}")
    wanted = ("sa", "ra") if metric is None else (metric.lower(),)
    if not {"sa", "ra"}.issuperset(wanted):
        raise UsageError(f"plot curves: metric {metric!r} must be sa or ra")
    return curves(results, wanted, lines=lines, width=width)


def write_figures(board: Board, results: Sequence[CellResult], folder: str | Path) -> list[Path]:
    """Write every figure the records have data for into ``folder``; returns the files.

    Batch-norm statistics are drawn on demand (``plot``): there is a figure for every cell but its seed.
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
