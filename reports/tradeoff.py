"""Trade-offs of a board: clean against robust accuracy, and accuracy against what the defense faces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from .board import OVERALL, Board, Row, hardest, metric_title, row_name
from .grouping import NO_ATTACK, heterogeneity
from .table_cell import TableCell


@dataclass(frozen=True)
class Pareto:
    """Points (labels, x, y in percent) and the places of those that no other dominates, from left to right."""

    x_label: str
    y_label: str
    points: tuple[tuple[tuple[str, ...], float, float], ...]
    front: tuple[int, ...]
    left_out: int


def pareto(board: Board) -> Pareto:
    """Clean against robust in the first table (overall, if there are several tasks): one point per contestant.

    Across: worst-case SA; up: worst-case RA of the hardest metric. A board without RA has SA without attack across and
    worst-case SA up. Rows without both numbers, or of fewer seeds than others, are left out.
    """
    robust = hardest(board.metrics)
    block = board.blocks[0] if board.blocks else OVERALL
    rows = {m: {r.labels: r for s in board.sections if (s.block, s.metric) == (block, m) for r in s.rows}
            for m in board.metrics}  # fmt: skip
    if robust:
        across, up = "SA, worst case", f"{metric_title(robust)}, worst case"
        pairs = {n: (r.worst, rows[robust][n].worst) for n, r in rows["sa"].items() if n in rows[robust]}
    else:
        across, up = "SA without attack", "SA, worst case"
        at = board.attacks.index(NO_ATTACK) if NO_ATTACK in board.attacks else None
        found = rows.get("sa", {})
        pairs = {} if at is None else {n: (r.cells[at], r.worst) for n, r in found.items()}
    known = {n: p for n, p in pairs.items() if all(e.exact for e in p)}
    most = max((len(e.values) for p in known.values() for e in p), default=0)
    whole = {n: p for n, p in known.items() if all(len(e.values) == most for e in p)}
    points = tuple((n, 100 * (x.mean or 0.0), 100 * (y.mean or 0.0)) for n, (x, y) in whole.items())
    return Pareto(across, up, points, front([(x, y) for _, x, y in points]), len(rows.get("sa", {})) - len(points))


def front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """The places of the points that no other beats in one number without losing in the other, from left to right.

    >>> front([(1, 3), (2, 2), (1, 2), (3, 1)])
    (0, 1, 3)
    """
    best = float("-inf")
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], -i)):
        if points[i][1] > best or (kept and points[i] == points[kept[-1]]):
            best = points[i][1]
            kept.append(i)
    return tuple(reversed(kept))


Line = Sequence[tuple[float, TableCell]]
"""Worst cases that are known, numbers and divergences, from the lowest ``f``, γ or α to the highest."""


@dataclass(frozen=True)
class Breakdown:
    """Worst-case accuracy against ``f`` or heterogeneity: a named line per setting of everything else, best first.

    Best is the mean of a line, in which a divergence counts as zero. ``single`` is the number of contestants that are
    known at one place alone, and have no line.
    """

    metric: str
    against: str
    lines: tuple[tuple[str, Line], ...]
    single: int = 0

    @property
    def label(self) -> str:
        """The words of the axis, with the end at which clients are alike."""
        words = {"f": "Byzantine clients f", "γ": "γ (1: clients alike)", "α": "Dirichlet α (large: clients alike)"}
        return words[self.against]


def breakdowns(board: Board, labels: tuple[str, ...] | None = None) -> list[Breakdown]:
    """The breakdown curves of all rows, or of those with these labels; none where only one ``f`` or γ was run.

    A line is a contestant in tasks that differ in nothing else, at the places where its worst case is known.
    """
    found = []
    for metric in board.metrics:
        rows = [(s.task, r) for s in board.tasks if s.metric == metric for r in s.rows if labels in (None, r.labels)]
        for against, lines in (*_along(board, rows, "f"), *_along(board, rows, "partition")):
            kept = [(name, sorted(line, key=itemgetter(0))) for name, line in lines.items() if len(line) > 1]
            kept.sort(key=lambda line: (-fmean(place.mean or 0.0 for _, place in line[1]), line[0]))
            if kept:
                found.append(Breakdown(metric, against, tuple(kept), len(lines) - len(kept)))
    return found


def _along(
    board: Board, rows: Sequence[tuple[tuple[str, ...], Row]], axis: str
) -> list[tuple[str, dict[str, list[tuple[float, TableCell]]]]]:
    """The lines over one axis of the tasks, by what they are drawn against: ``f``, ``γ`` or ``α``."""
    if axis not in board.task_names:
        return []
    at = board.task_names.index(axis)
    told = board.task_names.index("f_declared") if axis == "f" and "f_declared" in board.task_names else at
    by_letter: dict[str, dict[str, list[tuple[float, TableCell]]]] = defaultdict(lambda: defaultdict(list))
    for task, row in rows:
        place = ("f", float(task[at])) if axis == "f" else heterogeneity(task[at])
        if place is None or not (row.worst.exact or row.worst.count("diverged")):
            continue
        # a defense that is told f has it as a second axis of the same value
        kept = [i for i in range(len(task)) if i != at and not (i == told and task[told] == task[at])]
        rest = row_name([board.task_names[i] for i in kept], [task[i] for i in kept])
        name = " · ".join(filter(None, [row_name(board.label_names, row.labels), rest]))
        by_letter[place[0]][name].append((place[1], row.worst))
    return sorted(by_letter.items())
