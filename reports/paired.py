"""Which rows of a table can be told apart? Paired tests over seeds, which share data, initial weights and batches."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .board import Row, Section
from .estimate import CONFIDENCE
from .moderated import MIN_PAIRS, Array, pair_p_values

LEVEL = round(1 - CONFIDENCE, 6)
METHOD = "paired over seeds on the logit scale, moderated t, Holm over all pairs of the table"


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
        """True if the adjusted p-value is at most the level."""
        return self.adjusted is not None and self.adjusted <= LEVEL


@dataclass(frozen=True)
class Comparisons:
    """All rows of a table against its first one, and in words what may be claimed."""

    reference: tuple[str, ...]
    results: tuple[Comparison, ...]
    left_out: int
    verdict: str


@dataclass(frozen=True)
class _Pairs:
    """The rows (places in the table) that have a worst case, and for all pairs of them ``[r r]`` what was found."""

    rows: tuple[int, ...]
    difference: Array
    n: Array
    p: Array
    adjusted: Array
    tested: np.ndarray[Any, np.dtype[np.bool_]]


def compare(section: Section) -> Comparisons:
    """Compare every row's worst case with the best ranked row's, seed by seed over the seeds both have.

    The test is that of the ranks' ranges (``METHOD``), so that both say the same. Rows without a number, or with only a
    bound, are left out.
    """
    found = _pairs(section)
    left_out = len(section.rows) - len(found.rows)
    if len(found.rows) < 2:
        words = "Fewer than two rows have a worst case, so there is nothing to compare."
        return Comparisons((), (), left_out, words)
    results = tuple(
        Comparison(
            row=i,
            labels=section.rows[i].labels,
            n=int(found.n[0, k]),
            difference=float(-found.difference[0, k]),
            p=float(found.p[0, k]) if found.tested[0, k] else None,
            adjusted=float(found.adjusted[0, k]) if found.tested[0, k] else None,
        )
        for k, i in enumerate(found.rows)
        if k
    )
    first = section.rows[found.rows[0]].labels
    return Comparisons(first, results, left_out, _verdict(results))


def rank_ranges(section: Section) -> list[tuple[int, int] | None]:
    """For every row the ranks it may have: as high as no better row, and as low as no worse row, is told apart from it.

    Rows are ranked by their own seeds and told apart on those they share, so a row that lacks seeds may stand on the
    wrong side of another; its range reaches to its rank all the same. Rows that diverged come after all others and are
    not told apart from each other; rows without rank have none.
    """
    found = _pairs(section)
    count, last = len(found.rows), sum(row.rank is not None for row in section.rows)
    ranges: list[tuple[int, int] | None] = [(count + 1, last) if row.rank is not None else None for row in section.rows]
    apart = found.adjusted <= LEVEL
    for k, i in enumerate(found.rows):
        better = int((apart[k] & (found.difference[k] < 0)).sum())
        worse = int((apart[k] & (found.difference[k] > 0)).sum())
        rank = section.rows[i].rank or 1
        ranges[i] = min(1 + better, rank), max(count - worse, rank)
    return ranges


def _pairs(section: Section) -> _Pairs:
    rows = tuple(i for i, row in enumerate(section.rows) if row.worst.exact)
    table = _table([section.rows[i] for i in rows])
    samples = min((s for i in rows if (s := section.rows[i].worst.samples)), default=None)
    difference = np.zeros((len(rows), len(rows)))
    for k in range(len(rows)):  # over the seeds that both have
        apart = table[k] - table
        shared = ~np.isnan(apart)
        difference[k] = np.where(shared, apart, 0.0).sum(1) / np.maximum(shared.sum(1), 1)
    p, n = pair_p_values(table, samples)
    tested = n >= MIN_PAIRS
    p = np.where(tested, p, 1.0)
    adjusted = np.ones_like(p)
    upper = np.triu_indices(len(rows), 1)
    adjusted[upper] = holm(p[upper])
    adjusted.T[upper] = adjusted[upper]
    return _Pairs(rows, difference, n, p, adjusted, tested)


def _table(rows: Sequence[Row]) -> Array:
    """The worst cases ``[rows seeds]``; NaN where a row has no value for a seed."""
    seeds = list(dict.fromkeys(s for row in rows for s, _ in row.worst.values))
    found = [dict(row.worst.values) for row in rows]
    return np.array([[own.get(s, math.nan) for s in seeds] for own in found], dtype=np.float64).reshape(
        len(rows), len(seeds)
    )


def alike(section: Section) -> dict[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """For every row with a worst case, by its labels, the others that the test of the ranks does not tell from it."""
    found = _pairs(section)
    names = [section.rows[i].labels for i in found.rows]
    apart = found.adjusted <= LEVEL
    return {
        name: tuple(other for m, other in enumerate(names) if m != k and not apart[k][m])
        for k, name in enumerate(names)
    }


def words_below(section: Section) -> str:
    """The claims a table allows, as a line below it; empty where there is nothing to compare."""
    found = compare(section)
    return found.verdict if found.results else ""


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
    return f"{significant} of {len(results)} rows can be told apart from the first (n = {seeds} seeds).{more}"


def span(counts: Collection[int]) -> str:
    """The least and the greatest of several numbers in words.

    >>> span([3, 5, 4]), span([3, 3])
    ('3 to 5', '3')
    """
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
