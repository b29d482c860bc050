"""Ranks over scenarios: Friedman's test and Nemenyi's critical difference (Demšar, JMLR 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .board import OVERALL, Board, metric_title
from .contestants import CONDITIONS
from .estimate import Estimate
from .paired import LEVEL

MIN_SCENARIOS = 5
"""Fewer scenarios make the chi-square approximation of Friedman's test meaningless."""


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of contestants over scenarios (1 is best), the test, and the difference two of them must exceed.

    ``groups`` are maximal runs of contestants (places in ``names``) whose mean ranks do not differ.
    """

    metric: str
    names: tuple[tuple[str, ...], ...] = ()
    mean_ranks: tuple[float, ...] = ()
    scenarios: tuple[str, ...] = ()
    statistic: float | None = None
    p: float | None = None
    critical: float | None = None
    groups: tuple[tuple[int, int], ...] = ()
    left_out: tuple[tuple[str, ...], ...] = ()
    verdict: str = ""


def rank_over_scenarios(board: Board, metric: str) -> Ranking:
    """Rank the contestants within every scenario (block × condition × attack) and average the ranks.

    A diverged place ranks last in its scenario; contestants with a place that failed, was refused or has not run are
    left out, since a mean rank over other scenarios cannot be compared.
    """
    own = [i for i, n in enumerate(board.label_names) if n not in CONDITIONS]
    places: dict[tuple[str, ...], dict[str, Estimate]] = {}
    for section in board.sections:
        if section.metric != metric or (section.block == OVERALL and len(board.blocks) > 1):
            continue
        for row in section.rows:
            where = _condition(board, section.block, row.labels)
            found = places.setdefault(tuple(row.labels[i] for i in own), {})
            found |= {" · ".join([*where, a]): e for a, e in zip(board.attacks, row.cells, strict=True)}
    scenarios = tuple(dict.fromkeys(name for found in places.values() for name in found))
    whole = {n: [_value(found[s]) for s in scenarios] for n, found in places.items() if _complete(found, scenarios)}
    left_out = tuple(n for n in places if n not in whole)
    return _tested(metric, {n: [v for v in vs if v is not None] for n, vs in whole.items()}, scenarios, left_out)


def _condition(board: Board, block: str, labels: Sequence[str]) -> list[str]:
    named = [f"{n} = {v}" for n, v in zip(board.label_names, labels, strict=True) if n in CONDITIONS]
    return [*([] if block == OVERALL else [block]), *named]


def _value(place: Estimate) -> float | None:
    return -1.0 if place.count("diverged") else place.mean


def _complete(found: Mapping[str, Estimate], scenarios: Sequence[str]) -> bool:
    return all(s in found and _value(found[s]) is not None for s in scenarios)


def _tested(
    metric: str,
    values: Mapping[tuple[str, ...], Sequence[float]],
    scenarios: tuple[str, ...],
    left_out: tuple[tuple[str, ...], ...],
) -> Ranking:
    import numpy as np
    from scipy import stats

    k, n = len(values), len(scenarios)
    if k < 3 or n < 2:
        words = f"Friedman's test needs three contestants and two scenarios that all have; there are {k} and {n}."
        return Ranking(metric, left_out=left_out, verdict=words)
    table = np.array(list(values.values()))
    ranks = stats.rankdata(-table.round(9), axis=0).mean(axis=1)
    order = sorted(range(k), key=lambda i: (ranks[i], i))
    names = list(values)
    if np.ptp(table, axis=0).max() == 0:
        statistic, p = 0.0, 1.0
    else:
        statistic, p = (float(v) for v in stats.friedmanchisquare(*table.round(9)))
    critical = critical_difference(k, n)
    sorted_ranks = [float(ranks[i]) for i in order]
    return Ranking(
        metric=metric,
        names=tuple(names[i] for i in order),
        mean_ranks=tuple(sorted_ranks),
        scenarios=scenarios,
        statistic=statistic,
        p=p,
        critical=critical,
        groups=groups_within(sorted_ranks, critical),
        left_out=left_out,
        verdict=_verdict(metric, k, n, statistic, p, critical, len(left_out)),
    )


def critical_difference(contestants: int, scenarios: int) -> float:
    """Nemenyi's ``q_α √(k(k+1)/6N)`` at the 5 % level.

    >>> round(critical_difference(4, 14), 2)  # 2.569 sqrt(20 / 84)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, contestants, math.inf)) / math.sqrt(2)
    return q * math.sqrt(contestants * (contestants + 1) / (6 * scenarios))


def groups_within(ranks: Sequence[float], critical: float) -> tuple[tuple[int, int], ...]:
    """The maximal runs (first, last) of sorted ranks that span no more than ``critical``; none of one place.

    >>> groups_within([1.0, 1.5, 2.5, 4.0], 1.5)
    ((0, 2), (2, 3))
    """
    runs: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(i for i in range(first, len(ranks)) if ranks[i] - ranks[first] <= critical + 1e-12)
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return tuple(runs)


def _verdict(metric: str, k: int, n: int, statistic: float, p: float, critical: float, left_out: int) -> str:
    words = (
        f"Friedman's test on {metric_title(metric)} of {k} contestants over {n} scenarios (conditions × attacks, mean "
        f"over seeds): χ² = {statistic:.3g}, p = {p:.3g}. "
    )
    if n < MIN_SCENARIOS:
        words += f"Too few scenarios to claim anything: the test's approximation needs at least {MIN_SCENARIOS}. "
    elif p > LEVEL:
        words += "No difference between contestants can be claimed. "
    else:
        words += f"Contestants differ; two of them do where their mean ranks differ by more than {critical:.2f}. "
    words += "Scenarios that share data are not independent, so this is an overview, not a proof."
    return words + (f" Left out for lack of a number somewhere: {left_out}." if left_out else "")
