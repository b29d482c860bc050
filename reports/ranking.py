"""From the table of cells to the board: places, worst cases, ranks, footnotes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from robustfl.errors import UsageError, closest

from .board import OVERALL, Board, Row, Section, natural
from .captions import Footnotes, caption
from .estimate import STATES, Estimate, averaged, worst
from .frame import label_columns, robust_columns

NO_ATTACK = "none"
ATTACK_LABELS = ("f", "f_declared", "scope", "target")
"""Labels that only mean something under attack: an unattacked cell stands beside every value of them."""

_FIRST = ("defense", "norm")
Cell = Mapping[Hashable, Any]
Labels = tuple[str, ...]


@dataclass
class _Place:
    """The cells of one row under one attack."""

    values: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    states: Counter[str] = field(default_factory=Counter)
    notes: set[int] = field(default_factory=set)
    seeds: set[str] = field(default_factory=set)

    def estimate(self, metric: str) -> Estimate:
        found = self.values.get(metric, {})
        values = tuple((s, found[s]) for s in sorted(found, key=natural))
        states = tuple((s, self.states[s]) for s in STATES if self.states[s])
        return Estimate(values, len(self.seeds), states, notes=tuple(sorted(self.notes)))


@dataclass
class _Group:
    """The cells of one row under all attacks, in one block."""

    places: dict[str, _Place] = field(default_factory=lambda: defaultdict(_Place))
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def rank_board(table: pd.DataFrame, *, by: str | None = "partition", problems: Sequence[str] = ()) -> Board:
    """The board of a table of cells (``frame``), in blocks of equal ``by``.

    A cell with status ``missing`` is planned but has not run. Raises ``UsageError`` for a table without cells, a
    column that is not there, or two cells that share every label.
    """
    _check(table, by)
    cells = spread([dict(r) for r in table.to_dict("records")])
    varying = [c for c in label_columns(table) if len({text(cell.get(c)) for cell in cells}) > 1]
    shown = [c for c in _FIRST if c in table and c != by]
    shown += [c for c in label_columns(table) if c in varying and c not in (*_FIRST, "attack", "seed", by)]
    if {"f", "f_declared"} <= set(shown) and all(text(c["f"]) == text(c["f_declared"]) for c in cells):
        shown.remove("f_declared")  # the defense is told the truth everywhere
    attacks = sorted({text(c["attack"]) for c in cells}, key=lambda a: (a != NO_ATTACK, natural(a)))
    notes = Footnotes()
    groups = _grouped(cells, by, shown, notes, {"sa", "ra_worst", *robust_columns(table)})
    sections = [
        Section(block, metric, tuple(_ranked(rows)))
        for block, rows_of in _blocks(groups)
        for metric in _metrics(table)
        if (rows := rows_of(metric, attacks))
    ]
    measured = [c for c in cells if c["status"] == "done"]
    counts = Counter(str(s) for s in table["status"])
    board = Board(
        scenario=", ".join(sorted({text(s) for s in table.get("scenario", []) if isinstance(s, str)})),
        by=by,
        label_names=tuple(c.removeprefix("cell.") for c in shown),
        attacks=tuple(attacks),
        sections=tuple(sections),
        constants=tuple((c, text(cells[0].get(c))) for c in label_columns(table) if c not in (*varying, *shown)),
        footnotes=notes.texts(),
        problems=tuple(problems),
        counts={s: counts[s] for s in ("done", "missing", *STATES) if counts[s]},
        versions=_versions(table),
    )
    words = caption(board, seeds={text(c["seed"]) for c in measured})
    return replace(board, caption=f"{words}{_tested(measured)}")


def _tested(cells: Sequence[Cell]) -> str:
    """Which model was tested on what; schemes with models of their own beside others are named."""
    found: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        if not _absent(cell.get("evaluation")) and cell.get("evaluation"):
            found[str(cell["evaluation"])].add(text(cell.get("norm")))
    if not found:
        return ""
    if len(found) == 1:
        return f" Tested: {next(iter(found))}."
    parts = (f"{how} ({', '.join(sorted(norms, key=natural))})" for how, norms in sorted(found.items()))
    return f" Tested: {'; '.join(parts)}."


def _check(table: pd.DataFrame, by: str | None) -> None:
    needed = ["status", "attack", "seed", "sa"]
    for column in needed:
        if column not in table:
            raise UsageError(
                f"leaderboard: the table has no column {column!r}; it needs {', '.join(needed)} and labels"
            )
    if table.empty:
        raise UsageError("leaderboard: the table has no cells")
    allowed = [c for c in label_columns(table) if c not in ("attack", "seed")]
    if by is not None and by not in allowed:
        raise UsageError(f"leaderboard: cannot make blocks by {by!r}; {closest(by, allowed)}")


def spread(cells: list[dict[Hashable, Any]]) -> list[dict[Hashable, Any]]:
    """Put an unattacked cell beside every attacked setting of the labels that do not matter without an attack."""
    attacked = [c for c in cells if c["attack"] != NO_ATTACK]
    free = [
        label
        for label in ATTACK_LABELS
        if attacked and not {c.get(label) for c in attacked} & {c.get(label) for c in cells if c["attack"] == NO_ATTACK}
    ]
    if not free:
        return cells
    settings = {tuple(c.get(label) for label in free) for c in attacked}
    ordered = sorted(settings, key=lambda values: natural(" ".join(map(text, values))))
    return [
        {**c, **dict(zip(free, values, strict=True))} if c["attack"] == NO_ATTACK else c
        for c in cells
        for values in (ordered if c["attack"] == NO_ATTACK else [()])
    ]


def _grouped(
    cells: Iterable[Cell], by: str | None, shown: Sequence[str], notes: Footnotes, metrics: Collection[str]
) -> dict[str, dict[Labels, _Group]]:
    groups: dict[str, dict[Labels, _Group]] = defaultdict(lambda: defaultdict(_Group))

    def place_of(cell: Cell) -> tuple[str, Labels, str]:
        return text(cell[by]) if by else OVERALL, tuple(text(cell.get(c)) for c in shown), text(cell["attack"])

    for cell in sorted(cells, key=lambda c: tuple(natural(" ".join(_flat(place_of(c)))) + natural(text(c["seed"])))):
        block, labels, attack = place_of(cell)
        group, seed, status = groups[block][labels], text(cell["seed"]), cell["status"]
        place = group.places[attack]
        if seed in place.seeds:
            raise UsageError(
                f"leaderboard: two cells for {', '.join((*labels, attack))}, seed {seed}; drop one of them"
            )
        place.seeds.add(seed)
        if status == "done":
            for metric, value in cell.items():
                if metric in metrics and not _absent(value):
                    place.values[str(metric)][seed] = float(value)
            group.seconds += [] if _absent(cell.get("seconds_per_round")) else [float(cell["seconds_per_round"])]
            group.memory += [] if not cell.get("peak_memory") else [int(cell["peak_memory"])]
        elif status in STATES:
            place.states[status] += 1
            place.notes.add(notes.number(str(status), cell.get("reason"), cell.get("round")))
    return groups


def _flat(place: tuple[str, Labels, str]) -> tuple[str, ...]:
    return (place[0], *place[1], place[2])


def _blocks(groups: Mapping[str, Mapping[Labels, _Group]]) -> list[tuple[str, Any]]:
    """Each block's title with a function of metric and attacks to its rows; the mean over blocks comes first."""
    names = sorted(groups, key=natural)

    def rows(block: str, metric: str, attacks: Sequence[str]) -> dict[Labels, Row]:
        return {labels: _row(labels, group, metric, attacks) for labels, group in groups[block].items()}

    def overall(metric: str, attacks: Sequence[str]) -> list[Row]:
        tables = [rows(name, metric, attacks) for name in names]
        union = dict.fromkeys(labels for table in tables for labels in table)
        empty = Row((), None, (Estimate(),) * len(attacks), Estimate())
        return [_mean_row(labels, [table.get(labels, empty) for table in tables]) for labels in union]

    blocks: list[tuple[str, Any]] = [(n, lambda m, a, n=n: list(rows(n, m, a).values())) for n in names]
    return [(OVERALL, overall), *blocks] if len(names) > 1 else blocks


def _row(labels: Labels, group: _Group, metric: str, attacks: Sequence[str]) -> Row:
    cells = tuple(group.places[a].estimate(metric) if a in group.places else Estimate() for a in attacks)
    counted = [e for a, e in zip(attacks, cells, strict=True) if a != NO_ATTACK]
    seconds = math.fsum(group.seconds) / len(group.seconds) if group.seconds else None
    return Row(labels, None, cells, worst(counted or cells), seconds, max(group.memory, default=None))


def _mean_row(labels: Labels, rows: Sequence[Row]) -> Row:
    seconds = [r.seconds_per_round for r in rows if r.seconds_per_round is not None]
    return Row(
        labels,
        None,
        tuple(averaged(parts) for parts in zip(*(r.cells for r in rows), strict=True)),
        averaged([r.worst for r in rows]),
        math.fsum(seconds) / len(seconds) if seconds else None,
        max((r.peak_memory for r in rows if r.peak_memory is not None), default=None),
    )


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Rows by worst case, best first; ties share a rank, diverged rows share the last, the others have none."""
    scores = [round(_score(r), 9) for r in rows if r.worst.is_number and not r.worst.bound]
    ranks: list[Row] = []
    for row in rows:
        rank = None
        if row.worst.is_number and not row.worst.bound:
            rank = 1 + sum(s > round(_score(row), 9) for s in scores)
        elif row.worst.count("diverged"):
            rank = len(scores) + 1
        ranks.append(replace(row, rank=rank))
    return sorted(ranks, key=lambda r: (r.rank is None, r.rank or 0, -_score(r), natural(" ".join(r.labels))))


def _score(row: Row) -> float:
    return row.worst.mean if row.worst.mean is not None else -1.0


def _metrics(table: pd.DataFrame) -> list[str]:
    robust = [c for c in robust_columns(table) if table[c].notna().any()]
    worst_too = len(robust) > 1 and "ra_worst" in table.columns
    return ["sa", *sorted(robust, key=natural), *(["ra_worst"] if worst_too else [])]


def _versions(table: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    prefix = "certificates.versions."
    names = sorted(c for c in map(str, table.columns) if c.startswith(prefix))
    return tuple((n.removeprefix(prefix), ", ".join(sorted({str(v) for v in table[n].dropna()}))) for n in names)


def _absent(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def text(value: object) -> str:
    if _absent(value) or value is pd.NA:
        return "–"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
