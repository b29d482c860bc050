"""The result store: one JSON file per cell under ``<folder>/cells``, written atomically and never in place.

A file either is not there or is whole: it is written under a temporary name in the same folder, flushed to disk and
renamed. Two grids in one folder therefore cannot hurt each other, and a killed one leaves at most a temporary file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from robustfl.errors import StoreError, UsageError, reason
from robustfl.file_io import read_json, walk
from robustfl.records import KEY_VERSION, LATER, SCHEMA, STATUSES, CellResult, canonical, completed, misnamed, plain

from .key1 import converted
from .validation import fault, first_fault

RERUN = frozenset({"failed"})
"""Statuses that do not count as done: a crash may be gone next time, a divergence or a refusal will not."""

DESCRIPTION = "scenario.json"
STALE_SECONDS = 3600.0
_OURS = re.compile(r"\.(.+[.-])?[0-9a-f]{32}\.tmp")
STALE_CHECKPOINT_SECONDS = 30 * 86400.0
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Problem:
    """A file of a store that is no record, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Loaded:
    """The records of a store in the order of their keys, and the files that could not be read as one.

    ``earlier`` is the number of records of earlier code or data that are left out.
    """

    results: tuple[CellResult, ...]
    problems: tuple[Problem, ...]
    earlier: int = 0


def _settings(record: CellResult) -> str:
    """What a cell was asked to do, whatever code and data it was done with."""
    return canonical(completed(record.cell.get("cell", {}), LATER))


class _UnreadableError(ValueError):
    """Why one file is no record."""


class Store:
    """The records of one scenario in ``folder``; nothing is created before the first write.

    >>> Store("runs/quickstart").path("ab12").as_posix()
    'runs/quickstart/cells/ab12.json'
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"
        self.checkpoints = self.folder / "checkpoints"

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r})"

    def path(self, key: str) -> Path:
        """The file of a cell. Raises ``UsageError`` for a key that is no plain file name."""
        if not _KEY.fullmatch(key):
            raise UsageError(f"store: key={key!r} must be letters, digits, '_', '-' or '.'")
        return self.cells / f"{key}.json"

    def keys(self) -> set[str]:
        """The keys of all files, from one listing of the folder; no file is opened."""
        try:
            with os.scandir(self.cells) as entries:
                names = [e.name for e in entries]
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StoreError(
                f"cannot list {self.cells}: {reason(error)}; check that it is a folder you may read"
            ) from None
        return {n[:-5] for n in names if n.endswith(".json") and not n.startswith(".")}

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Holds the folder, which must be there; false while another process of this machine does."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # others than the first: the file system has no locks
                yield not isinstance(error, BlockingIOError)
            else:
                yield True
        finally:
            os.close(handle)

    def done(self, keys: Iterable[str]) -> set[str]:
        """Those of ``keys`` that need not run: their file is a record that ``load`` takes, not in ``RERUN``.

        Every file is parsed, since only that tells a whole file from a damaged one (0.2 ms each).
        """
        return {key for key, status in self._statuses(keys).items() if status not in RERUN}

    def statuses(self, keys: Iterable[str]) -> dict[str, int]:
        """The number of ``keys`` stored with each status; unreadable files count as nothing."""
        counts = Counter(self._statuses(keys).values())
        return {status: counts[status] for status in STATUSES if counts[status]}

    def _statuses(self, keys: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key in self.keys().intersection(keys):
            with contextlib.suppress(_UnreadableError):
                found[key] = self._record(key).status
        return found

    def read(self, key: str) -> CellResult:
        """The record of a cell. Raises ``StoreError`` if it is missing or no record."""
        try:
            return self._record(key)
        except _UnreadableError as error:
            raise StoreError(f"{self.path(key)}: {error}; delete the file and run the grid again") from None

    def load(self) -> Loaded:
        """All records; a truncated, corrupt or foreign file is a problem with its reason, never a number.

        So is one whose key or labels are not those of its settings, and a description that cannot be read. Keys of
        version 1 are converted; of several records of one cell, the one of the last grid counts.
        """
        results, problems = dict[str, CellResult](), []
        described, words = self._described()
        asked = described.get("cells", {})
        for key in sorted(self.keys(), key=lambda key: (key in asked, key)):
            try:
                record = self._record(key)
                results[record.key] = record
            except (_UnreadableError, UsageError) as error:
                problems.append(Problem(self.cells / f"{key}.json", str(error)))
        if words:
            problems.append(Problem(self.folder / DESCRIPTION, f"{words}, so nobody knows which cells are missing"))
        return Loaded(tuple(results[key] for key in sorted(results)), tuple(problems))

    def current(self) -> Loaded:
        """``load`` without the records whose settings the grid asked for again later, with other code or data.

        A plug-in that was edited, or images under the same path, make other cells of the same settings: the mean of the
        old ones and the new is no number of anything.
        """
        loaded, asked = self.load(), self.description().get("cells", {})
        if all(record.key in asked for record in loaded.results):
            return loaded
        again = {_settings(record) for record in loaded.results if record.key in asked}
        kept = tuple(r for r in loaded.results if r.key in asked or _settings(r) not in again)
        return replace(loaded, results=kept, earlier=len(loaded.results) - len(kept))

    def ready(self) -> None:
        """Raise ``StoreError`` where no record could be written, before hours of work are lost to that."""
        probe = self.cells / f".{uuid.uuid4().hex}.tmp"
        write_atomic(probe, b"")
        probe.unlink(missing_ok=True)

    def commit(self, result: CellResult) -> Path:
        """Write the record of a cell. Raises ``StoreError`` if it cannot; an older file then stays as it was."""
        path = self.path(result.key)
        write_atomic(path, canonical(result.model_dump(mode="json")) + "\n")
        return path

    def commit_all(self, results: Iterable[CellResult]) -> None:
        """Write the first records of a store, all or none. Raises ``StoreError``; the store is then as it was."""
        temporary = Store(self.folder / f".merge-{uuid.uuid4().hex}.tmp")
        try:
            for result in results:
                temporary.commit(result)
            os.replace(temporary.cells, self.cells)
            _sync_folder(self.folder)
        except OSError as error:
            raise StoreError(f"cannot write {self.cells}: {reason(error)}; {_remedy(error)}") from None
        finally:
            shutil.rmtree(temporary.folder, ignore_errors=True)

    def describe(self, facts: Mapping[str, Any]) -> Path:
        """Write ``scenario.json``, what the grid was asked to do, and sweep what killed runs left behind."""
        self.sweep()
        path = self.folder / DESCRIPTION
        told = plain({**facts, "key_version": KEY_VERSION})
        write_atomic(path, json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        return path

    def description(self) -> dict[str, Any]:
        """The description that ``describe`` wrote, with keys of version 2; empty if it cannot be read."""
        described = self._described()[0]
        if not _of_old_keys(described):
            return described
        keys = {key: key for key in described.get("cells", {})}
        for key in self.keys().intersection(keys):
            with contextlib.suppress(_UnreadableError):
                keys[key] = self._record(key).key
        return {**described, "cells": {keys[key]: labels for key, labels in described.get("cells", {}).items()}}

    def has_old_keys(self) -> bool:
        """True if the last grid that ran here gave its cells keys of version 1."""
        return _of_old_keys(self._described()[0])

    def _described(self) -> tuple[dict[str, Any], str]:
        """The description, and why there is a file and none to be read from it, or nothing."""
        try:
            data = read_json(self.folder / DESCRIPTION)
        except FileNotFoundError:
            return {}, ""
        except OSError as error:
            return {}, f"cannot be read: {reason(error)}"
        except ValueError as error:
            return {}, str(error)
        cells = data.get("cells", {}) if isinstance(data, dict) else None
        if not isinstance(cells, dict) or not all(isinstance(labels, dict) for labels in cells.values()):
            return {}, "no description of a store"
        return data, ""

    def sweep(self) -> list[Path]:
        """Delete what killed writes left anywhere in the folder, and checkpoints of cells that nobody came back to."""
        return sweep_leftovers(self.folder) + _swept(self.checkpoints.glob("*.pt"), STALE_CHECKPOINT_SECONDS)

    def _record(self, key: str) -> CellResult:
        try:
            data = read_json(self.path(key))
        except OSError as error:
            raise _UnreadableError(f"cannot be read: {reason(error)}") from None
        except ValueError as error:
            raise _UnreadableError(str(error)) from None
        if not isinstance(data, dict) or "schema_version" not in data:
            raise _UnreadableError("not a robustfl record")
        if data["schema_version"] != SCHEMA:
            raise _UnreadableError(f"schema {data['schema_version']!r}; this robustfl reads {SCHEMA}")
        if data.get("status") not in STATUSES:
            raise _UnreadableError(f"status {data.get('status')!r} is none of {', '.join(STATUSES)}")
        if data.get("key") != key:
            raise _UnreadableError(f"holds the record of another cell, {data.get('key')!r}")
        try:
            record = CellResult.model_validate(data)
        except ValidationError as error:
            raise _UnreadableError(first_fault(error)) from None
        record = converted(record)
        if words := fault(record) or misnamed(record):
            raise _UnreadableError(words)
        return record


def _of_old_keys(described: Mapping[str, Any]) -> bool:
    return "cells" in described and described.get("key_version") != KEY_VERSION


def sweep_leftovers(*folders: str | Path) -> list[Path]:
    """Delete what writes that were killed, an hour ago or more, left anywhere in these folders."""
    walks = (found for folder in folders for found in walk(Path(folder)))
    found = [here / name for here, inside, files in walks for name in (*inside, *files) if _OURS.fullmatch(name)]
    return _swept(found, STALE_SECONDS)


def retire(folder: Path, files: Iterable[Path]) -> None:
    """Remove what an earlier writing left in ``folder`` and this one, of ``files``, did not write again.

    What it wrote says ``.written`` there; files of anybody else stay.
    """
    listing, inside = folder / ".written", folder.resolve()
    resolved = [file.resolve() for file in files]
    names = {file.relative_to(inside).as_posix() for file in resolved if file.is_relative_to(inside)}
    before = set(listing.read_text(encoding="utf-8").splitlines()) if listing.is_file() else set()
    for name in before - names:
        old = (folder / name).resolve()
        if old.is_file() and old.is_relative_to(inside):
            old.unlink()
    write_atomic(listing, "".join(f"{name}\n" for name in sorted(names)))


def _swept(paths: Iterable[Path], age: float) -> list[Path]:
    """Delete those that nothing was written to for so many seconds."""
    swept = []
    for path in list(paths):
        with contextlib.suppress(OSError):
            written = max(p.lstat().st_mtime for p in (path, *path.glob("*")))
            if written < time.time() - age:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                swept.append(path)
    return swept


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing, durably. Raises ``StoreError`` naming the folder and what to do."""
    data = content.encode() if isinstance(content, str) else content
    write_stream(path, lambda file: file.write(data))


def write_stream(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """``write_atomic`` for what is too large to be held twice: ``write`` puts it into the file it is handed.

    A symbolic link stays one, and the file it leads to is written. Raises ``UsageError`` for a pipe or a device.
    """
    _refuse_special("file", path)
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot write {path.name} in {path.parent}: {reason(error)}; {_remedy(error)}; what is stored "
            "already is whole, and a second run does the rest"
        ) from None


_NO_RENAME = frozenset({errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def _remedy(error: OSError) -> str:
    if error.errno in _NO_RENAME:
        return "this file system may not replace a file by a rename, which the store needs; choose a folder elsewhere"
    return "free space there, make the folder writable or choose another one (--out)"


def _sync_folder(folder: Path) -> None:
    """Make the rename durable; some file systems do not offer it, and the file is whole either way."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_store(path: str | Path) -> Store:
    """The store at ``path``. Raises ``UsageError`` if there is none, naming the stores nearby."""
    folder = Path(path)
    if folder.name == "cells" and not (folder / "cells").is_dir() and folder.is_dir():
        folder = folder.parent
    if (folder / "cells").is_dir() or (folder / "scenario.json").is_file():
        return Store(folder)
    if folder.is_file():
        raise UsageError(
            f"{str(path)!r} is a file; give the folder of a store such as runs/quickstart, or a published board, whose "
            "name ends in .json or .json.gz"
        )
    if folder.is_dir():
        raise UsageError(f"{str(path)!r} holds no results; {_nearby(folder)}")
    parent = next(p for p in folder.absolute().parents if p.is_dir())
    raise UsageError(f"no folder {str(path)!r}; {_nearby(parent)}")


def refuse_records(name: str, place: str | Path) -> None:
    """Raise ``UsageError`` where ``name``, a file or folder to write to, lies among the records of a store."""
    here = Path(place).resolve()
    for folder in (here, *here.parents):
        if folder.name == "cells" and Store(folder.parent).keys():
            raise UsageError(f"{name}={str(place)!r} is among the records of {folder.parent}; name another place")


def refuse_file(name: str, place: str | Path | None, *, mark: str = "") -> None:
    """Raise ``UsageError`` where ``name``, a file to write, is a folder, a pipe or a device, or lacks the ``mark``.

    All files of robustfl of this kind have the mark; one without it is somebody else's.
    """
    if place is None:
        return
    path = Path(place)
    if path.is_dir():
        raise UsageError(f"{name}={str(place)!r} is a folder, where a file is needed")
    _refuse_special(name, path)
    if mark and path.is_file() and path.stat().st_size and mark not in _text_of(path):
        raise UsageError(f"{name}={str(place)!r} is there, and not robustfl's; move it away or name another place")


def _refuse_special(name: str, path: Path) -> None:
    """Raise ``UsageError`` where a pipe or a device is: a new file would take its place."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"{name}={str(path)!r} is a pipe or a device, where a regular file is needed")


def refuse_board(place: str | Path | None) -> None:
    """Raise ``UsageError`` where a board is to be written, and something else is there."""
    refuse_file("board", place, mark="robustfl-board")


def _text_of(path: Path) -> str:
    """The text of a file, decompressed where its name ends in ``.gz``; empty where it is not compressed."""
    if path.suffix != ".gz":
        return path.read_text(encoding="utf-8", errors="replace")
    with contextlib.suppress(OSError, EOFError, zlib.error), gzip.open(path) as file:
        return file.read(4096).decode(errors="replace")
    return ""


def refuse_store(name: str, folder: str | Path) -> None:
    """Raise ``UsageError`` where ``name``, a folder for pages, holds a store: they do not go among records."""
    refuse_records(name, folder)
    here = Path(folder)
    if (here / "cells").is_dir() or (here.name == "cells" and here.is_dir()):
        raise UsageError(f"{name}={str(folder)!r} holds results (cells/); name a folder of its own, such as site")


def _nearby(folder: Path) -> str:
    found: set[Path] = set()
    with contextlib.suppress(OSError):
        for pattern in ("cells", "*/cells", "*/*/cells"):
            found |= {p.parent for p in folder.glob(pattern) if p.is_dir()}
    if not found:
        return "run `robustfl grid` to make some"
    shown = [str(p) for p in sorted(found)[:8]]
    return "stores nearby: " + ", ".join(shown) + (", …" if len(found) > len(shown) else "")
