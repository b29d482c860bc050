"""From the table of cells to the board: places, worst cases, ranks, footnotes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pandas as pd

from robustfl.autobyz import TITLE, Asked
from robustfl.errors import UsageError, closest, some

from .axes import NO_ATTACK, OF_ATTACKS, TOLD, Axes, Cell, Labels, absent, axes_of, bare, cells_of, text, values_of
from .board import OVERALL, Board, Row, Section, natural, row_name
from .captions import Footnotes, caption, how_to_read, in_plain_words, listed
from .ensembles import columns, of_members, words
from .estimate import NORMAL, STATES, Estimate, acts, averaged, in_order, table_prior, worst
from .frame import label_columns, ranked_metrics, samples_of
from .paired import rank_ranges

_LAST_BIT = 1e-9

NO_SHIFT = 1e-5
"""An attack that moves the honest mean by no more than this share of its length has no effect; rounding gives 1e-7."""


_MARGIN = 0.01
"""Accuracy above chance, beyond the uncertainty of the test set, that does not count as learned."""


@dataclass
class _Place:
    """The cells of one row under one attack."""

    values: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    states: Counter[str] = field(default_factory=Counter)
    diverged: set[str] = field(default_factory=set)
    notes: set[int] = field(default_factory=set)
    seeds: set[str] = field(default_factory=set)
    expected: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)

    def estimate(self, metric: str) -> Estimate:
        found = self.values.get(metric, {})
        values = tuple((s, found[s]) for s in sorted(found, key=natural))
        states = in_order(self.states)
        idle = bool(values) and not states and set(found) <= self.idle
        notes = tuple(sorted(self.notes))
        return Estimate(
            values, self.expected, states, notes=notes, idle=idle, samples=self.samples.get(metric),
            diverged=frozenset(self.diverged),
        )  # fmt: skip


@dataclass
class _Group:
    """The cells of one row under all attacks, in one task."""

    places: dict[str, _Place] = field(default_factory=lambda: defaultdict(_Place))
    chances: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    own: Labels = ()


def rank_board(
    table: pd.DataFrame,
    *,
    compare: Sequence[str] = (),
    problems: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
    autobyz: Asked | None = None,
) -> Board:
    """The board of a table of cells (``frame``): one ranking of the contestants for every task, and their mean.

    Labels in ``compare`` say who competes, too. A cell with status ``missing`` is planned but has not run. With
    ``autobyz`` the worst of its members is an attack of its own, and its members count through it. Raises
    ``UsageError`` for a table without cells, a column that is not there, or two cells that share every label.
    """
    _check(table, compare)
    cells = cells_of(table, autobyz)
    labels = [c for c in label_columns(table) if not c.startswith(OF_ATTACKS)]
    axes = axes_of(cells, labels, compare=compare)
    found = sorted({text(c["attack"]) for c in cells}, key=lambda a: (a != NO_ATTACK, natural(a)))
    attacks = columns(found, autobyz, NO_ATTACK)
    notes = Footnotes()
    metrics = sorted(ranked_metrics(table), key=lambda m: (m != "sa", m == "ra_worst", natural(m)))
    groups = _grouped(cells, axes, notes, metrics)
    measured = [c for c in cells if c["status"] == "done"]
    calm = _calm_costs(groups, autobyz)
    counts = Counter(str(s) for s in table["status"])
    free = [c for c in labels if c not in (*axes.contestant, *axes.own, *axes.task)]
    constant = [c for c in free if len({text(cell.get(c)) for cell in cells}) == 1]
    board = Board(
        scenario=", ".join(sorted({text(s) for s in table.get("scenario", []) if isinstance(s, str)})),
        label_names=tuple(bare(c) for c in axes.contestant),
        attacks=attacks,
        sections=tuple(_sections(groups, axes, metrics, attacks, autobyz, calm)),
        task_names=tuple(bare(c) for c in axes.task),
        own_names=tuple(bare(c) for c in axes.own),
        defaults={k: text(v) for k, v in (defaults or {}).items()},
        constants=tuple((c, text(cells[0].get(c))) for c in constant),
        footnotes=notes.texts(),
        problems=tuple(problems),
        counts={s: counts[s] for s in ("done", "missing", *STATES) if counts[s]},
        versions=_versions(table),
        autobyz=autobyz,
        calm_costs=calm,
    )
    told = [_idle_comparison(compare, board), *how_to_read(board), _members_words(board)]
    told += [_backdoors(measured, axes), _unequal_parts(measured), _tested(measured)]
    return replace(
        board, caption=caption(board, seeds={text(c["seed"]) for c in measured}), notes=tuple(filter(None, told))
    )


def _calm_costs(groups: Groups, autobyz: Asked | None) -> bool:
    """True where costs are those without attack.

    What attacks search and rehearse is no cost of a defense, and rows may have met others.
    """
    without = [bool(group.calm) for rows in groups.values() for group in rows.values()]
    return any(without) if autobyz is not None else all(without)


def _idle_comparison(compare: Sequence[str], board: Board) -> str:
    """The labels that were to tell rows apart, and do not."""
    idle = [name for name in map(bare, dict.fromkeys(compare)) if name not in board.label_names]
    constants = {bare(name) for name, _ in board.constants}
    whys = [f"{name} ({'all cells have one' if name in constants else 'the same as f'})" for name in idle]
    return f"Compared by what tells no rows apart: {listed(whys)}." if idle else ""


def _members_words(board: Board) -> str:
    """The words on the AutoByz column, if there is one, and on members that are refused where others are not."""
    autobyz = board.autobyz
    if autobyz is None:
        return ""
    at = board.attacks.index(TITLE)
    rows = [r for s in board.tasks if s.metric == "sa" for r in s.rows if not r.cells[at].count("refused")]
    places = {
        name: [r.cells[board.attacks.index(name)] for r in rows] for name in autobyz.members if name in board.attacks
    }
    counts = {name: sum(e.count("refused") > 0 for e in found) for name, found in places.items()}
    refused = {name: count for name, count in counts.items() if count}
    return words(autobyz, refused)


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


def _unequal_parts(cells: Sequence[Cell]) -> str:
    """The reason why a test set counts as smaller: an equal mean over unequal users is less certain than their sum."""
    sizes = [(float(c["certificates.equal_samples"]), int(c["samples"])) for c in cells
             if not absent(c.get("certificates.equal_samples")) and not absent(c.get("samples"))]  # fmt: skip
    if not sizes:
        return ""
    equal, images = min(sizes)
    return (
        "Users with unequally many test images weigh alike: their mean is as uncertain as accuracy on "
        f"{int(equal)} images, not on all {images}."
    )


def _tested(cells: Sequence[Cell]) -> str:
    """Which model was tested on what; schemes with models of their own beside others are named."""
    found: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        if not absent(cell.get("evaluation")) and cell.get("evaluation"):
            found[in_plain_words(str(cell["evaluation"]))].add(text(cell.get("norm")))
    if not found:
        return ""
    if len(found) == 1:
        return f"Tested: {next(iter(found))}."
    parts = (f"{how} ({', '.join(sorted(norms, key=natural))})" for how, norms in sorted(found.items()))
    return f"Tested: {'; '.join(parts)}."


def _backdoors(cells: Sequence[Cell], axes: Axes) -> str:
    """The success rates of backdoors by attack and contestant: means over seeds and tasks, the least first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell in cells:
        if not absent(cell.get("asr")):
            who = row_name([bare(c) for c in axes.contestant], values_of(cell, axes.contestant))
            found[text(cell["attack"]), who].append(float(cell["asr"]))
    rates = sorted((fmean(rates), attack, who) for (attack, who), rates in found.items())
    by_attack: dict[str, list[str]] = defaultdict(list)
    for rate, attack, who in rates:
        by_attack[attack].append(f"{who} {100 * rate:.1f}")
    told = "; ".join(f"{attack}: {some(each, _RATES)}" for attack, each in by_attack.items())
    return f"ASR, the share of images with the trigger that are taken for its target, in %: {told}." if told else ""


_RATES = 12

_APART = {
    "attack": "every attack is a column already, and rows are ranked by the worst case over them",
    "seed": "a row is the mean over its seeds, by which rows are compared in pairs",
}
"""Labels that tell no contestants apart, and why."""


def _check(table: pd.DataFrame, compare: Sequence[str]) -> None:
    needed = ["status", "attack", "seed", "sa"]
    for column in needed:
        if column not in table:
            raise UsageError(
                f"leaderboard: the table has no column {column!r}; it needs {', '.join(needed)} and labels"
            )
    if table.empty:
        raise UsageError("leaderboard: the table has no cells")
    allowed = [c for c in label_columns(table) if c not in _APART]
    for name in compare:
        if name in _APART:
            raise UsageError(f"leaderboard: cannot compare {name!r}: {_APART[name]}")
        if name not in allowed:
            raise UsageError(f"leaderboard: cannot compare {name!r}; {closest(name, allowed)}")


Groups = Mapping[Labels, Mapping[Labels, _Group]]
"""By task and contestant."""


def _grouped(cells: Iterable[Cell], axes: Axes, notes: Footnotes, metrics: Collection[str]) -> Groups:
    groups: dict[Labels, dict[Labels, _Group]] = defaultdict(lambda: defaultdict(_Group))

    def order(cell: Cell) -> tuple[Any, ...]:
        where = (*values_of(cell, axes.task), *values_of(cell, axes.contestant), text(cell["attack"]))
        return (*natural(" ".join(where)), *natural(text(cell["seed"])))

    before: Cell = {}
    for cell in sorted(cells, key=order):
        labels, attack = values_of(cell, axes.contestant), text(cell["attack"])
        group, seed = groups[values_of(cell, axes.task)][labels], text(cell["seed"])
        group.own = values_of(cell, axes.own)
        place = group.places[attack]
        if seed in place.seeds:
            both = " and ".join(f"{str(c['key'])[:12]} ({text(c['status'])})" for c in (before, cell))
            raise UsageError(
                f"leaderboard: two cells for {', '.join((*labels, attack))}, seed {seed}: {both} have other data or "
                "other versions of methods; drop one of them, or run the grid into a folder of its own"
            )
        place.seeds.add(seed)
        _add(cell, seed, group, place, notes, metrics)
        before = cell
    for rows in groups.values():
        _expect_equal_seeds(list(rows.values()))
    return groups


def _expect_equal_seeds(rows: Sequence[_Group]) -> None:
    """Expect of every row, under each attack, the seeds that any row of the task has under it: means compare them."""
    seeds: dict[str, set[str]] = defaultdict(set)
    for group in rows:
        for attack, place in group.places.items():
            seeds[attack] |= place.seeds
    for group in rows:
        for attack, place in group.places.items():
            place.expected = len(seeds[attack])


def _add(cell: Cell, seed: str, group: _Group, place: _Place, notes: Footnotes, metrics: Collection[str]) -> None:
    """Take what one cell measured, or why it did not, into its place."""
    if cell["status"] in STATES:
        place.states[cell["status"]] += 1
        place.diverged |= {seed} if cell["status"] == "diverged" else set()
        place.notes.add(notes.number(str(cell["status"]), cell.get("reason"), cell.get("round")))
    if cell["status"] != "done":
        return
    if TOLD in cell:
        place.notes.add(notes.number(NO_ATTACK, f"the rule was told f_declared = {text(cell[TOLD])}", None))
    for metric in metrics:
        if not absent(cell.get(metric)):
            place.values[metric][seed] = float(cell[metric])
            place.samples |= samples_of(cell, metric)
    if cell["attack"] == NO_ATTACK and not absent(cell.get("chance")):
        group.chances[seed] = float(cell["chance"])
    if without_effect(cell):
        place.idle.add(seed)
    took = [] if absent(cell.get("seconds_per_round")) else [float(cell["seconds_per_round"])]
    group.seconds += took
    group.calm += took if cell["attack"] == NO_ATTACK else []
    memory = cell.get("peak_memory")
    group.memory += [] if absent(memory) or not memory else [int(memory)]


def _sections(
    groups: Groups, axes: Axes, metrics: Sequence[str], attacks: Sequence[str], autobyz: Asked | None, calm: bool
) -> list[Section]:
    """The tables by metric: those of the mean over tasks first, where there are several, then those of each task."""
    tasks = sorted(groups, key=lambda task: natural(" ".join(task)))
    names = [bare(c) for c in axes.task]
    rows = {
        (task, metric): [_row(labels, group, metric, attacks, autobyz, calm) for labels, group in groups[task].items()]
        for task in tasks
        for metric in metrics
    }
    overall = [
        ranked_section(OVERALL, (), metric, _overall([rows[task, metric] for task in tasks], attacks), attacks)
        for metric in (metrics if len(tasks) > 1 else ())
    ]
    return overall + [
        ranked_section(row_name(names, task) or OVERALL, task, metric, found, attacks)
        for (task, metric), found in rows.items()
    ]


def _overall(tables: Sequence[Sequence[Row]], attacks: Sequence[str]) -> list[Row]:
    """The mean of the rows of several tasks."""
    by_labels = [{row.labels: row for row in table} for table in tables]
    empty = Row((), None, (Estimate(),) * len(attacks), Estimate())
    acted = [
        [attack != NO_ATTACK and acts(row.cells[i] for row in table) for i, attack in enumerate(attacks)]
        for table in tables
    ]
    union = dict.fromkeys(labels for table in by_labels for labels in table)
    return [_mean_row(labels, [table.get(labels, empty) for table in by_labels], acted, attacks) for labels in union]


def _row(
    labels: Labels, group: _Group, metric: str, attacks: Sequence[str], autobyz: Asked | None, calm_costs: bool
) -> Row:
    found = {a: group.places[a].estimate(metric) if a in group.places else Estimate() for a in attacks}
    members, seeds = tuple[tuple[str, int], ...](), 0
    found = _disproved(found)
    if autobyz is not None:
        found[TITLE], members, seeds = of_members({a: found.get(a, Estimate()) for a in autobyz.members})
    inside = autobyz.members if autobyz is not None else ()
    attacked = [e for a, e in found.items() if a != NO_ATTACK and a not in inside and not e.idle]
    calm = [e for a, e in found.items() if a == NO_ATTACK and e.expected]
    counted = (
        attacked if any(e.expected for e in attacked) else calm or [replace(e, idle=False) for e in found.values()]
    )
    took = group.calm if calm_costs else group.seconds
    seconds = fmean(took) if took else None
    memory = max(group.memory, default=None)
    cells = tuple(found[a] for a in attacks)
    return Row(
        labels, None, cells, worst(counted), seconds, memory, own=group.own, members=members, member_seeds=seeds,
        chance=_chance_if_there(group),
    )  # fmt: skip


def _chance_if_there(group: _Group) -> float | None:
    """The accuracy of guessing, if accuracy without attack is no better within the uncertainty of the test set."""
    if not group.chances:
        return None
    chance, place = fmean(group.chances.values()), group.places[NO_ATTACK].estimate("sa")
    doubt = NORMAL * math.sqrt(chance * (1 - chance) / place.samples) if place.samples else 0.0
    return chance if place.mean is not None and place.mean <= chance + doubt + _MARGIN else None


def _disproved(found: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """The estimates by attack, those without effect as numbers where they are below all others, and below no attack.

    Certificates look at the mean, and in measured rounds: rows that cancel can still mislead a rule, and an attack can
    rest while it is looked at. What is below all others had an effect. Nothing is below a divergence.
    """
    lowest = worst([e for a, e in found.items() if a != NO_ATTACK])
    calm = found.get(NO_ATTACK, Estimate())
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
    ranked = Section(block, metric, tuple(_ranked(known)), task)
    ranges = rank_ranges(ranked)
    return replace(ranked, rows=tuple(replace(r, ranks=k) for r, k in zip(ranked.rows, ranges, strict=True)))


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Rows by worst case, best first; ties share a rank, diverged rows share the last, the others have none."""
    scores = [round(_score(r), 9) for r in rows if r.worst.exact]
    ranks: list[Row] = []
    for row in rows:
        rank = None
        if row.worst.exact:
            rank = 1 + sum(s > round(_score(row), 9) for s in scores)
        elif row.worst.count("diverged"):
            rank = len(scores) + 1
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
