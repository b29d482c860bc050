"""Sources of records, a store or a published board in its place, and the board of one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustfl.autobyz import asked_of
from robustfl.errors import StoreError, UsageError, closest
from robustfl.origins import origins
from robustfl.records import CellResult

from .board import Board, natural
from .columns import printed
from .display import Display, renamed, renamed_labels
from .frame import appended, counted, frame, label_columns
from .grouping import text, values_of
from .published.board import Board as PublishedBoard
from .published.files import name_of, sound_board
from .ranking import rank_board
from .store import Loaded, Store, open_store


@dataclass(frozen=True)
class BoardStore:
    """A published board with the reading methods of a ``Store``; reports of it go beside the file."""

    file: Path
    board: PublishedBoard

    @property
    def folder(self) -> Path:
        """The folder that a store of this board would have: ``boards/d.json.gz`` is ``boards/d``."""
        return self.file.with_name(name_of(self.file) or self.file.name)

    def keys(self) -> set[str]:
        return {record.key for record in self.board.cells}

    def read(self, key: str) -> CellResult:
        """The record of a cell. Raises ``StoreError`` if there is none."""
        found = next((record for record in self.board.cells if record.key == key), None)
        if found is None:
            raise StoreError(f"{self.file}: no cell {key!r}")
        return found

    def load(self) -> Loaded:
        """All records; a board with anything wrong was not opened."""
        return Loaded(self.board.cells, ())

    def current(self) -> Loaded:
        return self.load()

    def description(self) -> dict[str, Any]:
        """The parts of a store's description that a board carries."""
        board = self.board
        return {
            "name": board.name,
            "description": board.description,
            **(board.protocol or {}),
            **({"defaults": board.defaults} if board.defaults else {}),
        }


def open_source(path: str | Path) -> Store | BoardStore:
    """The store, or the board file (.json, .json.gz), at ``path``.

    Raises ``UsageError`` for anything else and for an unsound board.
    """
    if Path(path).is_file() and Path(path).suffix in (".json", ".gz"):
        return BoardStore(Path(path), sound_board(path))
    return open_store(path)


def board_of(
    store: Store | BoardStore,
    *,
    compare: Sequence[str] = (),
    keys: Collection[str] | None = None,
    where: Mapping[str, str] | None = None,
    statistic: str | None = None,
    loaded: Loaded | None = None,
    described: Mapping[str, Any] | None = None,
    display: Display | None = None,
) -> Board:
    """The board of a store, of its cells with these ``keys``, or of those whose labels are as in ``where``; of the
    numbers that ``statistic`` names (``counted``). What was read already is ``loaded`` and ``described``; ``display``
    says what printed tables show.

    Raises ``UsageError`` if there is no cell yet, or no such column, ``StoreError`` if no file can be read.
    """
    loaded = chosen(store.current() if loaded is None else loaded, keys=keys, where=where)
    problems = problems_of(store, loaded)
    if not loaded.results:
        raise UsageError(f"{str(store.folder)!r} has no finished cell yet; run `robustfl grid`")
    display = display or Display()
    table, words = counted(frame(renamed(loaded.results, display.names)), statistic)
    described = store.description() if described is None else described
    planned = _planned(described, set(table["key"]), set(label_columns(table)))
    wanted = [p for p in planned if (keys is None or p["key"] in keys) and has_labels(p, where or {})]
    wanted = [renamed_labels(p, display.names) for p in wanted]
    autobyz = asked_of(described)
    defaults = described.get("defaults")
    board = rank_board(
        appended(table, wanted), compare=compare, problems=problems,
        defaults=defaults if isinstance(defaults, dict) else {}, autobyz=autobyz and autobyz.shown(display.names),
        all_pairs=display.all_pairs,
    )  # fmt: skip
    notes = (*board.notes, *_notes(loaded, where or {}, words))
    made = replace(board, notes=notes, validated=statistic == "validation", display=display)
    printed(made)  # a column that is not there is an error now
    return made


def _notes(loaded: Loaded, where: Mapping[str, str], words: str) -> Iterable[str]:
    """What a reader must know of the cells: which are left out, and whose methods they have."""
    only = ", ".join(f"{name} = {value}" for name, value in where.items())
    plug_ins = sorted({one for result in loaded.results for one in origins(result.cell).items()})
    told = "; ".join(f"{name}: {origin}" for name, origin in plug_ins)
    again = "Cells of earlier code or data, of which the same settings were run again, are left out"
    return filter(None, (
        f"Only cells with {only}." if only else "", words, f"Plug-ins: {told}." if told else "",
        f"{again}: {loaded.earlier}." if loaded.earlier else "",
    ))  # fmt: skip


def problems_of(store: Store | BoardStore, loaded: Loaded) -> list[str]:
    """The files that are no records, in words. Raises ``StoreError`` if a store has no others."""
    problems = [f"{p.path.name}: {p.reason}" for p in loaded.problems]
    if problems and not loaded.results:
        raise StoreError(f"{store.folder}: none of {len(problems)} files is a record; {problems[0]}")
    return problems


def chosen(loaded: Loaded, *, keys: Collection[str] | None = None, where: Mapping[str, str] | None = None) -> Loaded:
    """The records with these keys and labels, and the unreadable files among these keys.

    Raises ``UsageError`` for a label that no record has, or if no record has its value.
    """
    if keys is not None:
        loaded = replace(
            loaded,
            results=tuple(r for r in loaded.results if r.key in keys),
            problems=tuple(p for p in loaded.problems if p.path.stem in keys),
        )
    if not where or not loaded.results:
        return loaded
    return replace(loaded, results=tuple(matching(loaded.results, where, what="report")))


def matching(results: Sequence[CellResult], where: Mapping[str, str], *, what: str = "plot") -> list[CellResult]:
    """The records whose labels are as in ``where``. Raises ``UsageError`` for a wrong label, or if none is left."""
    if not results:
        raise UsageError(f"{what}: there is no finished cell yet; run `robustfl grid`")
    known = {name for r in results for name in r.labels}
    for name in where:
        if name not in known:
            raise UsageError(f"{what}: cells have no label {name!r}; {closest(name, known)}")
    kept = [r for r in results if has_labels(r.labels, where)]
    if not kept:
        have = {n: sorted({text(r.labels.get(n)) for r in results})[:6] for n in where}
        shown = "; ".join(f"{n} has {', '.join(v)}" for n, v in have.items())
        raise UsageError(f"{what}: no cell matches; {shown}")
    return kept


def by_labels(results: Iterable[CellResult], *names: str) -> list[CellResult]:
    """The records in the natural order of these labels, then of their keys."""
    return sorted(results, key=lambda r: (*(natural(text(r.labels.get(n))) for n in names), r.key))


def experiments(results: Iterable[CellResult], *names: str) -> dict[tuple[str, ...], CellResult]:
    """The record with the lowest seed of every experiment, by the texts of these labels, in their order."""
    found: dict[tuple[str, ...], CellResult] = {}
    for record in by_labels(results, *names, "seed"):
        found.setdefault(values_of(record.labels, names), record)
    return found


def telling(names: Sequence[str], found: Iterable[tuple[str, ...]]) -> list[str]:
    """Those of the labels in which ``experiments`` differ, and the norm."""
    return [n for n, values in zip(names, zip(*found, strict=True), strict=False) if len({*values}) > 1 or n == "norm"]


def has_labels(labels: Mapping[str, object], where: Mapping[str, str]) -> bool:
    return all(matches(text(labels.get(n)), v) for n, v in where.items())


def matches(have: str, wanted: str) -> bool:
    """True if a label is the wanted one; ``alie`` matches every ``alie(...)``, ``alie()`` its defaults alone."""
    return have == wanted.removesuffix("()") or have.split("(")[0] == wanted


def _planned(described: Mapping[str, Any], have: set[str], known: set[str]) -> list[dict[str, object]]:
    """The cells that the grid was asked for and that have no record, with status ``missing`` and ``known`` labels."""
    return [
        {k: v for k, v in labels.items() if k in known and not isinstance(v, (dict, list))}
        | {"key": key, "status": "missing"}
        for key, labels in sorted(described.get("cells", {}).items())
        if key not in have
    ]
