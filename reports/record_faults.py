"""Faults of a record that show by themselves: what no run leaves, or what others of its entries contradict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from robustfl.outside import shown, unsafe, unsafe_texts
from robustfl.records import CellResult, Metrics, last_round

MEASURES = ("ra_", "certificates.", "group.")
"""The beginnings of columns with measures in a table of cells."""
LABELS = ("ra_limit",)
"""Labels that look like measures by their names."""


def unlikely(record: CellResult) -> str | None:
    """The fault in a record whose form is right, or ``None``."""
    for name, label in record.labels.items():
        if isinstance(label, (dict, list)):
            return f"labels.{name} is a {type(label).__name__}, not a text or a number"
        if name.startswith(MEASURES) and name not in LABELS:
            return f"labels.{shown(name)} is called like a measure, which no setting is"
    if words := _unprintable(record) or next(itertools.chain(_ends_apart(record), _out_of_range(record)), None):
        return words
    if record.metrics is None:
        return None
    settings = record.cell.get("cell")
    known: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {}
    metrics = record.metrics
    found = (_unasked(metrics, known.get("evasions")), _unlikely_measures(metrics), _contradicted(record, known))
    return next(itertools.chain(*found), None)


def _ends_apart(record: CellResult) -> Iterator[str]:
    """Faults of a cell that has what one that ended so does not have, or lacks what it has."""
    if record.status == "done" and record.metrics is None:
        yield "done, but without metrics"
    if record.status == "done" and record.reason is not None:
        yield f"done, and a reason why not: {record.reason!r}"
    if record.status != "diverged" and record.round is not None:
        yield f"{record.status}, and diverged in round {record.round}"
    if record.status != "done" and record.metrics is not None:
        yield f"{record.status}, and has metrics"


def _unasked(metrics: Metrics, asked: Any) -> Iterator[str]:
    """Robust accuracies under other evasions than those of the cell's settings, and those that are missing."""
    if not isinstance(asked, (list, tuple)):
        return
    yield from (
        f"ra of {name!r}, which the cell does not have among its evasions" for name in metrics.ra if name not in asked
    )
    yield from (f"no ra of {name!r}, which is among the cell's evasions" for name in asked if name not in metrics.ra)
    measured = {"sa", "ra_worst", "asr", *map(str, asked)}
    strange = [f"{group}: {name}" for group, means in metrics.groups.items() for name in means.keys() - measured]
    if strange:
        yield f"groups hold {min(strange)!r}, which is neither sa, ra_worst nor one of the cell's evasions"


def _contradicted(record: CellResult, settings: Mapping[str, Any]) -> Iterator[str]:
    """Measures that others of the same record contradict: a run takes them from each other."""
    metrics, end, tail = record.metrics, last_round(settings), settings.get("tail")
    if metrics is None:
        return
    final = metrics.sa, metrics.loss, metrics.ra_worst
    ends = [(p.sa, p.loss, p.ra) for p in record.curve if p.round == end]
    if not all(_equal(a, b) for end in ends for a, b in zip(end, final, strict=True)):
        yield "its curve ends in other numbers than its metrics"
    if metrics.ra and metrics.ra_worst is not None and metrics.ra_worst > min(metrics.ra.values()) + 1e-12:
        yield f"ra_worst={metrics.ra_worst!r} is above the accuracy under one attack alone"
    last = [p.sa for p in record.curve if end is not None and type(tail) is int and p.round > end - tail]
    mean = metrics.groups.get("tail", {}).get("sa")
    if mean is not None and len(last) > 1 and not math.isclose(mean, fmean(last), abs_tol=1e-9):
        yield f"tail: sa={mean!r} is not the mean over the last rounds of its curve"


def _equal(first: float | None, second: float | None) -> bool:
    """True for equal numbers, and for two that are none."""
    return first == second or (first != first and second != second)


def _out_of_range(record: CellResult) -> Iterator[str]:
    """Accuracies of a record outside [0, 1], and counts and losses below 0, by the field that holds them."""
    shares = {f"curve[{i}].{n}": v for i, p in enumerate(record.curve) for n, v in (("sa", p.sa), ("ra", p.ra))}
    counts: dict[str, float] = {f"curve[{i}].loss": point.loss for i, point in enumerate(record.curve)}
    counts |= {f"label_counts[{i}]": min(row, default=0) for i, row in enumerate(record.label_counts)}
    counts |= {f"certificates.{n}": v for n, v in record.certificates.items() if type(v) is int}
    if record.metrics is not None:
        shares["metrics.asr"] = record.metrics.asr
        for name in ("per_class", "per_client", "per_user"):
            for of, values in getattr(record.metrics, name).items():
                shares |= {f"metrics.{name}.{of}[{i}]": value for i, value in enumerate(values)}
    for name, share in shares.items():
        if share is not None and not 0 <= share <= 1:
            yield f"{shown(name)}={share!r} is no accuracy in [0, 1]"
    yield from (f"{shown(name)}={count!r} is below 0" for name, count in counts.items() if count < 0)


def _unlikely_measures(metrics: Metrics) -> Iterator[str]:
    if "ra" in metrics.groups:
        yield "a group is called 'ra', as robust accuracies of all users are"
    accuracies = {"sa": metrics.sa, **metrics.ra}
    if metrics.ra_worst is not None:
        accuracies["ra_worst"] = metrics.ra_worst
    for group, means in metrics.groups.items():
        accuracies |= {f"{group}: {name}": value for name, value in means.items()}
    yield from (f"{n}={v!r} is no accuracy in [0, 1]" for n, v in accuracies.items() if not 0.0 <= v <= 1.0)
    if metrics.loss < 0:
        yield f"loss={metrics.loss!r} is below 0"
    if metrics.samples < 0:
        yield f"samples={metrics.samples} is no number of samples"


def _unprintable(record: CellResult) -> str | None:
    """Which text of a record would not reach a terminal as it is."""
    named: dict[str, Any] = {"scenario": record.scenario, "labels": record.labels, "cell": record.cell}
    if record.metrics is not None:
        metrics = record.metrics
        named["metrics"] = {"ra": list(metrics.ra), "groups": metrics.groups, "evaluation": metrics.evaluation}
    where = next((path for path, _ in unsafe_texts(named)), None)
    said = unsafe_texts({"certificates": record.certificates})
    where = where or next((path for path, text in said if unsafe(text, lines=True)), None)
    return None if where is None else f"{shown(where)} holds control characters"
