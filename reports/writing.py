"""Everything that can be written of a store, from one reading of it."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from robustfl.errors import StoreError, UsageError, some
from robustfl.records import CellResult

from .board import Board, slug_of
from .columns import kinds_of
from .display import Display, renamed
from .frame import frame
from .grouping import text
from .loading import BoardStore, board_of, chosen, open_source
from .published.board import TOLERANCE
from .published.board import Board as PublishedBoard
from .published.files import publish_described, write_board
from .store import (
    Loaded,
    Store,
    refuse_board,
    refuse_file,
    refuse_records,
    refuse_store,
    retire,
    sweep_leftovers,
    write_atomic,
)
from .tables import write_all

Papers = Callable[[Sequence[CellResult]], Mapping[str, str]]


@dataclass(frozen=True)
class Written:
    """The board, the files of report and published board, and the files of the site, its first page first.

    ``unused`` are names in print that nothing on the board has.
    """

    board: Board
    files: tuple[Path, ...]
    site: tuple[Path, ...] = ()
    unused: tuple[str, ...] = ()


def publish_store(
    path: str | Path, out: str | Path | None = None, *, figures: bool = True, site: str | Path | None = None,
    board: str | Path | None = None, curves: bool = False, cells: str | Path | None = None,
    tolerance: float | None = None, papers: Papers | None = None, where: Mapping[str, str] | None = None,
    compare: Sequence[str] = (), statistic: str | None = None, display: Display | None = None,
    on_board: Callable[[Board, Path], None] = lambda board, folder: None,
) -> Written:  # fmt: skip
    """Write a report as ``reports.report`` does, with the options that only the command line has.

    The board claims ``tolerance`` (default: 0.01, or that of the board read), and holds ``curves`` during training if
    wanted or if the board read does. ``papers`` gives the citations of the records' methods for the site, ``display``
    says which columns tables print and what methods are called for readers; ``on_board`` gets the leaderboard and its
    folder first.

    Raises ``UsageError`` if ``path`` is neither or has no cell yet, ``StoreError`` if none of its files can be read;
    for a board all must.
    """
    _check_board(board, tolerance, curves)
    _check_places(out, site, board, cells)
    store = open_source(path)
    loaded = chosen(store.current(), where=where)
    described = store.description()
    made = board_of(
        store, compare=compare, where=where, statistic=statistic, loaded=loaded, described=described, display=display
    )
    results = renamed(loaded.results, made.display.names)
    ready = _published(store, loaded, described, made.scenario, tolerance, curves) if board is not None else None
    folder = store.folder / report_folder(where or {}, compare, statistic) if out is None else Path(out)
    on_board(made, folder)
    sweep_leftovers(store.folder, folder, site or folder)
    files = write_all(made, folder)
    if figures:
        from .figures.plots import write_figures

        files += write_figures(made, results, folder)
    files += [] if ready is None or board is None else [write_board(ready, board)]
    files += [] if cells is None else [_write_cells(frame(loaded.results), Path(cells))]
    pages = [] if site is None else _write_site(made, results, site, described, papers, files if figures else [])
    together = site is not None and Path(site).resolve() == folder.resolve()
    if site is not None and not together:
        retire(Path(site), pages)
    retire(folder, [*files, *pages] if together else files)
    return Written(made, tuple(files), tuple(pages), made.display.unused(loaded.results, kinds_of(made)))


def _write_site(
    board: Board, results: Sequence[CellResult], site: str | Path, described: Mapping[str, object],
    papers: Papers | None, figures: list[Path],
) -> list[Path]:  # fmt: skip
    """Write the site with copies of the report's PDF figures; its pages, then the copies.

    Curves, one per attack, stay where they are.
    """
    from .site.writing import write_site

    drawn = [f for f in figures if f.suffix == ".pdf" and not f.name.startswith(("curves-", "forgetting-"))]
    copies = {f"figures/{file.name}": file.read_bytes() for file in drawn}
    for name, content in copies.items():
        write_atomic(Path(site) / name, content)
    known, about = papers(results) if papers else {}, str(described.get("description") or "")
    pages = write_site(board, results, site, description=about, papers=known, figures=[*copies])
    return pages + [Path(site) / name for name in copies]


def _write_cells(table: pd.DataFrame, path: Path) -> Path:
    """Write the table of cells as the file's ending says."""
    if path.suffix == ".parquet":
        table = table.assign(**{str(name): table[name].map(text) for name in table.select_dtypes("object")})
        write_atomic(path, table.to_parquet(index=False))
        return path
    data = table.to_csv(index=False, lineterminator="\n").encode()
    write_atomic(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def report_folder(where: Mapping[str, str], compare: Sequence[str] = (), statistic: str | None = None) -> str:
    """The folder in a store for a report: one of some cells, of other contestants or numbers is not that of all.

    >>> report_folder({}), report_folder({"f": "4"}), report_folder({}, ["algorithm"])
    ('report', 'report-f-4-878b6e', 'report-by-algorithm-29f9bc')
    """
    words = [f"{name}={value}" for name, value in sorted(where.items())]
    words += [f"by {name}" for name in sorted(compare)] + ([] if statistic is None else [statistic])
    return f"report-{slug_of(words)}" if words else "report"


def _check_board(board: str | Path | None, tolerance: float | None, curves: bool) -> None:
    """Raise ``UsageError`` for what says something about a board where none is written."""
    if board is None and (tolerance is not None or curves):
        words = "curves go into a board" if curves else f"tolerance={tolerance} is what a board claims"
        raise UsageError(f"{words}, and none is written; name its file with board")


def _check_places(
    out: str | Path | None, site: str | Path | None, board: str | Path | None, cells: str | Path | None
) -> None:
    """Raise ``UsageError`` before anything is written where something cannot be written to, or is among records."""
    for name, folder in (("out", out), ("site", site)):
        if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"{name}={str(folder)!r} is a file, where a folder is needed")
    refuse_board(board)
    for name, place in (("out", out), ("board", board), ("cells", cells)):
        if place is not None:
            refuse_records(name, place)
    if site is not None:
        refuse_store("site", site)
        refuse_file("site", Path(site) / "index.html", mark="robustfl")
    if cells is not None and not str(cells).endswith((".csv", ".csv.gz", ".parquet")):
        raise UsageError(f"cells={str(cells)!r} must end in .csv, .csv.gz or .parquet")
    if str(cells).endswith(".parquet") and find_spec("pyarrow") is None:
        raise UsageError(f"cells={str(cells)!r}: Parquet needs pyarrow; pip install pyarrow, or write .csv")


def _published(
    store: Store | BoardStore,
    loaded: Loaded,
    described: Mapping[str, object],
    name: str,
    tolerance: float | None,
    curves: bool,
) -> PublishedBoard:
    """The board of a store. Raises ``StoreError`` where files cannot be read: without them it would look whole."""
    if loaded.problems:
        shown = some([*map(str, loaded.problems)])
        raise StoreError(
            f"no board is written without what cannot be read: {shown}. Run the grid again, or delete these files"
        )
    before = store.board if isinstance(store, BoardStore) else None
    claimed = (TOLERANCE if before is None else before.tolerance) if tolerance is None else tolerance
    return publish_described(
        loaded.results, described, name=name, tolerance=claimed, curves=curves or before is not None
    )
