"""Rows of one's own in the tables of a published board: where they stand, or what keeps them from standing there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from robustfl.autobyz import asked_of
from robustfl.errors import UsageError

from .benchmark.cross_chosen import with_cross_chosen
from .board import Board, Row, natural, row_name
from .columns import rank_text
from .frame import counted, frame, label_columns
from .grouping import ATTACK_LABELS, CONTESTANT, NO_ATTACK, OWN, label_tuples, texts_of
from .published.merge import Source, read_source, told_apart
from .ranking import rank_board

MEASURED = "board"
"""The label of whose row it is."""
SHIPPED = ("bench-c", "bench-d-3", "bench-m", "bench-p", "quickstart")
"""The boards that come with robustfl: the newest of every tier of the benchmark, and the preset's."""
_NEIGHBOURS = 2
_FIRST = 3


@dataclass(frozen=True)
class Comparison:
    """A store or board, ``mine``, in the tables of ``published``; ``board`` is None where no cell solves its task.

    ``differing`` are the settings that keep cells out, with the values of ``published`` and of ``mine``; ``left_out``
    counts these cells.
    """

    published: str
    mine: str
    board: Board | None
    differing: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    left_out: int
    notes: tuple[str, ...] = ()

    def tables(self) -> list[tuple[str, list[list[str]]]]:
        """Of every metric a heading and lines of rank, name, board, SA or RA without attack, worst case.

        Of the first task in which one's own rows have a number, the mean over tasks where there is one: the first rows,
        one's own, and two neighbours on either side of each.
        """
        board = self.board
        if board is None:
            return []
        names = [name for name in board.label_names if name != MEASURED]

        def line(row: Row) -> list[str]:
            calm = [cell.text() for attack, cell in zip(board.attacks, row.cells, strict=True) if attack == NO_ATTACK]
            who = row_name(names, [board.label(row, name) for name in names])
            return [rank_text(row), who, board.label(row, MEASURED), *(calm or ["–"]), row.worst.text()]

        found: dict[str, tuple[str, list[list[str]]]] = {}
        for section in board.sections:
            own = {i for i, row in enumerate(section.rows) if board.label(row, MEASURED) == self.mine}
            if section.metric not in found and any(section.rows[i].worst.is_number for i in own):
                near = {*range(_FIRST), *(i + step for i in own for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1))}
                lines = [line(row) for i, row in enumerate(section.rows) if i in near]
                found[section.metric] = f"{section.metric_title}, {section.block}, {len(section.rows)} rows", lines
        return list(found.values())


def shipped_boards() -> list[Path]:
    return [Path(str(files("robustfl.boards") / f"{name}.json.gz")) for name in SHIPPED]


def compare(
    path: str | Path, published: str | Path | None = None, *, defaults: Mapping[str, Any] | None = None
) -> Comparison:
    """The rows of a store or board in the tables of a published one.

    Without ``published`` it is the board that comes with robustfl with which most cells share their task, or, if none
    shares any, the one from which the fewest settings keep them apart. ``defaults`` are the labels of a cell that sets
    nothing, which captions leave out. Raises ``UsageError`` for what is no store or board.
    """
    mine = read_source(path)
    if not mine.results:
        raise UsageError(f"{path}: it has no finished cell yet")
    boards = shipped_boards() if published is None else [Path(published)]
    if boards == [Path(path)]:
        raise UsageError(f"{path} cannot be compared with itself; name the board that its rows are to be placed in")
    pairs = [told_apart([read_source(board), mine], [board, path]) for board in boards]
    found = [_against(theirs, own, defaults or {}) for theirs, own in pairs]
    return min(found, key=lambda one: (one.board is None, one.left_out, len(one.differing)))


def _against(published: Source, mine: Source, defaults: Mapping[str, Any]) -> Comparison:
    records = [*published.results, *mine.results]
    rules = published.protocol.get("benchmark") or {}
    table, words = counted(frame(records), (rules.get("statistic") or "final") if rules else None)
    table[MEASURED] = [published.name] * len(published.results) + [mine.name] * len(mine.results)
    own = table[MEASURED] == mine.name
    texts = texts_of(table, [c for c in label_columns(table) if c not in _FREE and not c.startswith("cell.methods.")])
    texts["data"] = [str(r.cell.get("data", "–"))[:12] for r in records]
    calm = table["attack"] == NO_ATTACK
    tasks = label_tuples(texts, [*map(str, texts)])
    unattacked = label_tuples(texts, [str(c) for c in texts if c not in ATTACK_LABELS])
    place = pd.Series([(bool(c), u if c else t) for c, u, t in zip(calm, unattacked, tasks, strict=True)])
    known = set(place[~own])
    fits = place.isin(known)
    left_out = int((own & ~fits).sum())
    differing = _differing(texts[~own], texts[own & ~fits]) if left_out else ()
    if not (own & fits).any():
        return Comparison(published.name, mine.name, None, differing, left_out)
    board = rank_board(
        table[~own | fits].reset_index(drop=True), compare=[MEASURED], autobyz=asked_of(published.protocol),
        defaults=defaults,
    )  # fmt: skip
    board = with_cross_chosen(board) if rules else board  # as the benchmark's pages score
    board = replace(board, notes=tuple(filter(None, (*board.notes, words))))
    notes = _notes(published, mine, table[own & fits], table[~own])
    return Comparison(published.name, mine.name, board, differing, left_out, tuple(notes))


_FREE = {"attack", "seed", "scope", MEASURED, *CONTESTANT, *OWN}
"""Labels in which a row may differ from those of the published table."""


def _differing(theirs: pd.DataFrame, mine: pd.DataFrame) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    """The settings of which cells have values that no published one has; if there is none, all that vary."""
    values = {name: (sorted(set(theirs[name]), key=natural), sorted(set(mine[name]), key=natural)) for name in mine}
    outside = {name: pair for name, pair in values.items() if not set(pair[1]) <= set(pair[0])}
    if not outside:
        outside = {name: pair for name, pair in values.items() if len(pair[0]) > 1}
    return tuple((str(name), tuple(a), tuple(b)) for name, (a, b) in outside.items())


def _notes(published: Source, mine: Source, own: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    """What a reader must know of rows measured elsewhere: attacks, seeds and tuning that are not the board's."""
    found = []
    attacks = [a for a in dict.fromkeys(theirs["attack"]) if a not in set(own["attack"])]
    if attacks:
        found.append(
            f"{mine.name} has not met {len(attacks)} of the board's attacks, so that its worst case is an upper bound "
            f"and has no rank: {', '.join(map(str, attacks))}."
        )
    seeds, all_seeds = set(own["seed"]), set(theirs["seed"])
    if len(seeds) < len(all_seeds):
        found.append(f"{mine.name} has {len(seeds)} seeds, {published.name} {len(all_seeds)}.")
    rules, followed = (s.protocol.get("benchmark") or {} for s in (published, mine))
    if rules and not followed:
        found.append(
            f"The rows of {published.name} tried {rules.get('budget')} configurations each on validation data; how "
            f"those of {mine.name} were tuned is not known."
        )
    failed = Counter(status for status in own["status"] if status not in ("done", "diverged"))
    found += [f"{n} cells of {mine.name} are {status}." for status, n in failed.items()]
    return found
