"""Which rows of a table can be told apart: paired tests over seeds, and ranks over scenarios (Demšar, JMLR 2006).

Cells of one seed share data, initial weights and batches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from robustfl.autobyz import TITLE

from .board import Board, Section, metric_title
from .grouping import NO_ATTACK
from .moderated_t import MIN_PAIRS, Array, p_values, pair_p_values
from .table_cell import CONFIDENCE, TableCell, acts

LEVEL = round(1 - CONFIDENCE, 6)
METHOD = "paired over seeds on the logit scale, moderated t, Holm over the rows"
"""The test of every row against the first one."""
PAIRS = METHOD.replace("the rows", "all pairs of the table")
"""The test of ranges of ranks over all pairs."""


@dataclass(frozen=True)
class Comparison:
    """One row against the reference: the mean difference (row - reference), the p-value, Holm's adjustment.

    Both are None where the rows share too few seeds for a test.
    """

    row: int
    labels: tuple[str, ...]
    n: int
    difference: float
    p: float | None
    adjusted: float | None

    @property
    def significant(self) -> bool:
        return self.adjusted is not None and self.adjusted <= LEVEL


@dataclass(frozen=True)
class Comparisons:
    """All rows of a table against its first one, and in words what may be claimed."""

    reference: tuple[str, ...]
    results: tuple[Comparison, ...]
    left_out: int
    verdict: str

    @property
    def claims(self) -> str:
        """The claims, as a line below the table; empty where there is nothing to compare."""
        return self.verdict if self.results else ""


def compare(section: Section) -> Comparisons:
    """Compare every row's worst case with the best ranked row's, seed by seed over the seeds both have.

    The test is ``METHOD``: there are as many comparisons as rows, so that it tells more apart than one of all pairs.
    Rows without a number, or with only a bound, are left out.
    """
    rows, table, samples = _numbers(section)
    left_out = len(section.rows) - len(rows)
    if len(rows) < 2:
        words = "Fewer than two rows have a worst case, so there is nothing to compare."
        return Comparisons((), (), left_out, words)
    others = np.arange(1, len(rows))
    p, seeds = p_values(table, samples, np.zeros_like(others), others)
    results = []
    for k, found, adjusted, n in zip(others.tolist(), p.tolist(), holm(p), seeds.tolist(), strict=True):
        tested = (found, adjusted) if n >= MIN_PAIRS else (None, None)
        apart = _differences(table[k] - table[0])
        results.append(Comparison(rows[k], section.rows[rows[k]].labels, int(n), float(apart), *tested))
    return Comparisons(section.rows[rows[0]].labels, tuple(results), left_out, _verdict(results))


def _verdict(results: Sequence[Comparison]) -> str:
    n = min(r.n for r in results)
    if n < MIN_PAIRS:
        have = "One seed or none" if n < 2 else f"{n} seeds"
        return f"{have} in common: too few to tell rows apart; {MIN_PAIRS} may, five or more should."
    significant = sum(r.significant for r in results)
    seeds = span([r.n for r in results])
    ahead = sum(r.significant and r.difference > 0 for r in results)
    lead = f"{ahead} of them is" if ahead == 1 else f"{ahead} of them are"
    more = f" {lead} ahead on the seeds that both have: each is ranked by its own." if ahead else ""
    return f"{significant} of {len(results)} rows differ significantly from the first ({seeds} seeds).{more}"


def rank_ranges(section: Section, *, all_pairs: bool = False) -> list[tuple[int, int] | None]:
    """For every row the ranks it may have, its own among them; ``None`` for a row without rank.

    Rows that are not told apart from the first (``compare``) share with it the ranks from 1 to the last of theirs; the
    others have their own. With ``all_pairs`` a row reaches as high as no better row, and as low as no worse row, is
    told apart from it by the test of all pairs. Rows that diverged come after all others and are not told apart from
    each other. Rows are ranked by their own seeds and told apart on those they share.
    """
    rows, table, samples = _numbers(section)
    count, last = len(rows), sum(row.rank is not None for row in section.rows)
    ranges: list[tuple[int, int] | None] = [(count + 1, last) if row.rank is not None else None for row in section.rows]
    own = {i: section.rows[i].rank or 1 for i in rows}
    if not all_pairs:
        apart = {result.row for result in compare(section).results if result.significant and result.difference < 0}
        first = (1, max((rank for i, rank in own.items() if i not in apart), default=1))
        for i, rank in own.items():
            ranges[i] = (rank, rank) if i in apart else first
        return ranges
    p = pair_p_values(table, samples)
    upper = np.triu_indices(count, 1)
    p[upper] = p.T[upper] = holm(p[upper])
    difference = _differences(table[:, None] - table)
    better = ((p <= LEVEL) & (difference < 0)).sum(1)
    worse = ((p <= LEVEL) & (difference > 0)).sum(1)
    for (i, rank), above, below in zip(own.items(), better.tolist(), worse.tolist(), strict=True):
        ranges[i] = min(1 + above, rank), max(count - below, rank)
    return ranges


def _numbers(section: Section) -> tuple[list[int], Array, int | None]:
    """The rows (places in the table) that have a worst case, it by row and seed, some NaN, and the test samples."""
    rows = [i for i, row in enumerate(section.rows) if row.worst.exact]
    worst = [section.rows[i].worst for i in rows]
    table = pd.DataFrame([dict(place.values) for place in worst]).to_numpy(dtype=np.float64)
    return rows, table, min((place.samples for place in worst if place.samples), default=None)


def _differences(apart: Array) -> Array:
    """The mean over the seeds that both rows have, 0 where there is none."""
    shared = ~np.isnan(apart)
    return np.asarray(np.where(shared, apart, 0.0).sum(-1) / np.maximum(shared.sum(-1), 1))


def holm(p: Sequence[float] | Array) -> list[float]:
    """Holm's adjusted p-values: ``max_{j ≤ i} min(1, (m - j) p_(j))`` in increasing order.

    >>> [round(v, 6) for v in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.minimum(1.0, (len(values) - np.arange(len(values))) * values[order])
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(stepped) if len(values) else stepped
    return [float(v) for v in adjusted]


def span(counts: Collection[int]) -> str:
    """The least and the greatest of several numbers in words.

    >>> span([3, 5, 4]), span([3, 3])
    ('3 to 5', '3')
    """
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


MIN_SCENARIOS = 5
"""Fewer scenarios make the chi-square approximation of Friedman's test meaningless."""


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of contestants over scenarios, the best (1) first, the test, the critical difference.

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
    rank over other scenarios cannot be compared.
    """
    places: dict[tuple[str, ...], dict[str, TableCell]] = {
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
        name: [v for s in scenarios if (v := _value(found.get(s, TableCell()))) is not None]
        for name, found in places.items()
    }
    whole = {name: known for name, known in values.items() if len(known) == len(scenarios)}
    seeds = min((len(e.values) for name in whole for e in places[name].values() if e.values), default=0)
    left_out = tuple(name for name in places if name not in whole)
    k, n = len(whole), len(scenarios)
    if k < 3 or n < 2:
        words = f"Friedman's test needs three contestants and two scenarios that all have; there are {k} and {n}."
        return Ranking(metric, left_out=left_out, verdict=words)
    found = _tested(metric, whole, scenarios, seeds)
    words = f" Left out for lack of a number somewhere: {len(left_out)}." if left_out else ""
    return replace(found, left_out=left_out, verdict=_friedman_words(found) + words)


def _value(place: TableCell) -> float | None:
    return -1.0 if place.count("diverged") else place.mean


def _tested(
    metric: str, values: Mapping[tuple[str, ...], Sequence[float]], scenarios: tuple[str, ...], seeds: int
) -> Ranking:
    from scipy import stats

    table = np.array(list(values.values())).round(9)
    ranks = stats.rankdata(-table, axis=0).mean(axis=1)
    order = np.argsort(ranks, kind="stable").tolist()
    statistic, p = (0.0, 1.0) if np.ptp(table, axis=0).max() == 0 else map(float, stats.friedmanchisquare(*table))
    too_few = ""
    if len(scenarios) < MIN_SCENARIOS:
        too_few = f"too few scenarios, since the test's approximation needs at least {MIN_SCENARIOS}"
    elif seeds < MIN_PAIRS:  # the luck of one seed is that of all its scenarios
        too_few = f"too few seeds, since {seeds} may be luck in all scenarios"
    critical = critical_difference(len(values), len(scenarios))
    names, means = [*values], ranks.tolist()
    return Ranking(
        metric, tuple(names[i] for i in order), tuple(means[i] for i in order), scenarios, statistic, p, critical,
        too_few=too_few,
    )  # fmt: skip


def critical_difference(contestants: int, scenarios: int) -> float:
    """Nemenyi's ``q_α √(k(k+1)/6N)`` at the 5 % level.

    >>> round(critical_difference(4, 14), 2)  # 2.569 sqrt(20 / 84)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, contestants, math.inf)) / math.sqrt(2)
    return q * math.sqrt(contestants * (contestants + 1) / (6 * scenarios))


def _friedman_words(found: Ranking) -> str:
    assert found.p is not None
    if found.too_few:
        claim = f"Nothing can be claimed: {found.too_few}."
    elif found.p > LEVEL:
        claim = "No difference between contestants can be claimed."
    else:
        claim = f"Contestants differ; two of them do where their mean ranks differ by more than {found.critical:.2f}."
    return (
        f"Friedman's test on {metric_title(found.metric)} of {len(found.names)} contestants over "
        f"{len(found.scenarios)} scenarios (tasks × attacks, mean over seeds): χ² = {found.statistic:.3g}, "
        f"p = {found.p:.3g}. {claim} "
        "Scenarios that share data are not independent, so this is an overview, not a proof."
    )
