"""Ranks over scenarios: Friedman's test and Nemenyi's critical difference (Demšar, JMLR 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robustfl.autobyz import TITLE

from .axes import NO_ATTACK
from .board import Board, metric_title
from .estimate import Estimate, acts
from .moderated import MIN_PAIRS
from .paired import LEVEL

MIN_SCENARIOS = 5
"""Fewer scenarios make the chi-square approximation of Friedman's test meaningless."""


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of contestants over scenarios (1 is best) in the board's order, the test, the critical difference.

    Two contestants differ where their mean ranks differ by more than ``critical``; ``too_few`` says in words why
    nothing can be claimed.
    """

    metric: str
    names: tuple[tuple[str, ...], ...] = ()
    mean_ranks: tuple[float, ...] = ()
    scenarios: tuple[str, ...] = ()
    statistic: float | None = None
    p: float | None = None
    critical: float | None = None
    left_out: tuple[tuple[str, ...], ...] = ()
    verdict: str = ""
    too_few: str = ""


def rank_over_scenarios(board: Board, metric: str) -> Ranking:
    """Rank the contestants within every scenario (task × attack) and average the ranks.

    No attack is no scenario, unless nothing else was run, and neither is an attack that had no effect on anybody, one
    under which nobody has a number, or the worst of several, which are scenarios themselves. A diverged place ranks
    last in its scenario; contestants with a place that failed, was refused or has not run are left out, since a mean
    rank over other scenarios cannot be compared. The order is that of the board's first table.
    """
    places: dict[tuple[str, ...], dict[str, Estimate]] = {
        row.labels: {} for row in next((s.rows for s in board.sections if s.metric == metric), ())
    }
    only = set(board.attacks) <= {NO_ATTACK}
    for section in board.tasks:
        for i, attack in enumerate(board.attacks if section.metric == metric else ()):
            column = [row.cells[i] for row in section.rows]
            counts = acts(column) and any(_value(place) is not None for place in column)
            if not counts or attack == TITLE or (attack == NO_ATTACK and not only):
                continue
            name = " · ".join([*([section.block] if board.task_names else []), attack])
            for row in section.rows:
                places[row.labels][name] = row.cells[i]
    scenarios = tuple(dict.fromkeys(name for found in places.values() for name in found))
    values = {
        name: [v for s in scenarios if (v := _value(found.get(s, Estimate()))) is not None]
        for name, found in places.items()
    }
    whole = {name: known for name, known in values.items() if len(known) == len(scenarios)}
    seeds = min((len(e.values) for name in whole for e in places[name].values() if e.values), default=0)
    return _tested(metric, whole, scenarios, tuple(name for name in places if name not in whole), seeds)


def _value(place: Estimate) -> float | None:
    return -1.0 if place.count("diverged") else place.mean


def _tested(
    metric: str,
    values: Mapping[tuple[str, ...], Sequence[float]],
    scenarios: tuple[str, ...],
    left_out: tuple[tuple[str, ...], ...],
    seeds: int,
) -> Ranking:
    from scipy import stats

    k, n = len(values), len(scenarios)
    if k < 3 or n < 2:
        words = f"Friedman's test needs three contestants and two scenarios that all have; there are {k} and {n}."
        return Ranking(metric, left_out=left_out, verdict=words)
    table = np.array(list(values.values())).round(9)
    ranks = stats.rankdata(-table, axis=0).mean(axis=1)
    if np.ptp(table, axis=0).max() == 0:
        statistic, p = 0.0, 1.0
    else:
        statistic, p = (float(v) for v in stats.friedmanchisquare(*table))
    critical, too_few = critical_difference(k, n), _too_few(n, seeds)
    return Ranking(
        metric=metric,
        names=tuple(values),
        mean_ranks=tuple(float(r) for r in ranks),
        scenarios=scenarios,
        statistic=statistic,
        p=p,
        critical=critical,
        left_out=left_out,
        verdict=_verdict(metric, k, n, statistic, p, critical, len(left_out), too_few),
        too_few=too_few,
    )


def _too_few(scenarios: int, seeds: int) -> str:
    """Why nothing can be claimed; empty if something can. The luck of one seed is that of all its scenarios."""
    if scenarios < MIN_SCENARIOS:
        return f"too few scenarios, since the test's approximation needs at least {MIN_SCENARIOS}"
    return f"too few seeds, since {seeds} may be luck in all scenarios" if seeds < MIN_PAIRS else ""


def critical_difference(contestants: int, scenarios: int) -> float:
    """Nemenyi's ``q_α √(k(k+1)/6N)`` at the 5 % level.

    >>> round(critical_difference(4, 14), 2)  # 2.569 sqrt(20 / 84)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, contestants, math.inf)) / math.sqrt(2)
    return q * math.sqrt(contestants * (contestants + 1) / (6 * scenarios))


def _verdict(
    metric: str, k: int, n: int, statistic: float, p: float, critical: float, left_out: int, too_few: str
) -> str:
    words = (
        f"Friedman's test on {metric_title(metric)} of {k} contestants over {n} scenarios (tasks × attacks, mean over "
        f"seeds): χ² = {statistic:.3g}, p = {p:.3g}. "
    )
    if too_few:
        words += f"Nothing can be claimed: {too_few}. "
    elif p > LEVEL:
        words += "No difference between contestants can be claimed. "
    else:
        words += f"Contestants differ; two of them do where their mean ranks differ by more than {critical:.2f}. "
    words += "Scenarios that share data are not independent, so this is an overview, not a proof."
    return words + (f" Left out for lack of a number somewhere: {left_out}." if left_out else "")
