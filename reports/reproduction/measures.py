"""The measurements for one table or figure: the records of its cells, those that are missing, those out of date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustfl.records import CellResult

from ..axes import text, values_of
from .protocols import Selector

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
