"""Tables and figures of what a grid left behind. This room reads records only and never imports torch.

``store`` keeps records, ``loading`` and ``ranking`` make a ``board`` of them, and ``writing`` writes all there is of
one: ``tables``, ``figures``, a ``site``. Boards for others to check are in ``published``, the benchmark's pages in
``benchmark``, the papers' numbers beside ours in ``reproduction``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from .board import Board as Board
    from .ranking import rank_board as rank_board
    from .store import Loaded
    from .store import Store as Store

_HOMES = {"Board": ".board", "Store": ".store", "rank_board": ".ranking"}
__all__ = ["Board", "Store", "leaderboard", "load", "load_board", "plot", "rank_board", "report"]


def load(path: str | Path) -> Loaded:
    """The records of the store or board at ``path`` and the files that are none; ``UsageError`` if it is neither."""
    from .loading import open_source

    return open_source(path).load()


def load_board(
    path: str | Path,
    *,
    compare: Sequence[str] = (),
    keys: Collection[str] | None = None,
    where: Mapping[str, str] | None = None,
    statistic: str | None = None,
) -> Board:
    """The board of the store or the published board at ``path``, cells that are planned and have not run included.

    ``keys`` and ``where`` (labels with their values) keep some of its cells; ``statistic`` says which numbers are
    ranked: ``final``, ``tail``, ``selected`` or ``validation``, by default what each cell says. Raises ``UsageError``
    if ``path`` is no store or has no such cell yet, ``StoreError`` if none of its files can be read.
    """
    from .loading import board_of, open_source

    return board_of(open_source(path), compare=compare, keys=keys, where=where, statistic=statistic)


def leaderboard(
    path: str | Path | pd.DataFrame,
    *,
    metric: str | None = None,
    compare: Sequence[str] = (),
    where: Mapping[str, str] | None = None,
    statistic: str | None = None,
) -> pd.DataFrame:
    """The leaderboard of a store, a published board, or a table of cells, as a table (``Board.frame``).

    Rows are contestants (defense × norm, objective and propagation where they vary), ranked by worst case per metric
    and task: whatever else varies makes tasks, whose mean comes first. ``metric`` keeps one metric (``"sa"``,
    ``"ra"``, ``"ra_pgd"``), ``where`` cells with these labels; ``compare`` names more labels that say who competes.
    ``statistic`` says which numbers are ranked: ``final``, ``tail``, ``selected`` or ``validation``; by default what
    each cell says.
    """
    if isinstance(path, (str, Path)):
        board = load_board(path, compare=compare, where=where, statistic=statistic)
    else:
        from .frame import counted
        from .grouping import text
        from .loading import matches
        from .ranking import rank_board

        for name, value in (where or {}).items():
            path = path[[matches(text(have), value) for have in path[name]]]
        board = rank_board(counted(path, statistic)[0], compare=compare)
    return board.select(metric).frame()


def report(
    path: str | Path,
    out: str | Path | None = None,
    *,
    figures: bool = True,
    site: str | Path | None = None,
    board: str | Path | None = None,
    cells: str | Path | None = None,
    where: Mapping[str, str] | None = None,
    compare: Sequence[str] = (),
    statistic: str | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    all_pairs: bool = False,
) -> list[Path]:
    """Write the leaderboard of a store, or of a published board, in every form, and its figures, into ``out``.

    That is ``<path>/report`` by default, of a board ``NAME.json.gz`` the folder ``NAME/report`` beside it, and a folder
    beside that for a report of some cells only.

    With ``site`` also a web site into that folder, with ``board`` a file that ``robustfl verify`` checks, with
    ``cells`` a table with a line per cell (.csv, .csv.gz, .parquet). ``where`` keeps cells with these labels,
    ``compare`` names more labels that say who competes, ``statistic`` which numbers are ranked, as in ``leaderboard``.
    Printed tables (text, Markdown, LaTeX) have the ``columns`` in their order, without those in ``drop``; ``names`` are
    methods' and columns' names in print, ``{"foe(eta=10)": "FoE"}``; with ``all_pairs`` ranges of
    ranks are of all pairs of rows, not of each against the first. The same store gives the same bytes. Returns the
    files in the order of writing.
    """
    from .display import Display
    from .writing import publish_store

    written = publish_store(
        path, out, figures=figures, site=site, board=board, cells=cells, where=where, compare=compare,
        statistic=statistic, display=Display(tuple(columns), tuple(drop), names or {}, all_pairs),
    )  # fmt: skip
    return [*written.files, *written.site]


def plot(path: str | Path, kind: str, save: str | Path, **choice: Any) -> list[Path]:
    """Draw one kind of figure of a store or board into ``save``: see ``robustfl.reports.figures.plots.plot``."""
    from .figures.plots import plot as draw

    return draw(path, kind, save, **choice)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
