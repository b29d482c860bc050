"""Measurements for one table or figure, and verdicts on its statements: confirmed, contradicted, or undecided.

A statement about a mean difference is *confirmed* if the whole interval of that mean satisfies it and *contradicted* if
none of it does. The interval is that of the boards' paired test, in the metric's own unit as bounds are: Student's at
95 %, each statement's variance moderated by those of the same table's other statements about the same kind of number
(``reports.moderated_t``), every comparison counted once. With fewer seeds in common than that test asks for, nothing is
decided. Intervals are not corrected for the number of statements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from robustfl.errors import UsageError
from robustfl.records import CellResult

from ..grouping import text, values_of
from ..moderated_t import MIN_PAIRS, Prior, half_width, prior_of
from ..table_cell import CONFIDENCE
from .protocols import Selector, Statement

Panels = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""What a plot shows that needs no training: per panel and line (or kind of point) its places (x, y)."""


@dataclass(frozen=True)
class Planned:
    """One cell that the protocol asks for; ``key`` is empty where its data are not there to tell it."""

    labels: Mapping[str, Any]
    key: str = ""


@dataclass(frozen=True)
class Evidence:
    """The cells of a protocol, with their records where they have run.

    ``stale`` counts records of the same store or board whose key no cell of the protocol has: the preset, a method's
    version or the data changed since. ``lacking`` says what is missing on this machine (data, where to put it).
    ``computed`` has what the item's plots show without training, ``None`` for those drawn from cells.
    """

    planned: tuple[Planned, ...]
    records: Mapping[str, CellResult]
    stale: int = 0
    lacking: str = ""
    seconds: float = 0.0
    computed: tuple[Panels | None, ...] = ()

    @property
    def done(self) -> int:
        """The number of cells with a record."""
        return sum(1 for cell in self.planned if cell.key in self.records)

    @property
    def elsewhere(self) -> Counter[str]:
        """The number of these that ran on each device other than the CPU, whose last digits are their own."""
        ran = (self.records[cell.key].certificates.get("device") for cell in self.planned if cell.key in self.records)
        return Counter(str(device) for device in ran if device not in (None, "cpu"))

    def of(self, selector: Selector) -> list[Planned]:
        """The cells that a selector names."""
        return [cell for cell in self.planned if matches(cell.labels, selector)]


def matches(labels: Mapping[str, Any], selector: Selector) -> bool:
    """True if every label has the selector's value, or one of its values."""
    return all(text(labels.get(name)) in _texts(value) for name, value in selector.items())


def _texts(value: Any) -> set[str]:
    return {text(v) for v in value} if isinstance(value, (list, tuple)) else {text(value)}


def number(record: CellResult, metric: str, statistic: str = "final", *, percent: bool = True) -> float | None:
    """A number of a record, None where it has no such: ``metric`` and ``statistic`` as in ``Statement``.

    A run that diverged has the accuracy 0: it left no model that could be used. Its best evaluation is that before.
    """
    kind = metric.partition(":")[0]
    if record.status == "diverged" and percent and kind != "certificate":
        before = [p.sa for p in record.curve] if (metric, statistic) == ("sa", "best") else []
        return 100 * max(before, default=0.0)
    if record.status != "done" or record.metrics is None:
        return None
    found = _certified(record, metric) if kind == "certificate" else _of_metrics(record, metric, statistic)
    if found is None:
        return None
    return 100 * found if percent else found


def _of_metrics(record: CellResult, metric: str, statistic: str) -> float | None:
    """A number of the record's metrics; the last round's where there is no tail or no round was selected."""
    assert record.metrics is not None
    groups = record.metrics.groups
    kind, _, rest = metric.partition(":")
    final = _final(record, kind, rest)
    if statistic in ("best", "lowest") and metric == "sa":
        values = [p.sa for p in record.curve] + ([] if final is None else [final])
        return (max if statistic == "best" else min)(values) if values else None
    if statistic == "tail":
        return groups.get("tail", {}).get(metric, final)
    if statistic == "selected" and "selected" in groups:
        group, _, name = rest.rpartition(":")
        chosen = groups.get(f"selected, {group}", {}) if kind == "group" else groups["selected"]
        return _named(chosen, name if kind == "group" else rest or metric)
    return final


def _final(record: CellResult, kind: str, rest: str) -> float | None:
    assert record.metrics is not None
    if kind == "ra" and rest:
        return _named(record.metrics.ra, rest)
    if kind == "group":
        group, _, name = rest.rpartition(":")
        return _named(record.metrics.groups.get(group, {}), name)
    return getattr(record.metrics, kind, None)


def _named(numbers: Mapping[str, float], name: str) -> float | None:
    """The number of this name, or the first whose name begins so."""
    return numbers.get(name, next((v for n, v in numbers.items() if n.startswith(name)), None))


def _certified(record: CellResult, metric: str) -> float | None:
    value: Any = record.certificates
    for part in metric.partition(":")[2].split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) else None


def best_group(cells: Sequence[Planned], names: Sequence[str], values: Mapping[str, float]) -> list[Planned]:
    """Those cells that share the values of ``names`` with the best mean; all cells without ``names``."""
    if not names:
        return list(cells)
    groups: dict[tuple[str, ...], list[Planned]] = {}
    for cell in cells:
        groups.setdefault(values_of(cell.labels, names), []).append(cell)

    def mean(group: Sequence[Planned]) -> float:
        found = [values[c.key] for c in group if c.key in values]
        return sum(found) / len(found) if found else float("-inf")

    return max(groups.values(), key=mean, default=[])


Verdict = Literal["confirmed", "contradicted", "undecided", "not comparable", "not run", "stale"]
ORDER: tuple[Verdict, ...] = ("contradicted", "stale", "undecided", "confirmed", "not comparable", "not run")
"""The order of a page: findings first."""
FLOOR = 0.1
"""The least standard deviation of a difference, in the metric's unit: test sets are finite, zero spread is luck."""

Arithmetic = Callable[[Statement], float]


@dataclass(frozen=True)
class Side:
    """One side of a statement: its value per seed and the keys of the cells it comes from."""

    values: Mapping[str, float]
    keys: tuple[str, ...]
    chosen: str = ""

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return fmean(self.values.values()) if self.values else None


@dataclass(frozen=True)
class Finding:
    """A statement with its verdict, and the numbers it comes from.

    ``low`` and ``high`` bound the mean difference; ``reason`` says why there is no decision.
    """

    statement: Statement
    verdict: Verdict
    left: Side
    right: Side | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    reason: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all cells behind the numbers."""
        return (*self.left.keys, *(self.right.keys if self.right else ()))

    @property
    def comparison(self) -> tuple[frozenset[tuple[str, ...]], str]:
        """The rows that are compared, whichever side they stand on, and in which number."""
        s = self.statement
        sides = {self.left.keys} | ({self.right.keys} if self.right else set())
        return frozenset(sides), f"{s.metric} {s.right_metric} {s.statistic}"


def judge(
    statements: Sequence[Statement], evidence: Evidence, arithmetic: Arithmetic | None = None
) -> tuple[Finding, ...]:
    """The findings of one table or figure; ``arithmetic`` computes statements that need no run."""
    opened = [_measure(s, evidence, arithmetic) for s in statements]
    kinds = {f.statement.kind for f, _ in opened}
    priors = {kind: _prior([(f, d) for f, d in opened if f.statement.kind == kind]) for kind in kinds}
    return tuple(_decided(finding, differences, priors[finding.statement.kind]) for finding, differences in opened)


def _prior(opened: Sequence[tuple[Finding, list[float]]]) -> Prior | None:
    """The prior for variances that the comparisons of one kind of number give.

    Each counts once, however many statements ask it and from whichever side; runs that are the same bit for bit tell
    nothing. No more degrees of freedom than the rows have from which the comparisons are made.
    """
    told = {f.comparison: d for f, d in opened if len(d) > 1 and not f.statement.compute and any(d)}
    if not told:
        return None
    freedom = [len(d) - 1.0 for d in told.values()]
    rows = {side for comparison in told for side in comparison[0]}
    pooled = min(math.fsum(freedom), max(1, len(rows) - 1) * max(freedom))
    return prior_of([max(FLOOR**2, _variance(d)) for d in told.values()], freedom, pooled=pooled)


def _measure(statement: Statement, evidence: Evidence, arithmetic: Arithmetic | None) -> tuple[Finding, list[float]]:
    """The finding without a decision, and the differences it will come from."""
    nothing = Side({}, ())
    if statement.not_comparable:
        return Finding(statement, "not comparable", nothing, reason=statement.not_comparable), []
    if statement.compute:
        if arithmetic is None:
            return Finding(statement, "not run", nothing, reason="the arithmetic was not asked for"), []
        value = arithmetic(statement)
        return Finding(statement, "undecided", Side({"-": value}, ()), difference=value), [value]
    left = _side(statement, statement.left, statement.metric, evidence)
    other = statement.right_metric or statement.metric
    right = None if statement.right is None else _side(statement, statement.right, other, evidence)
    pairs = [
        v - (right.values[s] if right else 0.0) for s, v in left.values.items() if right is None or s in right.values
    ]
    if not pairs:
        return _without_numbers(statement, evidence, left, right), []
    if right is not None:  # what is shown is what is compared
        left, right = _common(left, right), _common(right, left)
    return Finding(statement, "undecided", left, right, fmean(pairs), seeds=len(pairs)), pairs


def _common(side: Side, other: Side) -> Side:
    """A side with the values of those seeds that the other has, too."""
    return replace(side, values={seed: value for seed, value in side.values.items() if seed in other.values})


def _without_numbers(statement: Statement, evidence: Evidence, left: Side, right: Side | None) -> Finding:
    if evidence.stale:
        words = f"{evidence.stale} stored cells are of another preset, method version or data set"
        return Finding(statement, "stale", left, right, reason=words)
    failed = [evidence.records[k].reason or "" for k in (*left.keys, *(right.keys if right else ()))]
    first = next((reason.splitlines()[0] for reason in failed if reason), "")
    return Finding(statement, "not run", left, right, reason=first or evidence.lacking or "its cells have not run")


def _side(statement: Statement, selector: Mapping[str, object], metric: str, evidence: Evidence) -> Side:
    planned = evidence.of({**statement.where, **selector})  # type: ignore[dict-item]
    cells = [c for c in planned if c.key in evidence.records]
    if statement.best and len(cells) < len(planned):  # the best may be among those that have not run
        return Side({}, tuple(c.key for c in cells))
    found = {
        c.key: number(evidence.records[c.key], metric, statement.statistic, percent=statement.percent) for c in cells
    }
    values = {key: value for key, value in found.items() if value is not None}
    chosen = best_group(cells, statement.best, values)
    by_seed: dict[str, float] = {}
    for cell in chosen:
        seed = str(cell.labels.get("seed"))
        if cell.key in values and seed in by_seed:
            raise UsageError(
                f"statement {statement.id!r} selects several cells of seed {seed}; {dict(selector)} is too wide"
            )
        if cell.key in values:
            by_seed[seed] = values[cell.key]
    words = _chosen_words(statement, chosen)
    return Side(dict(sorted(by_seed.items())), tuple(c.key for c in chosen), words)


def _chosen_words(statement: Statement, chosen: Sequence[Planned]) -> str:
    if not statement.best or not chosen:
        return ""
    return ", ".join(f"{name} = {chosen[0].labels.get(name)}" for name in statement.best)


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


def _decided(finding: Finding, differences: Sequence[float], prior: Prior | None) -> Finding:
    if finding.verdict != "undecided":
        return finding
    statement, n = finding.statement, len(differences)
    mean = finding.difference
    assert mean is not None
    if statement.compute:
        verdict: Verdict = "confirmed" if _holds(statement, mean, mean) else "contradicted"
        return replace(finding, verdict=verdict, low=mean, high=mean)
    if n < MIN_PAIRS:
        words = f"{n} seed{'' if n == 1 else 's'}; {MIN_PAIRS} are needed"
        return replace(finding, reason=words)
    low, high = interval(differences, prior)
    finding = replace(finding, low=low, high=high)
    if _holds(statement, low, high):
        return replace(finding, verdict="confirmed")
    if _fails(statement, low, high):
        return replace(finding, verdict="contradicted")
    return replace(finding, reason=f"{n} seeds cannot tell: the interval reaches over the bound")


def interval(differences: Sequence[float], prior: Prior | None) -> tuple[float, float]:
    """The 95 % interval of the mean difference, its variance moderated by ``prior``.

    >>> low, high = interval([9.0, 10.0, 11.0], prior=None)
    >>> round(low, 2), round(high, 2)
    (7.52, 12.48)
    """
    mean = fmean(differences)
    half = half_width(max(FLOOR**2, _variance(differences)), len(differences), prior, CONFIDENCE)
    return mean - half, mean + half


def _holds(statement: Statement, low: float, high: float) -> bool:
    """True if every value in ``[low, high]`` satisfies the statement."""
    if statement.at_least is not None:
        return low >= statement.at_least
    if statement.at_most is not None:
        return high <= statement.at_most
    assert statement.within is not None
    return max(abs(low - statement.value), abs(high - statement.value)) <= statement.within


def _fails(statement: Statement, low: float, high: float) -> bool:
    """True if no value in ``[low, high]`` satisfies the statement."""
    if statement.at_least is not None:
        return high < statement.at_least
    if statement.at_most is not None:
        return low > statement.at_most
    assert statement.within is not None
    return low - statement.value > statement.within or high - statement.value < -statement.within
