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
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from robustfl.errors import UsageError
from robustfl.records import CellResult

from ..grouping import text, values_of
from ..moderated_t import MIN_PAIRS, Prior, half_width, prior_of
from ..table_cell import CONFIDENCE
from .protocols import Selector, Statement

Verdict = Literal["confirmed", "contradicted", "undecided", "not comparable", "not run", "stale"]
ORDER: tuple[Verdict, ...] = ("contradicted", "stale", "undecided", "confirmed", "not comparable", "not run")
"""The order of a page: findings first."""
FLOOR = 0.1
"""The least standard deviation of a difference, in the metric's unit: test sets are finite, zero spread is luck."""


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
    """

    planned: tuple[Planned, ...] = ()
    records: Mapping[str, CellResult] = field(default_factory=dict)
    stale: int = 0
    lacking: str = ""

    @property
    def ran(self) -> list[CellResult]:
        return [self.records[cell.key] for cell in self.planned if cell.key in self.records]

    @property
    def seconds(self) -> float:
        """The computing behind the records."""
        return sum((record.timing.seconds for record in self.records.values()), 0.0)

    @property
    def elsewhere(self) -> Counter[str]:
        """The number of these that ran on each device other than the CPU, whose last digits are their own."""
        devices = (record.certificates.get("device") for record in self.ran)
        return Counter(str(device) for device in devices if device not in (None, "cpu"))

    def of(self, selector: Selector) -> list[Planned]:
        return [cell for cell in self.planned if matches(cell.labels, selector)]


def matches(labels: Mapping[str, Any], selector: Selector) -> bool:
    """True if every label has the selector's value, or one of its values."""
    for name, value in selector.items():
        allowed = value if isinstance(value, (list, tuple)) else [value]
        if text(labels.get(name)) not in map(text, allowed):
            return False
    return True


# --- numbers of records ----------------------------------------------------------------------------------------------


def number(record: CellResult, metric: str, statistic: str = "final", *, percent: bool = True) -> float | None:
    """A number of a record, None where it has no such: ``metric`` and ``statistic`` as in ``Statement``.

    A run that diverged has the accuracy 0: it left no model that could be used. Its best evaluation is that before.
    """
    kind, _, rest = metric.partition(":")
    if record.status == "diverged" and percent and kind != "certificate":
        best = (metric, statistic) == ("sa", "best")
        return 100 * max((p.sa for p in record.curve), default=0.0) if best else 0.0
    if record.status != "done" or record.metrics is None:
        return None
    found: Any = record.certificates if kind == "certificate" else _measured(record, metric, statistic)
    for part in rest.split(".") if kind == "certificate" else ():
        found = found.get(part) if isinstance(found, Mapping) else None
    return (100 if percent else 1) * float(found) if isinstance(found, (int, float)) else None


def _measured(record: CellResult, metric: str, statistic: str) -> float | None:
    """A number of the record's metrics; the last round's where there is no tail or no round was selected."""
    assert record.metrics is not None
    groups, (kind, _, rest) = record.metrics.groups, metric.partition(":")
    selected = statistic == "selected" and "selected" in groups
    if kind == "group":
        group, _, name = rest.rpartition(":")
        return _named(groups.get(f"selected, {group}" if selected else group, {}), name)
    if selected:
        return _named(groups["selected"], rest or metric)
    final: float | None = _named(record.metrics.ra, rest) if rest else getattr(record.metrics, kind, None)
    if statistic == "mean" and metric == "sa":
        rounds = [p.round for p in record.curve]
        lengths = [after - before for before, after in zip([0, *rounds], rounds, strict=False)]
        return fmean((p.sa for p in record.curve), lengths) if rounds else record.metrics.sa
    if statistic in ("best", "lowest") and metric == "sa":
        return (max if statistic == "best" else min)([*(p.sa for p in record.curve), record.metrics.sa])
    return groups.get("tail", {}).get(metric, final) if statistic == "tail" else final


def _named(numbers: Mapping[str, float], name: str) -> float | None:
    """The number of this name, or the first whose name begins so."""
    return numbers.get(name, next((v for n, v in numbers.items() if n.startswith(name)), None))


def best_group(cells: Sequence[Planned], names: Sequence[str], values: Mapping[str, float]) -> list[Planned]:
    """Those cells that share the values of ``names`` with the best mean; all cells without ``names``."""
    groups: dict[tuple[str, ...], list[Planned]] = {}
    for cell in cells:
        groups.setdefault(values_of(cell.labels, names), []).append(cell)

    def mean(group: Sequence[Planned]) -> float:
        found = [values[c.key] for c in group if c.key in values]
        return sum(found) / len(found) if found else -math.inf

    return max(groups.values(), key=mean, default=[])


# --- verdicts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a statement: its value per seed and the keys of the cells it comes from."""

    values: Mapping[str, float] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    chosen: str = ""

    @property
    def mean(self) -> float | None:
        return fmean(self.values.values()) if self.values else None

    def common(self, other: Side) -> Side:
        """The values of those seeds that the other side has, too."""
        return replace(self, values={seed: value for seed, value in self.values.items() if seed in other.values})


@dataclass(frozen=True)
class Finding:
    """A statement with its verdict, and the numbers it comes from: ``differences``, one a seed.

    ``low`` and ``high`` bound the mean difference; ``reason`` says why there is no decision.
    """

    statement: Statement
    verdict: Verdict = "undecided"
    left: Side = field(default_factory=Side)
    right: Side | None = None
    differences: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """The mean difference, or the number that was computed."""
        return fmean(self.differences) if self.differences else None

    @property
    def seeds(self) -> int:
        """The number of seeds; 0 where nothing ran."""
        return 0 if self.statement.compute else len(self.differences)

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.left.keys, *(self.right.keys if self.right else ()))

    @property
    def comparison(self) -> tuple[frozenset[tuple[str, ...]], str]:
        """The rows that are compared, whichever side they stand on, and in which number."""
        s = self.statement
        sides = {self.left.keys} | ({self.right.keys} if self.right else set())
        return frozenset(sides), f"{s.metric} {s.right_metric} {s.statistic} {s.right_statistic}"


def judge(
    statements: Sequence[Statement], evidence: Evidence, compute: Callable[[Statement], float] | None = None
) -> tuple[Finding, ...]:
    """The findings of one table or figure; ``compute`` counts the numbers of statements that need no run."""
    opened = [_measure(s, evidence, compute) for s in statements]
    kinds = {s.kind for s in statements}
    priors = {kind: _prior([f for f in opened if f.statement.kind == kind]) for kind in kinds}
    return tuple(_decided(finding, priors[finding.statement.kind]) for finding in opened)


def _measure(statement: Statement, evidence: Evidence, compute: Callable[[Statement], float] | None) -> Finding:
    """The finding without a decision."""
    if statement.not_comparable:
        return Finding(statement, "not comparable", reason=statement.not_comparable)
    if statement.compute:
        assert compute is not None
        value = compute(statement)
        return Finding(statement, left=Side({"-": value}), differences=(value,))
    left, right = _side(statement, statement.left, statement.metric, statement.statistic, evidence), None
    differences = tuple(left.values.values())
    if statement.right is not None:
        metric, statistic = statement.right_metric or statement.metric, statement.right_statistic or statement.statistic
        right = _side(statement, statement.right, metric, statistic, evidence)
        shared, other = left.common(right), right.common(left)
        differences = tuple(value - other.values[seed] for seed, value in shared.values.items())
        if differences:  # what is shown is what is compared
            left, right = shared, other
    found = Finding(statement, left=left, right=right, differences=differences)
    if differences:
        return found
    if evidence.stale:
        words = f"{evidence.stale} stored cells are of another preset, method version or data set"
        return replace(found, verdict="stale", reason=words)
    failed = next((why.splitlines()[0] for k in found.keys if (why := evidence.records[k].reason)), "")
    missing = "its records lack this number" if found.keys and not statement.best else "its cells have not run"
    return replace(found, verdict="not run", reason=failed or evidence.lacking or missing)


def _side(statement: Statement, selector: Selector, metric: str, statistic: str, evidence: Evidence) -> Side:
    planned = evidence.of({**statement.where, **selector})
    cells = [c for c in planned if c.key in evidence.records]
    if statement.best and len(cells) < len(planned):  # the best may be among those that have not run
        return Side(keys=tuple(c.key for c in cells))
    read = {c.key: number(evidence.records[c.key], metric, statistic, percent=statement.percent) for c in cells}
    values = {key: value for key, value in read.items() if value is not None}
    chosen = best_group(cells, statement.best, values)
    seeds = [str(c.labels.get("seed")) for c in chosen if c.key in values]
    twice = next((seed for seed, times in Counter(seeds).items() if times > 1), None)
    if twice is not None:
        words = f"selects several cells of seed {twice}; {dict(selector)} is too wide"
        raise UsageError(f"statement {statement.id!r} {words}")
    by_seed = dict(sorted(zip(seeds, (values[c.key] for c in chosen if c.key in values), strict=True)))
    words = ", ".join(f"{name} = {chosen[0].labels.get(name)}" for name in statement.best) if chosen else ""
    return Side(by_seed, tuple(c.key for c in chosen), words)


def _prior(opened: Sequence[Finding]) -> Prior | None:
    """The prior for variances that the comparisons of one kind of number give.

    Each counts once, however many statements ask it and from whichever side; runs that are the same bit for bit tell
    nothing. No more degrees of freedom than the rows have from which the comparisons are made.
    """
    compared = {f.comparison: f.differences for f in opened if f.seeds > 1 and any(f.differences)}
    if not compared:
        return None
    freedom = [len(d) - 1.0 for d in compared.values()]
    rows = {side for comparison in compared for side in comparison[0]}
    pooled = min(math.fsum(freedom), max(1, len(rows) - 1) * max(freedom))
    return prior_of([_variance(d) for d in compared.values()], freedom, pooled=pooled)


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return max(FLOOR**2, math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _decided(finding: Finding, prior: Prior | None) -> Finding:
    n, statement = len(finding.differences), finding.statement
    if not n:
        return finding
    if statement.compute:
        low = high = finding.differences[0]
    elif n < MIN_PAIRS:
        return replace(finding, reason=f"{n} seed{'' if n == 1 else 's'}; {MIN_PAIRS} are needed")
    else:
        low, high = interval(finding.differences, prior)
    least, most = statement.allowed
    finding = replace(finding, low=low, high=high)
    if least <= low and high <= most:
        return replace(finding, verdict="confirmed")
    if high < least or low > most:
        return replace(finding, verdict="contradicted")
    return replace(finding, reason=f"{n} seeds cannot tell: the interval reaches over the bound")


def interval(differences: Sequence[float], prior: Prior | None) -> tuple[float, float]:
    """The 95 % interval of the mean difference, its variance moderated by ``prior``.

    >>> low, high = interval([9.0, 10.0, 11.0], prior=None)
    >>> round(low, 2), round(high, 2)
    (7.52, 12.48)
    """
    mean = fmean(differences)
    half = half_width(_variance(differences), len(differences), prior, CONFIDENCE)
    return mean - half, mean + half
