"""A submission: a folder with a board and the plug-in files its cells ran with, which the cells' own keys pin.

``board.json.gz`` and ``plugins/*.py``, nothing else. Reading one runs nothing and imports nothing of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from robustfl.autobyz import asked_of
from robustfl.errors import StoreError, UsageError, reason, some
from robustfl.file_io import LARGEST_FILE, read_file, shown
from robustfl.origins import all_origins, file_origin
from robustfl.records import CellResult, canonical, text_without

from ..grouping import CONTESTANT, OWN
from ..store import open_store, write_atomic
from .board import TOLERANCE, Board
from .files import publish_described, read_board, write_board

BOARD, PLUGINS = "board.json.gz", "plugins"
Labels = Mapping[str, Any]
_NAME = r"[a-z0-9][a-z0-9-]{0,63}"
_FILE_ORIGIN = re.compile(r"(?P<file>[^/\\ ]+\.py) (?P<digest>[0-9a-f]{12})")
_PACKAGE_ORIGIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*) (?P<version>[A-Za-z0-9][A-Za-z0-9.!_-]*)(?:\+.*)?")
# What a contestant brings; by everything else that is labelled, tasks differ.
_OF_A_CONTESTANT = (*CONTESTANT, *OWN)


@dataclass(frozen=True)
class Submitted:
    """A submission as it was read: ``wrong`` is what speaks against it before anything runs.

    ``plugins`` are its files of code with their SHA-256, ``packages`` what is to be installed beside.
    """

    folder: Path
    board: Board
    plugins: Mapping[str, str]
    packages: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


def write_submission(
    store: str | Path,
    folder: str | Path | None = None,
    *,
    name: str | None = None,
    plugins: Sequence[str | Path] = (),
    tolerance: float = TOLERANCE,
) -> Submitted:
    """Write the cells of ``store`` and the ``plugins`` they come from into a new ``folder`` (``submissions/NAME``).

    Raises ``UsageError`` where a plug-in is missing, has changed since, or cannot be had by others at all.
    """
    source = open_store(store)
    loaded = source.current()
    if loaded.problems:
        raise UsageError(f"submit: {loaded.problems[0]}")
    title = re.sub(r"[^a-z0-9]+", "-", source.folder.resolve().name.lower()).strip("-") if name is None else name
    if not re.fullmatch(_NAME, title):
        raise UsageError(f"submit: name={title!r} must be lower-case letters, digits and dashes")
    place = Path("submissions") / title if folder is None else Path(folder)
    if place.exists():
        raise UsageError(f"submit: {str(place)!r} is there already; remove it, or name another with --out")
    board = publish_described(loaded.results, source.description(), name=title, tolerance=tolerance)
    sources = _brought(board.records(), [Path(p) for p in plugins])
    temporary = place.parent / f".submission-{uuid.uuid4().hex}.tmp"
    try:
        write_board(board, temporary / BOARD)
        for file, content in sources.items():
            write_atomic(temporary / PLUGINS / file, content)
        os.replace(temporary, place)
    except OSError as error:
        raise StoreError(f"cannot write {place}: {reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return read_submission(place)


def _brought(results: Sequence[CellResult], plugins: Sequence[Path]) -> dict[str, bytes]:
    """By name the files that methods of these cells come from."""
    given = {}
    for file in plugins:
        try:
            given[file.name] = file.read_bytes()
        except OSError as error:
            raise UsageError(f"submit: plug-in {str(file)!r} cannot be read: {reason(error)}") from None
    used = sorted(_used(results))
    files = {found["file"]: origin for origin in used if (found := _FILE_ORIGIN.fullmatch(origin))}
    if missing := [file for file in files if file not in given]:
        options = " ".join(f"--plugin path/to/{file}" for file in missing)
        raise UsageError(f"submit: cells use {' and '.join(missing)}; give the source with {options}")
    for name, origin in files.items():
        if file_origin(name, given[name]) != origin:
            raise UsageError(f"submit: {name} has changed since the cells ran ({origin}); run them again")
    if alone := [origin for origin in used if origin not in files.values() and _requirement(origin) is None]:
        raise UsageError(f"submit: cells use {alone[0]}, which nobody else has; put it in a file, and run them again")
    return {name: given[name] for name in files}


def read_submission(folder: str | Path, *, against: Board | None = None) -> Submitted:
    """A submission and what is wrong with it, without running anything: its files, its board, and what it leaves out.

    ``against`` is the board it wants to join, whose attacks and seeds it has to have on the tasks they share, of which
    there must be one. Raises ``UsageError`` for a folder without a board, and ``StoreError`` for one that cannot be
    read.
    """
    place = Path(folder)
    if not (place / BOARD).is_file():
        raise UsageError(f"{str(place)!r} is no submission: no {BOARD}; make one with `robustfl submit STORE`")
    plugins, wrong = _files(place)
    board, said = read_board(place / BOARD)
    records = board.records()
    used = _used(records)
    wrong += [f"{BOARD}: {words}" for words in said]
    brought = {file_origin(Path(name).name, read_file(place / name)) for name in plugins}
    required = {origin: _requirement(origin) for origin in used}
    packages = {name for name in required.values() if name is not None}
    lacking = {origin for origin, name in required.items() if name is None} - brought
    wrong += [f"cells use {shown(origin)}, which it does not bring" for origin in sorted(lacking)]
    wrong += [f"it brings {shown(origin)}, which no cell uses" for origin in sorted(brought - used)]
    try:
        asked_of(board.protocol or {})
    except UsageError as error:
        wrong.append(f"{BOARD}: {error}")
    else:
        present = [r.labels for r in records]
        wanted = [] if against is None else [r.labels for r in against.records()]
        wrong += incomplete(present, wanted)
        if against is not None and {*map(_task, present)}.isdisjoint(map(_task, wanted)):
            wrong.append(f"it shares no task with {shown(against.name)}, the board it is to join: other settings, say")
    return Submitted(place, board, plugins, tuple(sorted(packages)), tuple(wrong))


def _files(place: Path) -> tuple[dict[str, str], list[str]]:
    """The plug-in files with their SHA-256, and words on files that a submission does not hold."""
    plugins, wrong = {}, []
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if name in (BOARD, PLUGINS) and not path.is_symlink():
            continue
        plain = path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_FILE
        if plain and path.suffix == ".py" and path.parent == place / PLUGINS:
            plugins[name] = hashlib.sha256(read_file(path)).hexdigest()
        else:
            one_line = shown(name).replace("\n", "\\n")  # lest it speak for the check
            wrong.append(f"{one_line} is no file of a submission: it holds {BOARD} and {PLUGINS}/*.py")
    return plugins, wrong


def _used(records: Sequence[CellResult]) -> set[str]:
    return set().union(*(all_origins(r.cell.get("methods", {})) for r in records))


def _requirement(origin: str) -> str | None:
    """What to install for methods of an installed package, ``name==1.0``; None for those of a file or a notebook."""
    found = None if _FILE_ORIGIN.fullmatch(origin) else _PACKAGE_ORIGIN.fullmatch(origin)
    return None if found is None or found["name"] == "session" else f"{found['name']}=={found['version']}"


def incomplete(present: Sequence[Labels], wanted: Sequence[Labels]) -> list[str]:
    """Cells that are missing: every contestant meets every attack of its task with every seed of the task.

    A task's attacks and seeds are those of all cells ``present``, given by their labels, and of those that are
    ``wanted`` of the same task.
    """
    met: dict[str, dict[tuple[str, str], set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    asked: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for labels in present:
        who = {name: labels.get(name) for name in _OF_A_CONTESTANT}
        met[_task(labels)][f"{who['defense']}, {who['norm']}", canonical(who)].add(_meeting(labels))
    for labels in (*present, *wanted):
        asked[_task(labels)].add(_meeting(labels))
    found = []
    for task, contestants in met.items():
        attacks, seeds = map(set, zip(*asked[task], strict=True))
        for (name, _), own in contestants.items():
            if left := sorted({*product(attacks, seeds)} - own):
                lacks = some([f"{shown(attack)} with seed {seed}" for attack, seed in left])
                found.append(f"{shown(name)} lacks {lacks}")
    return found


def _task(labels: Labels) -> str:
    return text_without(labels, *_OF_A_CONTESTANT, "attack", "seed")


def _meeting(labels: Labels) -> tuple[str, int]:
    seed: Any = labels.get("seed", 0)
    return str(labels.get("attack")), seed if isinstance(seed, int) else 0
