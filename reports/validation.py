"""Faults in what was read: in a record of the right form, and the first fault that pydantic found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from robustfl.file_io import shown, unsafe, unsafe_texts
from robustfl.records import CellResult

MEASURES = ("ra_", "certificates.", "group.")
"""The beginnings of columns with measures in a table of cells."""
LABELS = ("ra_limit",)
"""Labels that look like measures by their names."""


def fault(record: CellResult) -> str | None:
    """The first fault in a record, or ``None``; whether its numbers are right shows only when the cell runs again."""
    for name, label in record.labels.items():
        if isinstance(label, (dict, list)):
            return f"labels.{shown(name)} is a {type(label).__name__}, not a text or a number"
        if name.startswith(MEASURES) and name not in LABELS:
            return f"labels.{shown(name)} is no setting: it has the name of a measure"
    if (where := _unsafe_text(record)) is not None:
        return f"{shown(where)} holds control characters"
    if record.status == "done" and record.metrics is None:
        return "done, but without metrics"
    for name, share in _accuracies(record):
        if share is not None and not 0 <= share <= 1:
            return f"{shown(name)}={share!r} is no accuracy in [0, 1]"
    return next((f"{shown(name)}={count!r} is below 0" for name, count in _amounts(record) if count < 0), None)


def _accuracies(record: CellResult) -> Iterator[tuple[str, float | None]]:
    """Every accuracy of a record by the field that holds it."""
    for i, point in enumerate(record.curve):
        yield from ((f"curve[{i}].sa", point.sa), (f"curve[{i}].ra", point.ra))
    metrics = record.metrics
    if metrics is None:
        return
    yield from (("sa", metrics.sa), ("ra_worst", metrics.ra_worst), ("metrics.asr", metrics.asr))
    yield from metrics.ra.items()
    for group, means in metrics.groups.items():
        yield from ((f"{group}: {name}", mean) for name, mean in means.items())
    for field in ("per_class", "per_client", "per_user"):
        for of, values in getattr(metrics, field).items():
            yield from ((f"metrics.{field}.{of}[{i}]", value) for i, value in enumerate(values))


def _amounts(record: CellResult) -> Iterator[tuple[str, float]]:
    """Every loss and count of a record by the field that holds it."""
    yield from ((f"curve[{i}].loss", point.loss) for i, point in enumerate(record.curve))
    yield from ((f"label_counts[{i}]", min(row, default=0)) for i, row in enumerate(record.label_counts))
    yield from ((f"certificates.{name}", v) for name, v in record.certificates.items() if type(v) is int)
    if record.metrics is not None:
        yield from (("loss", record.metrics.loss), ("samples", record.metrics.samples))


def _unsafe_text(record: CellResult) -> str | None:
    """The path of a text that would not reach a terminal as it is; those of certificates may have several lines."""
    named: dict[str, Any] = {"scenario": record.scenario, "labels": record.labels, "cell": record.cell}
    if record.metrics is not None:
        metrics = record.metrics
        named["metrics"] = {"ra": list(metrics.ra), "groups": metrics.groups, "evaluation": metrics.evaluation}
    where = next((path for path, _ in unsafe_texts(named)), None)
    told = unsafe_texts({"certificates": record.certificates})
    return where or next((path for path, text in told if unsafe(text, lines=True)), None)


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong, with its place and a number out of range: ``cells.0.key: Field required``."""
    first = error.errors()[0]
    value = f", not {first['input']!r}" if first["type"].startswith(("greater_than", "less_than")) else ""
    return shown(f"{'.'.join(map(str, first['loc']))}: {first['msg']}{value}")
