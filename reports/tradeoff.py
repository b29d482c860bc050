"""What a board says about trade-offs: clean against robust accuracy, and accuracy against what the defense faces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .board import OVERALL, Board, Row, metric_title, row_name
from .contestants import heterogeneity
from .estimate import Estimate
from .ranking import NO_ATTACK


@dataclass(frozen=True)
class Pareto:
    """Points (labels, x, y in percent) and the places of those that no other dominates, from left to right."""

    x_label: str
    y_label: str
    points: tuple[tuple[tuple[str, ...], float, float], ...]
    front: tuple[int, ...]
    left_out: int


def pareto(board: Board) -> Pareto:
    """Clean against robust in the first block (overall, if there are several): one point per row.

    Across: worst-case SA; up: worst-case RA of the hardest metric. A board without RA has SA without attack across and
    worst-case SA up. Rows without both numbers are left out.
    """
    robust = [m for m in board.metrics if m != "sa"]
    block = board.blocks[0] if board.blocks else OVERALL
    rows = {m: {r.labels: r for s in board.sections if (s.block, s.metric) == (block, m) for r in s.rows}
            for m in board.metrics}  # fmt: skip
    if robust:
        hardest = "ra_worst" if "ra_worst" in robust else robust[0]
        across, up = "SA, worst case", f"{metric_title(hardest)}, worst case"
        pairs = {n: (r.worst, rows[hardest][n].worst) for n, r in rows["sa"].items() if n in rows[hardest]}
    else:
        across, up = "SA without attack", "SA, worst case"
        at = board.attacks.index(NO_ATTACK) if NO_ATTACK in board.attacks else None
        found = rows.get("sa", {})
        pairs = {} if at is None else {n: (r.cells[at], r.worst) for n, r in found.items()}
    whole = {n: p for n, p in pairs.items() if all(e.mean is not None and not e.bound for e in p)}
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


@dataclass(frozen=True)
class Breakdown:
    """Worst-case accuracy in percent against ``f`` or heterogeneity: a line per setting of everything else."""

    metric: str
    against: str
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]


def breakdowns(board: Board, labels: Sequence[tuple[str, ...]]) -> list[Breakdown]:
    """The breakdown curves of the rows with these labels; none where only one value of ``f`` or γ was run."""
    wanted = set(labels)
    found = []
    for metric in board.metrics:
        rows = [
            (s.block, r)
            for s in board.sections
            if s.metric == metric and (s.block != OVERALL or len(board.blocks) == 1)
            for r in s.rows
            if r.labels in wanted
        ]
        for against, lines in (("f", _by_f(board, rows)), *_by_heterogeneity(board, rows)):
            kept = tuple((n, tuple(sorted(p))) for n, p in sorted(lines.items()) if len(p) > 1)
            if kept:
                found.append(Breakdown(metric, against, kept))
    return found


Lines = dict[str, list[tuple[float, float]]]


def _by_f(board: Board, rows: Sequence[tuple[str, Row]]) -> Lines:
    lines: Lines = defaultdict(list)
    if "f" not in board.label_names:
        return lines
    at = board.label_names.index("f")
    told = board.label_names.index("f_declared") if "f_declared" in board.label_names else at
    for block, row in rows:
        # a defense that is told f has it as a second axis of the same value
        same = row.labels[told] == row.labels[at]
        kept = [i for i in range(len(row.labels)) if i != at and not (i == told and same)]
        others = [board.label_names[i] for i in kept], [row.labels[i] for i in kept]
        value = _percent(row.worst)
        if value is not None:
            lines[" · ".join([row_name(*others), *([] if block == OVERALL else [block])])].append(
                (float(row.labels[at]), value)
            )
    return lines


def _by_heterogeneity(board: Board, rows: Sequence[tuple[str, Row]]) -> list[tuple[str, Lines]]:
    by_letter: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    for block, row in rows:
        known, value = heterogeneity(block), _percent(row.worst)
        if known is not None and value is not None:
            by_letter[known[0]][row_name(board.label_names, row.labels)].append((known[1], value))
    return sorted(by_letter.items())


def _percent(place: Estimate) -> float | None:
    """The worst case in percent; a divergence is an accuracy of zero: nothing was learned."""
    if place.count("diverged"):
        return 0.0
    return None if place.mean is None else 100 * place.mean
