"""Is one contestant better than another? Paired tests over seeds, which share data, initial weights and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .board import Section
from .estimate import CONFIDENCE

LEVEL = round(1 - CONFIDENCE, 6)
MAX_EXACT = 12
"""Up to so many pairs all ``2^n`` sign flips are enumerated."""


@dataclass(frozen=True)
class Comparison:
    """One row against the reference: the mean difference (row - reference), the p-value, Holm's adjustment."""

    row: int
    labels: tuple[str, ...]
    n: int
    difference: float
    p: float
    adjusted: float
    test: str

    @property
    def significant(self) -> bool:
        """Whether the adjusted p-value is at most the level."""
        return self.adjusted <= LEVEL


@dataclass(frozen=True)
class Comparisons:
    """All rows of a table against its first one, and in words what may be claimed."""

    metric: str
    block: str
    reference: tuple[str, ...]
    results: tuple[Comparison, ...]
    left_out: int
    verdict: str


def compare(section: Section) -> Comparisons:
    """Compare every row's worst case with the best ranked row's, seed by seed over the seeds both have.

    Up to 12 seeds: the exact sign-flip permutation test of the mean difference; beyond: Wilcoxon's signed-rank test.
    Two-sided; Holm's correction over the table. Rows without a number, or with only a bound, are left out.
    """
    usable = [i for i, row in enumerate(section.rows) if row.worst.is_number and not row.worst.bound]
    if len(usable) < 2:
        words = "Fewer than two rows have a worst case, so there is nothing to compare."
        return Comparisons(section.metric, section.block, (), (), len(section.rows) - len(usable), words)
    first = section.rows[usable[0]]
    base = dict(first.worst.values)
    pairs = []
    for i in usable[1:]:
        own = dict(section.rows[i].worst.values)
        pairs.append((i, [own[s] - base[s] for s in base if s in own]))
    raw = [p_value(differences) for _, differences in pairs]
    adjusted = holm(raw)
    results = tuple(
        Comparison(
            row=i,
            labels=section.rows[i].labels,
            n=len(d),
            difference=math.fsum(d) / len(d) if d else math.nan,
            p=p,
            adjusted=q,
            test=name_of_test(len(d)),
        )
        for (i, d), p, q in zip(pairs, raw, adjusted, strict=True)
    )
    left_out = len(section.rows) - len(usable)
    return Comparisons(section.metric, section.block, first.labels, results, left_out, _verdict(results))


def words_below(section: Section) -> str:
    """What may be claimed of a table, as a line below it; empty where there is nothing to compare."""
    found = compare(section)
    return f"Worst case, every row against the first. {found.verdict}" if found.results else ""


def name_of_test(n: int) -> str:
    """The test that is used for ``n`` pairs."""
    if n < 2:
        return "none"
    return "exact sign-flip permutation" if n <= MAX_EXACT else "Wilcoxon signed-rank"


def p_value(differences: Sequence[float]) -> float:
    """The two-sided p-value of paired differences; 1 if there are fewer than two or all are zero.

    >>> p_value([0.1, 0.2, 0.1, 0.3, 0.2, 0.1])
    0.03125
    """
    import numpy as np
    from scipy import stats

    n = len(differences)
    if n < 2 or not any(differences):
        return 1.0
    values = np.asarray(differences, dtype=np.float64)
    if n > MAX_EXACT:
        return float(stats.wilcoxon(values, zero_method="pratt", method="approx").pvalue)
    found = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    return float(found.pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: ``max_{j ≤ i} min(1, (m - j) p_(j))`` in increasing order.

    >>> [round(v, 6) for v in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [1.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = largest
    return adjusted


def seeds_needed(comparisons: int) -> int:
    """The fewest seeds with which the exact test can fall below the level after Holm's correction.

    >>> seeds_needed(1), seeds_needed(14)
    (6, 10)
    """
    return math.ceil(math.log2(2 * comparisons / LEVEL) - 1e-12)


def _verdict(results: Sequence[Comparison]) -> str:
    m, n = len(results), min(r.n for r in results)
    need = seeds_needed(m)
    significant = sum(r.significant for r in results)
    tests = " and ".join(sorted({r.test for r in results} - {"none"}))
    if n < 2:
        return f"One seed or none in common: too few seeds to claim anything; {_comparisons(m)} would need {need}."
    said = f"Test: {tests}, two-sided, n = {_range([r.n for r in results])} seeds, Holm over {_comparisons(m)}."
    if n < need and not significant:
        least = min(1.0, m * 2.0 ** (1 - n))
        return (
            f"{said} Too few seeds to claim anything: the smallest adjusted p that n = {n} allows is {least:.3g}; "
            f"{need} seeds could reach {LEVEL:g}."
        )
    differ = "differs" if significant == 1 else "differ"
    return f"{said} {significant} of {m} {differ} from the first at the level {LEVEL:g}."


def _comparisons(count: int) -> str:
    return f"{count} comparison{'' if count == 1 else 's'}"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
