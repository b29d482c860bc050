"""Several people's records as one store. Equal cells must agree; what comes from outside says from where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robustfl.errors import UsageError
from robustfl.file_io import unsafe
from robustfl.records import CellResult

from ..store import RERUN, Store, open_store, refuse_board, refuse_records
from .agreement import Agreement, agree
from .board import TOLERANCE, Board, Protocol, carried, described_cells, misshaped
from .files import name_of, publish_described, sound_board, write_board


@dataclass(frozen=True)
class Source:
    """Where records come from: a name, the records, their plan, files that are no records, the protocol they follow.

    ``board`` is the board where the source is one.
    """

    name: str
    results: tuple[CellResult, ...]
    planned: dict[str, Any]
    problems: tuple[str, ...]
    protocol: Mapping[str, Any] = field(default_factory=dict)
    board: Board | None = None


@dataclass(frozen=True)
class Conflict:
    """One cell on which two sources disagree."""

    key: str
    labels: dict[str, Any]
    first: str
    second: str
    agreement: Agreement


@dataclass(frozen=True)
class Merge:
    """The joined records in the order of keys, how many cells several sources agreed on, and the conflicts.

    ``copied`` cells are in several sources as the record of one and the same run, which is no agreement of two.
    """

    results: tuple[CellResult, ...]
    agreed: int
    conflicts: tuple[Conflict, ...]
    problems: tuple[str, ...]
    copied: int = 0


def read_source(path: str | Path, *, name: str | None = None) -> Source:
    """The records of a store, or of a published board (a JSON file). Raises ``UsageError`` for anything else."""
    if Path(path).is_file():
        board = sound_board(path)
        return Source(name or board.name, tuple(board.records()), {}, (), board.protocol or {}, board)
    store = open_store(path)
    loaded, described = store.current(), store.description()
    protocol = carried(described)
    if words := misshaped(Protocol, "protocol", protocol):
        raise UsageError(f"{path}: {words}")
    own, results = name or store.folder.resolve().name, tuple(described_cells(loaded.results, described))
    return Source(own, results, described.get("cells", {}), tuple(map(str, loaded.problems)), protocol)


def merge(sources: Sequence[Source], *, tolerance: float) -> Merge:
    """Join the records of all sources; a cell that several have must agree within ``tolerance``.

    The first source's record is kept, unless it failed and another's did not. Every record's
    ``certificates["source"]`` names who measured it; a record that already names a source keeps that name behind.
    Copies of one run's record (``one_run``) measured it once, and must be identical.
    """
    found: dict[str, list[tuple[str, CellResult]]] = defaultdict(list)
    for source in sources:
        for record in source.results:
            found[record.key].append((_owner(source, record), record))
    results, conflicts, agreed, copied = list[CellResult](), list[Conflict](), 0, set[str]()
    for key in sorted(found):
        (owner, first), *others = [one for one in found[key] if one[1].status not in RERUN] or found[key][:1]
        runs = [(owner, first)]
        for name, record in others:
            copy_of = next((run for _, run in runs if one_run(run, record)), None)
            allowed = 0.0 if copy_of else tolerance
            compared = agree(copy_of or first, record, tolerance=allowed, details=allowed == 0)
            if not compared.agrees:
                conflicts.append(Conflict(key, record.labels, owner, name, compared))
            elif copy_of:
                copied.add(key)
            else:
                runs.append((name, record))
        agreed += len(runs) > 1
        who = " + ".join(dict.fromkeys(name for name, _ in runs))
        results.append(first.model_copy(update={"certificates": {**first.certificates, "source": who}}))
    problems = tuple(p for s in sources for p in s.problems)
    if not results:
        why = f"; not counted: {problems[0]}" if problems else ""
        raise UsageError(f"merge: none of {', '.join(s.name for s in sources)} holds a finished cell{why}")
    return Merge(tuple(results), agreed, tuple(conflicts), problems, len(copied))


def _owner(source: Source, record: CellResult) -> str:
    before = record.certificates.get("source")
    return f"{source.name} ({before})" if before and before != source.name else source.name


def one_run(first: CellResult, second: CellResult) -> bool:
    """True if two records of a cell are of one run: no two take equally long to the last digit of the clock.

    Boards carry no start of a run and no host, which tell two runs apart where a clock is coarse.
    """
    a, b = first.timing, second.timing
    took = [(t.seconds, t.seconds_per_round, t.peak_memory_bytes) for t in (a, b)]
    return took[0] == took[1] and all(x == y for x, y in ((a.started, b.started), (a.host, b.host)) if x and y)


def write_merge(
    merged: Merge, sources: Sequence[Source], out: str | Path, *, defaults: Mapping[str, Any] | None = None
) -> None:
    """Write joined records to ``out``, all or none of them: a board file (.json, .json.gz), or else a store.

    One board alone is written as that board, in the present format. ``defaults`` are the labels of a cell that sets
    nothing. Raises ``UsageError`` if there are conflicts or something else is there, ``StoreError`` if it cannot be
    written.
    """
    if merged.conflicts:
        raise UsageError(f"merge: {len(merged.conflicts)} cells are in conflict; nothing was written")
    out = Path(out)
    described = {"description": f"merged from {', '.join(s.name for s in sources)}", **joined_protocol(sources)}
    described |= {"defaults": dict(defaults)} if defaults else {}
    if out.suffix in (".json", ".gz"):
        refuse_board(out)
        write_board(_merged_board(merged, sources, name_of(out), described), out)
        return
    refuse_records("out", out)
    store = Store(out)
    if store.keys():
        raise UsageError(f"merge: {str(out)!r} holds records already; name a new folder")
    planned = {key: labels for s in sources for key, labels in s.planned.items()}
    store.describe({"name": out.name, "cells": planned, **described})
    store.commit_all(merged.results)


def _merged_board(merged: Merge, sources: Sequence[Source], name: str, described: Mapping[str, Any]) -> Board:
    boards = [source.board for source in sources if source.board]
    if len(sources) == 1 and boards:
        return replace(boards[0], defaults=boards[0].defaults or described.get("defaults", {}))
    tolerance = max((board.tolerance for board in boards), default=TOLERANCE)
    curves = any(board.has_curves for board in boards)
    return publish_described(merged.results, described, name=name, tolerance=tolerance, curves=curves)


def joined_protocol(sources: Sequence[Source]) -> dict[str, Any]:
    """The protocol that all sources follow, with what each of them searched and every row that was beaten.

    Raises ``UsageError`` naming the sources where two follow different ones, or searched one contestant's settings with
    different outcomes.
    """
    for name, facts in (("autobyz", ("version", "scope")), ("benchmark", ("tier", "version", "changed"))):
        said = [(s.name, [s.protocol[name].get(f) for f in facts] if name in s.protocol else None) for s in sources]
        stated = [of for _, of in said if of is not None]
        partly = name == "benchmark" and 0 < len(stated) < len(said)
        if partly or any(of != stated[0] for of in stated):
            words = "; ".join(
                f"{source}: {'none' if of is None else ' '.join(str(f) for f in of if f not in ([], None))}"
                for source, of in said
            )
            raise UsageError(f"merge: sources of different protocols are not merged ({name}: {words})")
    joined: dict[str, Any] = {}
    for source in sources:
        for name, facts_of in source.protocol.items():
            joined[name] = _joined(joined.get(name, {}), facts_of, source.name)
    return joined


def _joined(first: Mapping[str, Any], second: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The facts of two sources, of what both say the first's; contestants, near and beaten rows are those of both."""
    one, other = first.get("contestants", {}), second.get("contestants", {})
    for entry in sorted(one.keys() & other.keys()):
        if one[entry].get("chosen") != other[entry].get("chosen"):
            raise UsageError(f"merge: {name} chose another configuration of {entry} than the sources before it")
    beaten = list[Any](first.get("beaten", []))
    beaten += [row for row in second.get("beaten", []) if row not in beaten]
    near = [*dict.fromkeys([*first.get("near", []), *second.get("near", [])])]
    both = {"contestants": {**other, **one}, "beaten": beaten, "near": near}
    return {**second, **first, **{fact: value for fact, value in both.items() if value}}


def read_sources(paths: Sequence[str | Path], names: Sequence[str] = ()) -> list[Source]:
    """The records of several stores or boards, called by ``names``, or else each by a name that no other has."""
    if not names:
        return told_apart([read_source(path) for path in paths], paths)
    if any(map(unsafe, names)):
        raise UsageError("merge: --source holds control characters")
    if len(names) != len(paths):
        raise UsageError(f"merge: {len(names)} names for {len(paths)} sources; give --source once for each, in order")
    if len(set(names)) < len(names):
        raise UsageError(f"merge: --source {names!r}: a name for each, since places are told by it")
    return [read_source(path, name=name) for path, name in zip(paths, names, strict=True)]


def told_apart(sources: Sequence[Source], paths: Sequence[str | Path]) -> list[Source]:
    """The sources; those that share a name go by the shortest ends of their paths that nobody else's has.

    Names travel with published records, and where somebody's files lie is nobody's business.
    """
    own, parts = [source.name for source in sources], [Path(path).parts for path in paths]

    def end(i: int) -> str:
        alike = [parts[j] for j, name in enumerate(own) if name == own[i]]
        unique = (k for k in range(1, len(parts[i]) + 1) if [p[-k:] for p in alike].count(parts[i][-k:]) == 1)
        return str(Path(*parts[i][-next(unique, 1) :]))

    return [s if own.count(s.name) == 1 else replace(s, name=end(i)) for i, s in enumerate(sources)]
