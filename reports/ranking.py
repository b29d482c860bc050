"""From the table of cells to the board: places, worst cases, ranks, footnotes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import pandas as pd

from robustfl.autobyz import TITLE, Asked
from robustfl.errors import UsageError, closest
from robustfl.records import LATER, labels_of

from .board import OVERALL, Board, Row, Section, natural, row_name
from .captions import caption, footnotes, how_to_read, notes_of_cells
from .frame import label_columns, ranked_metrics, samples_of
from .grouping import (
    NO_ATTACK,
    OF_ATTACKS,
    Cell,
    Grouping,
    Labels,
    absent,
    bare,
    cells_of,
    grouping_of,
    label_tuples,
    text,
    texts_of,
)
from .paired import rank_ranges
from .table_cell import NORMAL, STATES, TableCell, acts, averaged, in_order, of_members, table_prior, worst

_LAST_BIT = 1e-9

NO_SHIFT = 1e-5
"""An attack that moves the honest mean by no more than this share of its length has no effect; rounding gives 1e-7."""

_MARGIN = 0.01
"""Accuracy above chance, beyond the uncertainty of the test set, that does not count as learned."""


@dataclass(frozen=True)
class _Placed:
    """A cell with the place of the board that it counts in, and the number of its footnote (0: none)."""

    task: Labels
    who: Labels
    own: Labels
    attack: str
    seed: str
    cell: Cell
    note: int = 0

    @property
    def done(self) -> bool:
        return bool(self.cell["status"] == "done")

    def number(self, name: str) -> float | None:
        """A number of a finished cell, None where it has no such."""
        return None if not self.done or absent(self.cell.get(name)) else float(self.cell[name])


def _numbers(cells: Iterable[_Placed], name: str) -> list[float]:
    return [value for p in cells if (value := p.number(name)) is not None]


def rank_board(
    table: pd.DataFrame,
    *,
    compare: Sequence[str] = (),
    problems: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
    autobyz: Asked | None = None,
    all_pairs: bool = False,
) -> Board:
    """The board of a table of cells (``frame``): one ranking of the contestants for every task, and their mean.

    Labels in ``compare`` say who competes, too. A cell with status ``missing`` is planned but has not run. With
    ``autobyz`` the worst of its members is an attack of its own, and its members count through it; with ``all_pairs``
    ranges of ranks are of the test of all pairs of rows. Raises
    ``UsageError`` for a table without cells, a column that is not there, or two cells that share every label.
    """
    _check(table, compare)
    cells = cells_of(table, autobyz)
    labels = [c for c in label_columns(table) if not c.startswith(OF_ATTACKS)]
    texts = texts_of(cells, labels)
    grouping = grouping_of(texts, compare=compare)
    attacks = attack_columns(sorted(set(texts["attack"]), key=lambda a: (a != NO_ATTACK, natural(a))), autobyz)
    metrics = sorted(ranked_metrics(table), key=lambda m: (m != "sa", m == "ra_worst", natural(m)))
    placed, notes = _placed(cells, texts, grouping)
    calm = _calm_costs(placed, autobyz)
    sections = _sections(placed, grouping, metrics, attacks, autobyz, calm)
    counts = Counter(str(s) for s in table["status"])
    shared = [c for c in labels if c not in (*grouping.contestant, *grouping.own, *grouping.task)]
    board = Board(
        scenario=", ".join(sorted({text(s) for s in table.get("scenario", []) if isinstance(s, str)})),
        label_names=tuple(map(bare, grouping.contestant)),
        attacks=attacks,
        sections=tuple(_ranged(s, all_pairs=True) for s in sections) if all_pairs else tuple(sections),
        task_names=tuple(map(bare, grouping.task)),
        own_names=tuple(map(bare, grouping.own)),
        defaults={k: text(v) for k, v in (labels_of(LATER) | dict(defaults or {})).items()},
        constants=tuple((c, texts[c].iloc[0]) for c in shared if texts[c].nunique() == 1),
        footnotes=notes,
        problems=tuple(problems),
        counts={s: counts[s] for s in ("done", "missing", *STATES) if counts[s]},
        versions=_versions(table),
        autobyz=autobyz,
        calm_costs=calm,
        all_pairs=all_pairs,
    )
    done = [(p.who, p.cell) for p in placed if p.done]
    seeds = {p.seed for p in placed if p.done}
    told = (*how_to_read(board, compare), *notes_of_cells(board, done))
    return replace(board, caption=caption(board, seeds=seeds), notes=tuple(filter(None, told)))


def attack_columns(attacks: Sequence[str], autobyz: Asked | None) -> Labels:
    """The attacks of a board with AutoByz before its members, which come in their own order."""
    if autobyz is None:
        return tuple(attacks)
    members = [label for label in autobyz.members if label in attacks]
    first = [a for a in attacks if a == NO_ATTACK]
    return (*first, TITLE, *members, *(a for a in attacks if a not in members and a not in first))


_NOT_COMPARED = {
    "attack": "every attack is a column already, and rows are ranked by the worst case over them",
    "seed": "a row is the mean over its seeds, by which rows are compared in pairs",
}
"""Labels that tell no contestants apart, and why."""


def _check(table: pd.DataFrame, compare: Sequence[str]) -> None:
    needed = ["status", "attack", "seed", "sa"]
    if lacking := [column for column in needed if column not in table]:
        told = f"it needs {', '.join(needed)} and labels"
        raise UsageError(f"leaderboard: the table has no column {lacking[0]!r}; {told}")
    if table.empty:
        raise UsageError("leaderboard: the table has no cells")
    allowed = [c for c in label_columns(table) if c not in _NOT_COMPARED]
    for name in compare:
        if name in _NOT_COMPARED:
            raise UsageError(f"leaderboard: cannot compare {name!r}: {_NOT_COMPARED[name]}")
        if name not in allowed:
            raise UsageError(f"leaderboard: cannot compare {name!r}; {closest(name, allowed)}")


def _placed(cells: pd.DataFrame, texts: pd.DataFrame, grouping: Grouping) -> tuple[list[_Placed], tuple[str, ...]]:
    """The cells in the order of the board, and its footnotes. Raises ``UsageError`` for two cells of one place."""
    roles = (label_tuples(texts, names) for names in (grouping.task, grouping.contestant, grouping.own))
    columns = (*roles, texts["attack"], texts["seed"], cells.to_dict("records"))
    placed = [_Placed(*values) for values in zip(*columns, strict=True)]
    placed.sort(key=lambda p: (*natural(" ".join((*p.task, *p.who, p.attack))), *natural(p.seed)))
    known: dict[tuple[object, ...], Cell] = {}
    for p in placed:
        first = known.setdefault((p.task, p.who, p.attack, p.seed), p.cell)
        if first is not p.cell:
            both = " and ".join(f"{str(c['key'])[:12]} ({text(c['status'])})" for c in (first, p.cell))
            raise UsageError(
                f"leaderboard: two cells for {', '.join((*p.who, p.attack))}, seed {p.seed}: {both} have other data or "
                "other versions of methods; drop one of them, or run the grid into a folder of its own"
            )
    numbers, notes = footnotes([p.cell for p in placed])
    return [replace(p, note=n) for p, n in zip(placed, numbers, strict=True)], notes


def _calm_costs(placed: Sequence[_Placed], autobyz: Asked | None) -> bool:
    """True where costs are those without attack.

    What attacks search and rehearse is no cost of a defense, and rows may have met others.
    """
    calm = {(p.task, p.who) for p in placed if p.attack == NO_ATTACK and p.number("seconds_per_round") is not None}
    return bool(calm) if autobyz is not None else calm == {(p.task, p.who) for p in placed}


def without_effect(cell: Cell) -> bool:
    """True if a finished cell's certificates say that its attack left the honest mean where it was.

    Either the attack's own, known before training (``no_effect``), or the measured one: no row of the attackers was
    dropped, and the mean of the updates, and of the statistics where attackers send some, stayed where it was. A board
    takes no number out of a worst case on that word that is below all others and below that without attack.
    """
    if cell["status"] != "done" or text(cell.get("attack")) == NO_ATTACK:
        return False
    if cell.get("certificates.no_effect") is True:
        return True
    dropped = cell.get("certificates.dropped")
    if not _still(cell.get("certificates.attack_shift")) or (isinstance(dropped, (int, float)) and dropped > 0):
        return False
    if cell.get("certificates.statistics") == 0 or cell.get("scope") == "update":
        return True
    return _still(cell.get("certificates.statistics_shift"))


def _still(shift: object) -> bool:
    return isinstance(shift, (int, float)) and shift <= NO_SHIFT


def _sections(
    placed: Iterable[_Placed],
    grouping: Grouping,
    metrics: Sequence[str],
    attacks: Sequence[str],
    autobyz: Asked | None,
    calm: bool,
) -> list[Section]:
    """The tables by metric: those of the mean over tasks first, where there are several, then those of each task."""
    tasks: dict[Labels, dict[Labels, dict[str, list[_Placed]]]] = {}
    for p in placed:
        places = tasks.setdefault(p.task, {}).setdefault(p.who, defaultdict(list))
        places[p.attack].append(p)
    names = [bare(c) for c in grouping.task]
    rows: dict[tuple[Labels, str], list[Row]] = {}
    for task, found in sorted(tasks.items(), key=lambda item: natural(" ".join(item[0]))):
        expected = {a: len({p.seed for places in found.values() for p in places.get(a, ())}) for a in attacks}
        for metric in metrics:
            rows[task, metric] = [_row(who, at, metric, expected, autobyz, calm) for who, at in found.items()]
    overall = [
        ranked_section(OVERALL, (), metric, _overall([rows[key] for key in rows if key[1] == metric], attacks), attacks)
        for metric in (metrics if len(tasks) > 1 else ())
    ]
    return overall + [
        ranked_section(row_name(names, task) or OVERALL, task, metric, ranked, attacks)
        for (task, metric), ranked in rows.items()
    ]


def _row(
    who: Labels,
    places: Mapping[str, Sequence[_Placed]],
    metric: str,
    expected: Mapping[str, int],
    autobyz: Asked | None,
    calm_costs: bool,
) -> Row:
    """One contestant in one task; ``expected`` seeds by attack are those that any row of the task has."""
    attacks = tuple(expected)
    found = _disproved({a: _place(places[a], metric, expected[a]) if a in places else TableCell() for a in attacks})
    members, seeds = tuple[tuple[str, int], ...](), 0
    if autobyz is not None:
        found[TITLE], members, seeds = of_members({a: found.get(a, TableCell()) for a in autobyz.members})
    inside = autobyz.members if autobyz is not None else ()
    attacked = [e for a, e in found.items() if a != NO_ATTACK and a not in inside and not e.idle]
    calm = [e for a, e in found.items() if a == NO_ATTACK and e.expected]
    if not any(e.expected for e in attacked):
        attacked = calm or [replace(e, idle=False) for e in found.values()]
    hardest = worst(attacked)
    if places.keys() == {NO_ATTACK} != set(attacks):  # others were attacked: its worst case is at most this
        hardest = replace(hardest, bound=True)
    cells = [p for found in places.values() for p in found]
    took = _numbers((p for p in cells if p.attack == NO_ATTACK or not calm_costs), "seconds_per_round")
    return Row(
        who, None, tuple(found[a] for a in attacks), hardest, fmean(took) if took else None,
        max((int(memory) for memory in _numbers(cells, "peak_memory") if memory), default=None),
        own=cells[-1].own, members=members, member_seeds=seeds, chance=_chance_if_there(places.get(NO_ATTACK, ())),
    )  # fmt: skip


def _place(cells: Sequence[_Placed], metric: str, expected: int) -> TableCell:
    """The place of the cells of one row under one attack."""
    found = [(p, value) for p in cells if (value := p.number(metric)) is not None]
    states = in_order(Counter(p.cell["status"] for p in cells))
    samples = [count for p, _ in found if (count := samples_of(p.cell, metric)) is not None]
    return TableCell(
        tuple((p.seed, value) for p, value in found), expected, states,
        notes=tuple(sorted({p.note for p in cells} - {0})),
        idle=bool(found) and not states and all(without_effect(p.cell) for p, _ in found),
        samples=samples[-1] if samples else None,
        diverged=frozenset(p.seed for p in cells if p.cell["status"] == "diverged"),
    )  # fmt: skip


def _chance_if_there(cells: Sequence[_Placed]) -> float | None:
    """The accuracy of guessing, if accuracy without attack is no better within the uncertainty of the test set."""
    chances = _numbers(cells, "chance")
    if not chances:
        return None
    chance, place = fmean(chances), _place(cells, "sa", len(cells))
    doubt = NORMAL * math.sqrt(chance * (1 - chance) / place.samples) if place.samples else 0.0
    return chance if place.mean is not None and place.mean <= chance + doubt + _MARGIN else None


def _disproved(found: Mapping[str, TableCell]) -> dict[str, TableCell]:
    """The estimates by attack, those without effect as numbers where they are below all others, and below no attack.

    Certificates look at the mean, and in measured rounds: rows that cancel can still mislead a rule, and an attack can
    rest while it is looked at. What is below all others had an effect. Nothing is below a divergence.
    """
    lowest = worst([e for a, e in found.items() if a != NO_ATTACK])
    calm = found.get(NO_ATTACK, TableCell())
    if not (lowest.expected or lowest.states):  # none of the others has an effect, or there is none
        lowest = calm
    floor = lowest.mean
    if floor is None:
        return dict(found)
    floor = floor if calm.mean is None else min(floor, calm.mean)
    return {
        a: replace(e, idle=False) if e.idle and e.mean is not None and e.mean < floor - _LAST_BIT else e
        for a, e in found.items()
    }


def _overall(tables: Sequence[Sequence[Row]], attacks: Sequence[str]) -> list[Row]:
    """The mean of the rows of several tasks."""
    by_labels = [{row.labels: row for row in table} for table in tables]
    empty = Row((), None, (TableCell(),) * len(attacks), TableCell())
    acted = [
        [attack != NO_ATTACK and acts(row.cells[i] for row in table) for i, attack in enumerate(attacks)]
        for table in tables
    ]
    union = dict.fromkeys(row.labels for table in tables for row in table)
    return [_mean_row(labels, [table.get(labels, empty) for table in by_labels], acted, attacks) for labels in union]


def _mean_row(labels: Labels, rows: Sequence[Row], acted: Sequence[Sequence[bool]], attacks: Sequence[str]) -> Row:
    """One row over all tasks: ``acted`` says for each task which of the ``attacks`` count in it.

    The mean under an attack, and that of worst cases, is over the tasks in which attacks act; where none is, over all.
    """

    def where(found: Sequence[bool]) -> list[Row]:
        return [row for row, counts in zip(rows, found, strict=True) if counts or not any(found)]

    columns = [where(found) for found in zip(*acted, strict=True)]
    seconds = [r.seconds_per_round for r in rows if r.seconds_per_round is not None]
    owns = list(dict.fromkeys(r.own for r in rows if r.own))
    counts = sum((Counter(dict(r.members)) for r in rows), Counter[str]())
    return Row(
        labels,
        None,
        tuple(averaged([r.cells[i] for r in some]) for i, some in enumerate(columns)),
        averaged([r.worst for r in where([any(found) for found in acted])]),
        fmean(seconds) if seconds else None,
        max((r.peak_memory for r in rows if r.peak_memory is not None), default=None),
        own=tuple(v[0] if len(set(v)) == 1 else "several" for v in zip(*owns, strict=True)),
        members=tuple(sorted(counts.items(), key=lambda item: (-item[1], attacks.index(item[0])))),
        member_seeds=sum(r.member_seeds for r in rows),
        chance=None if any(r.chance is None for r in rows) else fmean(r.chance for r in rows if r.chance is not None),
    )


def ranked_section(block: str, task: Labels, metric: str, rows: Sequence[Row], attacks: Sequence[str]) -> Section:
    """One table: rows by worst case with their ranks, places with what the table says about variances.

    It says so by what was measured, once: a worst case repeats numbers of its attacks.
    """
    prior = table_prior([e for row in rows for a, e in zip(attacks, row.cells, strict=True) if a != TITLE])
    known = [
        replace(r, cells=tuple(replace(e, prior=prior) for e in r.cells), worst=replace(r.worst, prior=prior))
        for r in rows
    ]
    return _ranged(Section(block, metric, tuple(_ranked(known)), task))


def _ranged(section: Section, *, all_pairs: bool = False) -> Section:
    ranges = rank_ranges(section, all_pairs=all_pairs)
    return replace(section, rows=tuple(replace(r, ranks=k) for r, k in zip(section.rows, ranges, strict=True)))


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Rows by worst case, best first; ties share a rank, diverged rows share the last, the others have none."""
    scores = [round(_score(r), 9) for r in rows if r.worst.exact]
    ranks: list[Row] = []
    for row in rows:
        last = len(scores) + 1 if row.worst.count("diverged") else None
        rank = 1 + sum(s > round(_score(row), 9) for s in scores) if row.worst.exact else last
        ranks.append(replace(row, rank=rank))
    return sorted(ranks, key=lambda r: (r.rank is None, r.rank or 0, -_score(r), natural(" ".join(r.labels))))


def _score(row: Row) -> float:
    return row.worst.mean if row.worst.mean is not None else -1.0


def _versions(table: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    prefix = "certificates.versions."
    names = sorted(c for c in map(str, table.columns) if c.startswith(prefix))
    names += [name for name in ("commit", "processor") if name in table.columns]
    found = [(n.removeprefix(prefix), ", ".join(sorted({str(v) for v in table[n].dropna()}))) for n in names]
    return tuple((name, words) for name, words in found if words)
