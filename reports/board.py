"""The leaderboard as a frozen value; writers and figures read nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from robustfl.errors import UsageError, closest

from .estimate import Estimate

OVERALL = "overall"


@dataclass(frozen=True)
class Row:
    """One defense × norm: its labels, its rank by worst case, one estimate per attack, and what it cost.

    ``rank`` is ``None`` if the worst case is unknown or only a bound. ``seconds_per_round`` is the mean and
    ``peak_memory`` (bytes) the maximum over the row's finished cells.
    """

    labels: tuple[str, ...]
    rank: int | None
    cells: tuple[Estimate, ...]
    worst: Estimate
    seconds_per_round: float | None = None
    peak_memory: int | None = None


@dataclass(frozen=True)
class Section:
    """One table: one metric (``sa``, ``ra_<evasion>``, ``ra_worst``) in one block (a partition, or ``overall``)."""

    block: str
    metric: str
    rows: tuple[Row, ...]

    @property
    def metric_title(self) -> str:
        """``SA``, ``RA pgd``, or ``RA worst evasion``."""
        return metric_title(self.metric)


@dataclass(frozen=True)
class Board:
    """A leaderboard: tables of the same shape, and what a reader must know about all of them."""

    scenario: str
    by: str | None
    label_names: tuple[str, ...]
    attacks: tuple[str, ...]
    sections: tuple[Section, ...]
    constants: tuple[tuple[str, str], ...] = ()
    caption: str = ""
    footnotes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that have tables."""
        return tuple(dict.fromkeys(s.metric for s in self.sections))

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that have tables."""
        return tuple(dict.fromkeys(s.block for s in self.sections))

    def select(self, *, metric: str | None = None, block: str | None = None) -> Board:
        """The board with the tables of one metric or one block only. Raises ``UsageError`` for an unknown one."""
        sections = self.sections
        if metric is not None:
            wanted = _find_metric(metric, self.metrics)
            sections = tuple(s for s in sections if s.metric == wanted)
        if block is not None:
            if block not in self.blocks:
                raise UsageError(f"leaderboard: no block {block!r}; {closest(block, self.blocks)}")
            sections = tuple(s for s in sections if s.block == block)
        return replace(self, sections=sections)

    def frame(self) -> pd.DataFrame:
        """One row per table row: block, metric, rank, labels, attacks, worst case, costs, half-widths.

        Accuracies are means in percent, at full precision; where there is no number the text says why.
        """
        rows = []
        for section in self.sections:
            for row in section.rows:
                named = [*zip(self.attacks, row.cells, strict=True), ("worst case", row.worst)]
                line: dict[str, object] = {self.by or "block": section.block, "metric": section.metric}
                line |= {"rank": row.rank} | dict(zip(self.label_names, row.labels, strict=True))
                line |= {name: _value(e) for name, e in named}
                line |= {"seeds": len(row.worst.values), "seconds per round": row.seconds_per_round}
                line["peak memory (MiB)"] = None if row.peak_memory is None else row.peak_memory / 2**20
                line |= {f"± {name}": None if e.half is None else 100 * e.half for name, e in named}
                rows.append(line)
        table = pd.DataFrame(rows)
        if "rank" in table:
            table["rank"] = table["rank"].astype("Int64")
        half = [c for c in table.columns if c.startswith("± ") or c in ("seconds per round", "peak memory (MiB)")]
        return table.astype(dict.fromkeys(half, "float64"))


def _value(estimate: Estimate) -> float | str:
    if estimate.mean is None or estimate.bound:
        return estimate.text(interval=False)
    return 100 * estimate.mean


def row_name(names: Sequence[str], labels: Sequence[str]) -> str:
    """A row in words: methods by themselves, other labels with their name.

    >>> row_name(("defense", "norm", "f"), ("median", "fbn", "3"))
    'median · fbn · f = 3'
    """
    plain = ("defense", "norm", "algorithm", "model", "objective", "propagation")
    return " · ".join(v if n in plain else f"{n} = {v}" for n, v in zip(names, labels, strict=True))


def metric_title(metric: str) -> str:
    """A metric as a heading."""
    if metric == "ra_worst":
        return "RA worst evasion"
    return "RA " + metric[3:] if metric.startswith("ra_") else metric.upper()


def metric_meaning(metric: str) -> str:
    """A metric in words."""
    if metric == "sa":
        return "accuracy on clean test inputs, %"
    if metric == "ra_worst":
        return "accuracy on inputs that resist every evasion attack, %"
    return f"accuracy on test inputs perturbed by {metric[3:]}, %"


def _find_metric(metric: str, known: tuple[str, ...]) -> str:
    lower = metric.lower().replace(" ", "_")
    exact = [m for m in known if m.lower().replace(" ", "_") == lower]
    short = [m for m in known if m.split("(")[0].lower() == lower]
    robust = [m for m in known if m.startswith("ra_")]
    if lower == "ra" and robust:
        return "ra_worst" if "ra_worst" in robust else robust[0]
    if exact or len(short) == 1:
        return (exact or short)[0]
    raise UsageError(f"leaderboard: no metric {metric!r}; {closest(metric, known)}")


def natural(text: str) -> tuple[tuple[bool, float, str], ...]:
    """A sort key that orders numbers inside names by value: ``gamma(gamma=0.01)`` before ``gamma(gamma=0.5)``."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return tuple((i % 2 == 0, 0.0 if i % 2 == 0 else float(p), p) for i, p in enumerate(parts))
