"""Differences between two records, or between two stores, field by field."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustfl.errors import StoreError, UsageError, closest
from robustfl.records import CellResult, canonical

from ..store import Store
from .agreement import Agreement, agree, settings_apart
from .board import SURROUNDINGS
from .joining import Source, read_source
from .publishing import publish

Difference = tuple[str, Any, Any]
MAX_APART = 8
"""Cells that differ in more settings than that are other experiments, not the same one with a change."""


@dataclass(frozen=True)
class CellDiff:
    """Two records side by side; the parts are lists of (path, first, second)."""

    first: str
    second: str
    settings: tuple[Difference, ...]
    outcome: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    certificates: tuple[Difference, ...]
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
    explained: tuple[tuple[tuple[Difference, ...], int], ...]
    axes: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    results: tuple[tuple[str, str, str], ...]
    environment: tuple[tuple[tuple[Difference, ...], int], ...]

    @property
    def same(self) -> bool:
        """True if both have the same cells with the same results, whatever their environment."""
        return not (self.only_first or self.only_second or self.results)


def diff_cells(first: CellResult, second: CellResult) -> CellDiff:
    """Everything in which two records differ."""
    mine, yours = first.model_dump(mode="json"), second.model_dump(mode="json")
    outcome = (("status", "reason", "round"), ("metrics",), ("curve",), ("label_counts",))
    environment: list[Difference] = []
    certificates: list[Difference] = []
    for difference in settings_apart(mine["certificates"], yours["certificates"]):
        own = difference[0].split(".")[0] in SURROUNDINGS
        (environment if own else certificates).append(difference)
    return CellDiff(
        first=first.key,
        second=second.key,
        settings=tuple(settings_apart(mine["cell"], yours["cell"])),
        outcome=tuple(
            d for part in outcome for d in settings_apart({k: mine[k] for k in part}, {k: yours[k] for k in part})
        ),
        environment=tuple(environment),
        certificates=tuple(certificates),
        timing=tuple(settings_apart(mine["timing"], yours["timing"])),
    )


def diff_stores(first: Source, second: Source) -> StoreDiff:
    """Which cells only one source has and why, and which cells both have with other results or environment.

    Of a store beside a board, what boards carry is compared.
    """
    if (first.board is None) != (second.board is None):
        first, second = _published_like(first, second), _published_like(second, first)
    mine, yours = {r.key: r for r in first.results}, {r.key: r for r in second.results}
    left = [mine[k] for k in sorted(mine.keys() - yours.keys())]
    right = [yours[k] for k in sorted(yours.keys() - mine.keys())]
    results, environment = [], Counter[tuple[Difference, ...]]()
    for key in sorted(mine.keys() & yours.keys()):
        found, every = agree(mine[key], yours[key], tolerance=0.0), diff_cells(mine[key], yours[key])
        if found.verdict == "identical" and not every.same:
            found = Agreement("differs", every.outcome + every.certificates)
        if found.verdict != "identical":
            results.append((key, in_a_line(mine[key].labels), found.words()))
        environment[tuple((p, _plain(a), _plain(b)) for p, a, b in every.environment)] += 1
    return StoreDiff(
        first=first.name,
        second=second.name,
        only_first=len(left),
        only_second=len(right),
        common=len(mine.keys() & yours.keys()),
        explained=tuple(_explained(left, right)),
        axes=tuple(_axes(first.results, second.results)),
        results=tuple(results),
        environment=tuple((differences, count) for differences, count in environment.most_common() if differences),
    )


def _published_like(source: Source, other: Source) -> Source:
    """The source with what a board has of its records, if the ``other`` is a board."""
    if other.board is None or not source.results:
        return source
    board = publish(source.results, name=source.name, curves=other.board.has_curves)
    return replace(source, results=tuple(board.records()))


def _explained(left: Sequence[CellResult], right: Sequence[CellResult]) -> list[tuple[tuple[Difference, ...], int]]:
    """Pairs of cells that one table would print alike, or nearly: by what they differ, with how many do."""
    by_labels: dict[tuple[tuple[str, str], ...], list[CellResult]] = defaultdict(list)
    changed = _changed(left, right)
    for record in right:
        by_labels[_labels(record, changed)].append(record)
    counts: Counter[tuple[Difference, ...]] = Counter()
    for record in left:
        partners = by_labels.get(_labels(record, changed), [])
        if partners:
            apart = settings_apart(record.cell, partners.pop(0).cell)
            if len(apart) > MAX_APART:
                continue
            counts[tuple((p, _plain(a), _plain(b)) for p, a, b in apart)] += 1
    return counts.most_common()


def _changed(left: Sequence[CellResult], right: Sequence[CellResult]) -> set[str]:
    """Labels of which the two sides have no value in common: one setting was changed for all cells."""
    names = {n for r in (*left, *right) for n in r.labels}
    return {n for n in names if not {str(r.labels.get(n)) for r in left} & {str(r.labels.get(n)) for r in right}}


def _labels(record: CellResult, without: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, str(v)) for k, v in record.labels.items() if k not in without))


def _axes(
    first: Sequence[CellResult], second: Sequence[CellResult]
) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Labels whose values are not the same set on both sides: name, values of the first only, of the second only."""
    found = []
    for name in sorted({n for r in (*first, *second) for n in r.labels}):
        mine = {str(r.labels.get(name)) for r in first}
        yours = {str(r.labels.get(name)) for r in second}
        if mine != yours:
            found.append((name, tuple(sorted(mine - yours)), tuple(sorted(yours - mine))))
    return found


def _plain(value: Any) -> Any:
    """``value`` as something that can be counted."""
    return tuple(value) if isinstance(value, list) else canonical(value) if isinstance(value, Mapping) else value


def in_a_line(labels: Mapping[str, Any]) -> str:
    """The labels that people know a cell by."""
    names = ("partition", "norm", "attack", "defense", "f", "seed")
    return " ".join(str(labels[n]) for n in names if n in labels)


def find_both(first: str, second: str) -> tuple[CellResult | Source, CellResult | Source]:
    """Both targets (``find``); a cell beside one of a board is what a board would hold of it, without all the rest."""
    a, b = find(first), find(second)
    if not (isinstance(a, CellResult) and isinstance(b, CellResult)) or _of_board(first) == _of_board(second):
        return a, b
    return (a, _published(b, like=a)) if _of_board(first) else (_published(a, like=b), b)


def _of_board(target: str) -> bool:
    """True if ``target`` is a cell of a board, FILE:KEY."""
    return not Path(target).exists() and Path(target.rpartition(":")[0]).is_file()


def _published(record: CellResult, *, like: CellResult) -> CellResult:
    """The record as a board has it, with the curve if another one of a board has one."""
    return publish([record], name=record.scenario, curves=bool(like.curve)).records()[0]


def find(target: str) -> CellResult | Source:
    """The target: a store or board, a record's file, or one cell of a store as ``STORE:KEY`` (or its start).

    Raises ``UsageError`` if it is none of these or damaged, or if a key's start is not unique.
    """
    path = Path(target)
    if path.is_file() and path.parent.name == "cells" and path.suffix == ".json":
        try:
            return Store(path.parent.parent).read(path.stem)
        except StoreError as error:
            raise UsageError(str(error)) from None
    folder, colon, start = target.rpartition(":")
    if not colon or path.exists() or not Path(folder).exists():
        return read_source(target)
    source = read_source(folder)
    found = [r for r in source.results if r.key.startswith(start)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} cells of {folder!r} have keys that start with {start!r}; give more of the key")
    known = closest(start, [r.key for r in source.results][:5])
    raise UsageError(f"no cell of {folder!r} has a key that starts with {start!r}; {known}")
