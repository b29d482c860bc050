"""A bundle: a board with everything somebody needs to check it - plug-in sources, environment, recipe, digests.

A folder with ``bundle.json``, the manifest, and the files it names. Reading one runs nothing and imports nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from robustfl.autobyz import asked_of
from robustfl.errors import StoreError, UsageError, reason, some
from robustfl.origins import all_origins
from robustfl.outside import read_file, shown, unsafe
from robustfl.records import CellResult, canonical, text_without

from ..axes import CONTESTANT, OWN
from ..documents import read_document
from ..recipe import scenario_toml
from ..store import open_store, write_atomic
from .board import TOLERANCE, Board, Environment
from .files import read_board, write_board
from .publishing import publish_described

FORMAT = "robustfl-bundle"
SCHEMA: Literal[1] = 1
MANIFEST, BOARD, RECIPE = "bundle.json", "board.json", "recipe.toml"
REQUIREMENTS, PLUGINS = "requirements.txt", "plugins"
Labels = Mapping[str, Any]
LARGEST = 64 * 2**20
_NAME = r"[a-z0-9][a-z0-9-]{0,63}"
_FILE_ORIGIN = re.compile(r"(?P<file>[^/\\ ]+\.py) (?P<digest>[0-9a-f]{12})")
_PACKAGE_ORIGIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*) (?P<version>[A-Za-z0-9][A-Za-z0-9.!_-]*)(?:\+.*)?")
# What a contestant brings; by everything else that is labelled, tasks differ.
_OF_A_CONTESTANT = (*CONTESTANT, *OWN)


class Manifest(BaseModel):
    """The content of ``bundle.json``; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["robustfl-bundle"] = "robustfl-bundle"
    schema_version: Literal[1] = SCHEMA
    name: str = Field(description="lower-case letters, digits and dashes", pattern=f"^{_NAME}$")
    by: str = Field(min_length=1, max_length=200, description="who is to be asked, and credited")
    plugins: dict[str, str] = Field(description="sources of plug-ins: file in the bundle to origin in the cells")
    packages: dict[str, str] = Field(
        description="installed plug-ins: origin in the cells to the requirement, name==1.0"
    )
    files: dict[str, str] = Field(description="every other file of the bundle and its SHA-256")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the canonical JSON of everything else")


@dataclass(frozen=True)
class Bundle:
    """A bundle as it was read: ``wrong`` is what speaks against it before anything runs."""

    folder: Path
    manifest: Manifest
    board: Board
    wrong: tuple[str, ...] = ()

    @property
    def foreign(self) -> tuple[str, ...]:
        """The code to trust before any cell can run: files of plug-ins, and requirements."""
        return (*sorted(self.manifest.plugins), *sorted(self.manifest.packages.values()))


# --- writing ---------------------------------------------------------------------------------------------------------


def write_bundle(
    store: str | Path,
    folder: str | Path,
    *,
    by: str,
    name: str | None = None,
    plugins: Sequence[str | Path] = (),
    tolerance: float = TOLERANCE,
) -> Bundle:
    """Bundle the cells of ``store``. The folder must be new or empty; it is whole once ``bundle.json`` is there.

    ``plugins`` are the files that methods of the cells come from; installed ones are named by distribution and version.
    Raises ``UsageError`` where a plug-in is missing, has changed since, or cannot be had by others at all.
    """
    source, place = open_store(store), Path(folder)
    loaded = source.current()
    if loaded.problems:
        raise UsageError(f"submit: {loaded.problems[0]}")
    title = re.sub(r"[^a-z0-9]+", "-", source.folder.resolve().name.lower()).strip("-") if name is None else name
    if not re.fullmatch(_NAME, title):
        raise UsageError(f"submit: name={title!r} must be lower-case letters, digits and dashes")
    by = " ".join(by.split())
    if not by:
        raise UsageError("submit: by= (--by) says who is to be asked: a name, a handle, an address")
    if unsafe(by):
        raise UsageError("submit: by (--by) holds control characters")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"submit: {str(place)!r} is not an empty folder; remove it, or name another with --out")
    board = publish_described(loaded.results, source.description(), name=title, tolerance=tolerance)
    records = board.records()
    sources, packages = _brought(records, [Path(p) for p in plugins])
    parts: dict[str, str | bytes] = {RECIPE: scenario_toml(records, name=title)}
    parts |= {REQUIREMENTS: _requirements(board, packages), **sources}
    origins = {target: _origin(target, _digest(content)) for target, content in sources.items()}
    known = {"name": title, "by": by, "plugins": origins, "packages": packages}
    _write(place, board, parts, known)
    return read_bundle(place)


def _write(place: Path, board: Board, parts: Mapping[str, str | bytes], known: Mapping[str, Any]) -> None:
    """Write the files and the manifest of what is ``known`` elsewhere, then move them: a folder that is there stays."""
    there = place.exists()
    temporary = (place if there else place.parent) / f".bundle-{uuid.uuid4().hex}.tmp"
    try:
        write_board(board, temporary / BOARD)
        for target, content in parts.items():
            write_atomic(temporary / target, content)
        files = {f: _digest((temporary / f).read_bytes()) for f in (BOARD, *parts)}
        made = Manifest.model_validate({**known, "files": files, "digest": "0" * 64})
        made = made.model_copy(update={"digest": _digest_of(made)})
        write_atomic(temporary / MANIFEST, json.dumps(made.model_dump(mode="json"), indent=1, sort_keys=True) + "\n")
        if there:  # somebody may be in it, and what it lies in need not be writable
            for entry in [path for path in temporary.iterdir() if path.name != MANIFEST] + [temporary / MANIFEST]:
                os.replace(entry, place / entry.name)
        else:
            os.replace(temporary, place)
    except OSError as error:
        raise StoreError(f"cannot write {place}: {reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _brought(results: Sequence[CellResult], plugins: Sequence[Path]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Sources of the plug-ins of these cells by their place in the bundle, and requirements of installed ones."""
    given = {}
    for file in plugins:
        try:
            given[file.name] = file.read_bytes()
        except OSError as error:
            raise UsageError(f"submit: plug-in {str(file)!r} cannot be read: {reason(error)}") from None
    sources, packages = {}, {}
    used = sorted(set().union(*(all_origins(r.cell.get("methods", {})) for r in results)))
    files = [found["file"] for origin in used if (found := _FILE_ORIGIN.fullmatch(origin))]
    if missing := [file for file in files if file not in given]:
        options = " ".join(f"--plugin path/to/{file}" for file in missing)
        raise UsageError(f"submit: cells use {' and '.join(missing)}; give the source with {options}")
    for origin in used:
        if found := _FILE_ORIGIN.fullmatch(origin):
            content = given[found["file"]]
            if _digest(content)[:12] != found["digest"]:
                raise UsageError(f"submit: {found['file']} has changed since the cells ran ({origin}); run them again")
            sources[f"{PLUGINS}/{found['file']}"] = content
        elif (found := _PACKAGE_ORIGIN.fullmatch(origin)) and found["name"] != "session":
            packages[origin] = f"{found['name']}=={found['version']}"
        else:
            raise UsageError(f"submit: cells use {origin}, which nobody else has; put it in a file, and run them again")
    return sources, packages


def _requirements(board: Board, packages: Mapping[str, str]) -> str:
    """What to install to run the cells as they ran."""
    versions = {n: v[0].partition("+")[0] for n, v in board.environment.versions.items() if len(v) == 1}
    lines = [f"{n}=={v}" for n, v in versions.items() if n != "python"]  # no build for a GPU, which not everybody has
    python = ", ".join(board.environment.versions.get("python", []))
    return "\n".join([f"# Python {python}", *sorted(lines), *sorted(packages.values())]) + "\n"


# --- reading ---------------------------------------------------------------------------------------------------------


def read_bundle(folder: str | Path, *, against: Board | None = None) -> Bundle:
    """A bundle and what is wrong with it, without running anything: its form, digests, board, and what it leaves out.

    ``against`` is the board it wants to join, whose attacks and seeds it has to have on the tasks they share, of which
    there must be one. Raises ``UsageError`` for a folder that is no bundle and ``StoreError`` for one that cannot be
    read.
    """
    place = Path(folder)
    manifest = _manifest(place)
    wrong = [] if _digest_of(manifest) == manifest.digest else ["bundle.json was edited after it was written"]
    wrong += _files_apart(place, manifest)
    if wrong:  # nobody knows what the other files are
        return Bundle(place, manifest, _empty(manifest.name), tuple(wrong))
    board, said = read_board(place / BOARD)
    records = board.records()
    wrong += [f"board.json: {words}" for words in said]
    wrong += _unbrought(records, manifest) + _not_of_its_board(place, manifest, board)
    try:
        asked_of(board.protocol or {})
    except UsageError as error:
        wrong.append(f"board.json: {error}")
    else:
        present = [r.labels for r in records]
        wanted = [] if against is None else [r.labels for r in against.records()]
        wrong += incomplete(present, wanted)
        if against is not None and {*map(_task, present)}.isdisjoint(map(_task, wanted)):
            wrong.append(f"it shares no task with {shown(against.name)}, the board it is to join: other settings, say")
    return Bundle(place, manifest, board, tuple(wrong))


def _manifest(place: Path) -> Manifest:
    how = "make one with `robustfl submit STORE`"
    try:
        return read_document(
            place / MANIFEST, Manifest, schema=(FORMAT, SCHEMA), none=f"no manifest of a bundle; {how}"
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UsageError(f"{str(place)!r} is no bundle: no bundle.json; {how}") from None


def _files_apart(place: Path, manifest: Manifest) -> list[str]:
    """Files that are missing, changed, not named, too large, or not inside the folder."""
    wrong = []
    there = {p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_symlink() or not p.is_dir()} - {MANIFEST}
    named = set(manifest.files)
    needed = (BOARD, RECIPE, REQUIREMENTS, *manifest.plugins)
    wrong += [f"{shown(name)} is not among its files" for name in needed if name not in named]
    wrong += [f"{shown(name)} is nothing that a bundle holds" for name in sorted(named.difference(needed))]
    wrong += [f"{_line(name)} is no file of it: not named in bundle.json" for name in sorted(there - named)]
    for name, digest in sorted(manifest.files.items()):
        file = place / name
        if name not in there or file.is_symlink():
            wrong.append(f"{shown(name)} is missing")
        elif file.stat().st_size > LARGEST:
            wrong.append(f"{shown(name)} is larger than {LARGEST // 2**20} MiB")
        elif words := _unlike(file, digest):
            wrong.append(f"{shown(name)} {words}")
    for name, origin in manifest.plugins.items():
        right = f"{PLUGINS}/{PurePosixPath(name).name}", _origin(name, manifest.files.get(name, ""))
        if name in named and ((name, origin) != right or not _FILE_ORIGIN.fullmatch(origin)):
            wrong.append(f"{shown(name)} is not the plug-in it is said to be, {shown(origin)}")
    return wrong


def _line(name: str) -> str:
    """A file's name as ``shown``, in one line, lest it speak for the check."""
    return shown(name).replace("\n", "\\n")


def _unlike(file: Path, digest: str) -> str:
    """The fault in a file that has another digest or cannot be read, such as a pipe; empty if it has none."""
    try:
        changed = _digest(read_file(file)) != digest
    except OSError as error:
        return f"cannot be read: {reason(error)}"
    return "was changed: its digest is not the one in bundle.json" if changed else ""


def _unbrought(records: Sequence[CellResult], manifest: Manifest) -> list[str]:
    """Methods of the cells that the bundle does not bring."""
    brought = {*manifest.plugins.values(), *manifest.packages}
    used = set().union(*(all_origins(r.cell.get("methods", {})) for r in records))
    wrong = [f"cells use {shown(origin)}, which it does not bring" for origin in sorted(used - brought)]
    return wrong + [f"it brings {shown(origin)}, which no cell uses" for origin in sorted(brought - used)]


def _not_of_its_board(place: Path, manifest: Manifest, board: Board) -> list[str]:
    """What the bundle says beside its board and does not follow from it: its name, and what to install."""
    wrong = [] if manifest.name == board.name else [f"its board is {shown(board.name)!r}, not {manifest.name!r}"]
    for origin, requirement in manifest.packages.items():
        found = _PACKAGE_ORIGIN.fullmatch(origin)
        if found is None or requirement != f"{found['name']}=={found['version']}":
            wrong.append(f"{shown(requirement)} is not what to install for {shown(origin)}")
    if (place / REQUIREMENTS).read_bytes() != _requirements(board, manifest.packages).encode():
        wrong.append(
            f"{REQUIREMENTS} does not list what its board ran with; make the bundle again with this version of robustfl"
        )
    return wrong


def _origin(name: str, digest: str) -> str:
    """The origin in cells of a plug-in's file."""
    return f"{PurePosixPath(name).name} {digest[:12]}"


def incomplete(present: Sequence[Labels], wanted: Sequence[Labels]) -> list[str]:
    """Cells that are missing: every contestant meets every attack of its task with every seed of the task.

    A task's attacks and seeds are those of all cells ``present``, given by their labels, and of those that are
    ``wanted`` of the same task.
    """
    tasks: dict[str, _Task] = {}
    for labels in present:
        tasks.setdefault(_task(labels), _Task()).add(labels)
    for labels in wanted:
        if (task := tasks.get(_task(labels))) is not None:
            task.meets.add(_meeting(labels))
    return [words for task in tasks.values() for words in task.missing()]


@dataclass
class _Task:
    """The contestants of one task with what each of them has met, and what there is to meet: attacks and seeds."""

    names: dict[str, str] = field(default_factory=dict)
    met: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    meets: set[tuple[str, int]] = field(default_factory=set)

    def add(self, labels: Labels) -> None:
        who = {name: labels.get(name) for name in _OF_A_CONTESTANT}
        key = canonical(who)
        self.names[key] = f"{who['defense']}, {who['norm']}"
        self.met.setdefault(key, set()).add(_meeting(labels))
        self.meets.add(_meeting(labels))

    def missing(self) -> list[str]:
        attacks, seeds = {attack for attack, _ in self.meets}, {seed for _, seed in self.meets}
        whole = {(attack, seed) for attack in attacks for seed in seeds}
        found = []
        for key, met in self.met.items():
            left = sorted(whole - met)
            if left:
                lacks = some([f"{shown(attack)} with seed {seed}" for attack, seed in left])
                found.append(f"{shown(self.names[key])} lacks {lacks}")
        return found


def _task(labels: Labels) -> str:
    return text_without(labels, *_OF_A_CONTESTANT, "attack", "seed")


def _meeting(labels: Labels) -> tuple[str, int]:
    seed: Any = labels.get("seed", 0)
    return str(labels.get("attack")), seed if isinstance(seed, int) else 0


def _empty(name: str) -> Board:
    return Board(name=name, cells=(), environment=Environment(versions={}, devices=[], threads=[]))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of(manifest: Manifest) -> str:
    return _digest(canonical(manifest.model_dump(mode="json", exclude={"digest"})).encode())
