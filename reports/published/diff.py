"""Differences between two cells, or between two stores, field by field."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustfl.errors import StoreError, UsageError, closest
from robustfl.records import CellResult

from ..store import Store
from .agreement import Difference, differences, fields, in_words, settings_apart
from .board import SURROUNDINGS
from .files import publish
from .merge import Source, read_source, told_apart

Counted = tuple[tuple[tuple[Difference, ...], int], ...]
"""Differences that cells have in common, and how many do."""
MAX_APART = 8
"""Cells that differ in more settings than that are other experiments, not the same one with a change."""


@dataclass(frozen=True)
class CellDiff:
    """Two records side by side; the parts are lists of (path, first, second)."""

    first: str
    second: str
    settings: tuple[Difference, ...]
    outcome: tuple[Difference, ...]
    certificates: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    timing: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """True if nothing but timing and environment differs."""
        return not (self.settings or self.outcome or self.certificates)


@dataclass(frozen=True)
class StoreDiff:
    """Two stores: cells that only one has, with what would turn one into the other, and results that differ."""

    first: str
    second: str
    only_first: int
    only_second: int
    common: int
    explained: Counted
    axes: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    results: tuple[tuple[str, str, str], ...]
    environment: Counted

    @property
    def same(self) -> bool:
        """True if both have the same cells with the same results, whatever their environment."""
        return not (self.only_first or self.only_second or self.results)


def diff_cells(first: CellResult, second: CellResult) -> CellDiff:
    """Everything in which two records differ."""
    apart = differences(fields(first), fields(second))
    ran = [{name: of for name, of in r.certificates.items() if name in SURROUNDINGS} for r in (first, second)]
    return CellDiff(
        first=first.key,
        second=second.key,
        settings=tuple(settings_apart(first.cell, second.cell)),
        outcome=tuple(one for one in apart if not one[0].startswith("certificates ")),
        certificates=tuple(one for one in apart if one[0].startswith("certificates ")),
        environment=tuple(settings_apart(*ran)),
        timing=tuple(settings_apart(first.timing.model_dump(), second.timing.model_dump())),
    )


def diff_stores(first: Source, second: Source) -> StoreDiff:
    """Which cells only one source has and why, and which cells both have with other results or environment.

    Of a store beside a board, what boards carry is compared.
    """
    mine, yours = ({r.key: r for r in _published_like(*pair)} for pair in ((first, second), (second, first)))
    both = {key: diff_cells(mine[key], yours[key]) for key in sorted(mine.keys() & yours.keys())}
    left, right = ([side[key] for key in sorted(side.keys() - both.keys())] for side in (mine, yours))
    apart = {key: found.outcome + found.certificates for key, found in both.items()}
    return StoreDiff(
        first=first.name,
        second=second.name,
        only_first=len(left),
        only_second=len(right),
        common=len(both),
        explained=tuple(_explained(left, right).most_common()),
        axes=tuple(
            (name, tuple(sorted(a - b)), tuple(sorted(b - a)))
            for name, a, b in _axes(mine.values(), yours.values())
            if a != b
        ),
        results=tuple(
            (key, in_a_line(mine[key].labels), f"differs: {in_words(found)}") for key, found in apart.items() if found
        ),
        environment=tuple(Counter(found.environment for found in both.values() if found.environment).most_common()),
    )


def _published_like(source: Source, other: Source) -> Sequence[CellResult]:
    """The records of a source, as a board carries them if only the ``other`` is a board."""
    if other.board is None or source.board is not None or not source.results:
        return source.results
    return publish(source.results, name=source.name, curves=other.board.has_curves).cells


def _explained(left: Sequence[CellResult], right: Sequence[CellResult]) -> Counter[tuple[Difference, ...]]:
    """Pairs of cells that one table would print alike, or nearly: by what they differ, with how many do."""
    changed = {name for name, a, b in _axes(left, right) if not a & b}  # one setting was changed for all cells
    partners: dict[frozenset[tuple[str, str]], list[CellResult]] = defaultdict(list)

    def alike(record: CellResult) -> frozenset[tuple[str, str]]:
        return frozenset((name, str(value)) for name, value in record.labels.items() if name not in changed)

    for record in reversed(right):
        partners[alike(record)].append(record)
    pairs = [(record, found.pop()) for record in left if (found := partners[alike(record)])]
    apart = [tuple(settings_apart(a.cell, b.cell)) for a, b in pairs]
    return Counter(found for found in apart if len(found) <= MAX_APART)


def _axes(mine: Collection[CellResult], yours: Collection[CellResult]) -> list[tuple[str, set[str], set[str]]]:
    names = sorted({name for r in (*mine, *yours) for name in r.labels})
    return [(n, {str(r.labels.get(n)) for r in mine}, {str(r.labels.get(n)) for r in yours}) for n in names]


def in_a_line(labels: Mapping[str, Any]) -> str:
    """The labels that people know a cell by."""
    names = ("partition", "norm", "attack", "defense", "f", "seed")
    return " ".join(str(labels[n]) for n in names if n in labels)


def find(target: str) -> tuple[Source, bool]:
    """The target: a store or board, or as the one record of it a record's file or ``STORE:KEY`` (or the key's start).

    Returned with it: True for one cell. Raises ``UsageError`` if it is none of these or damaged, or if a key's
    start is not unique.
    """
    path = Path(target)
    if path.is_file() and path.parent.name == "cells" and path.suffix == ".json":
        try:
            return Source(target, (Store(path.parent.parent).read(path.stem),), {}, ()), True
        except StoreError as error:
            raise UsageError(str(error)) from None
    folder, colon, start = target.rpartition(":")
    if not colon or path.exists() or not Path(folder).exists():
        return read_source(target), False
    source = read_source(folder)
    found = tuple(r for r in source.results if r.key.startswith(start))
    if len(found) > 1:
        raise UsageError(f"{len(found)} cells of {folder!r} have keys that start with {start!r}; give more of the key")
    if not found:
        known = closest(start, [r.key for r in source.results][:5])
        raise UsageError(f"no cell of {folder!r} has a key that starts with {start!r}; {known}")
    return replace(source, results=found), True


def diff(first: str, second: str) -> tuple[CellDiff | StoreDiff, tuple[Source, Source]]:
    """The differences between two targets (``find``), and the sources that were compared."""
    (a, cell), (b, other) = find(first), find(second)
    if cell != other:
        raise UsageError("diff: one is a cell, the other a store; give two of a kind (STORE:KEY names a cell)")
    if cell:
        return diff_cells(*_published_like(a, b), *_published_like(b, a)), (a, b)
    a, b = told_apart([a, b], [first, second])
    return diff_stores(a, b), (a, b)
