"""Records as a table: one row per cell."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from robustfl.origins import named_methods, origins
from robustfl.records import CellResult, Metrics, completed, labels_of

from .validation import LABELS, MEASURES

FACTS = (
    "key", "scenario", "status", "reason", "round", "sa", "loss", "samples", "ra_worst", "seconds",
    "seconds_training", "seconds_per_round", "peak_memory", "asr", "evaluation", "commit", "processor",
    "chance",
)  # fmt: skip


def label_columns(table: pd.DataFrame) -> list[str]:
    """The columns that hold labels (settings) rather than facts about the run."""
    return [c for c in table.columns if c in LABELS or (c not in FACTS and not c.startswith(MEASURES))]


def robust_column(evasion: str) -> str:
    """The column of an evasion attack; one that is called ``worst`` is not the worst of all."""
    column = f"ra_{evasion}"
    return f"{column}()" if column in (*FACTS, *LABELS) else column


def robust_columns(table: pd.DataFrame) -> list[str]:
    """The columns with the robust accuracy under one evasion attack each."""
    return [c for c in map(str, table.columns) if c.startswith("ra_") and c not in (*LABELS, "ra_worst")]


def ranked_metrics(table: pd.DataFrame) -> list[str]:
    """The columns that boards rank by, the one place where they are chosen: SA, every RA, the worst of several RAs.

    Of the tail of a training with several evasions the worst alone is known.
    """
    robust = [c for c in robust_columns(table) if table[c].notna().any()]
    worst_too = len(robust) != 1 and "ra_worst" in table.columns and bool(table["ra_worst"].notna().any())
    return ["sa", *robust, *(["ra_worst"] if worst_too else [])]


def samples_of(cell: Mapping[Hashable, Any], metric: str) -> dict[str, int]:
    """The number of test samples behind a metric of one cell, if the record says it; fewer for RA with ``ra_limit``.

    With domains that is the limit of every honest user, who has test images of its own; where users have unequally
    many, their mean is as uncertain as accuracy on ``equal_samples`` images.
    """
    samples, limit, equal = cell.get("samples"), cell.get("ra_limit"), cell.get("certificates.equal_samples")
    if not isinstance(samples, (int, float)) or not samples > 0:
        return {}
    samples = min(samples, equal) if isinstance(equal, (int, float)) and equal >= 1 else samples
    if metric != "sa" and isinstance(limit, (int, float)) and limit > 0:
        domains = cell.get("domains")
        users = cell["clients"] - cell["f"] if isinstance(domains, str) and domains else 1
        samples = min(samples, limit * users)
    return {metric: int(samples)}


def frame(results: Iterable[CellResult]) -> pd.DataFrame:
    """One row per cell: labels, status, reason, metrics, costs and certificates.

    Columns: the labels; ``sa loss ra_worst asr`` and ``ra_<evasion>`` in [0, 1]; ``group.<name>.<metric>``, means per
    domain, role and branch; ``seconds seconds_training seconds_per_round``; ``peak_memory`` in bytes;
    ``certificates.<name>``, nested ones with every name on the way. What a cell does not have is missing, but for
    labels from before there was a choice. Two cells that share all labels get columns ``cell.<setting>`` for what tells
    them apart.
    """
    records = list(results)
    rows = [_row(r) for r in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    before = labels_of(completed({}, columns))
    table = pd.DataFrame([before | row for row in rows], columns=columns or [*FACTS])
    return _told_apart(table, records)


def appended(table: pd.DataFrame, lines: Sequence[Mapping[Any, Any]]) -> pd.DataFrame:
    """The table with further lines, in its columns."""
    return pd.DataFrame([*table.to_dict("records"), *lines], columns=table.columns) if lines else table


def _row(record: CellResult) -> dict[str, Any]:
    row: dict[str, Any] = dict(record.labels)
    row |= {"key": record.key, "scenario": record.scenario, "status": record.status}
    row |= {"reason": record.reason, "round": record.round, "sa": None, "loss": None, "samples": None}
    if record.metrics is not None and record.status == "done":
        metrics = record.metrics
        row |= {"sa": metrics.sa, "loss": metrics.loss, "samples": metrics.samples}
        row |= {robust_column(name): value for name, value in metrics.ra.items()}
        row |= {"chance": _chance(metrics)}
        row |= {"ra_worst": metrics.ra_worst, "asr": metrics.asr, "evaluation": metrics.evaluation}
        row |= {f"group.{name}.{m}": v for name, group in metrics.groups.items() for m, v in group.items()}
    timing = record.timing
    row |= {"seconds": timing.seconds, "seconds_training": timing.seconds_training}
    row |= {"seconds_per_round": timing.seconds_per_round, "peak_memory": timing.peak_memory_bytes}
    told = {"commit": " then ".join(timing.commits), "processor": timing.device}
    return row | {name: words for name, words in told.items() if words} | _shallow(record.certificates)


def _chance(metrics: Metrics) -> float | None:
    """The accuracy of guessing: 1/classes, or the share of the only class that the model predicts."""
    found = metrics.per_class.get("sa")
    if not found:
        return None
    return metrics.sa if sorted(v or 0.0 for v in found) == [0.0] * (len(found) - 1) + [1.0] else 1 / len(found)


def _shallow(certificates: Mapping[str, Any], where: str = "certificates") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in certificates.items():
        if isinstance(value, dict):
            flat |= _shallow(value, f"{where}.{name}")
        elif not isinstance(value, list):
            flat[f"{where}.{name}"] = value
    return flat


def _told_apart(table: pd.DataFrame, records: list[CellResult]) -> pd.DataFrame:
    """Add the settings in which cells with equal labels differ, so that no two experiments are averaged.

    Where one name stands for several codes, cells that differ in the seed as well count as equal: seeds of two versions
    of a method are no seeds of one.
    """
    labels = label_columns(table)
    if not labels or table.empty:
        return table
    text = table[labels].astype(str)
    twins = text.duplicated(keep=False)
    several = _several_codes(records)
    if not (twins.any() or several):
        return table
    flat = [dict(_leaves(r.cell)) for r in records]
    settings = _varying(text[twins], flat)
    if several:
        settings |= {p for p in _varying(text.drop(columns="seed", errors="ignore"), flat) if p.startswith("methods.")}
    added = {f"cell.{p}": [str(cell.get(p, "–")) for cell in flat] for p in sorted(settings)}
    return table.assign(**added)


def _several_codes(records: Iterable[CellResult]) -> bool:
    """True if two cells use different versions of a method, or what two people have called alike."""
    known: dict[tuple[str, Any], Any] = {}
    for record in records:
        codes = [((setting, method["name"]), method.get("version")) for setting, method in named_methods(record.cell)]
        from_elsewhere = [(("origin", name), origin) for name, origin in origins(record.cell).items()]
        if any(known.setdefault(name, code) != code for name, code in (*codes, *from_elsewhere)):
            return True
    return False


def _varying(text: pd.DataFrame, flat: Sequence[Mapping[str, str]]) -> set[str]:
    """The settings in which cells of equal rows differ; rows are numbered as the cells are."""
    found: set[str] = set()
    for group in text.groupby(list(text.columns), sort=False, dropna=False).indices.values():
        cells = [flat[text.index[i]] for i in group]
        found |= {p for cell in cells for p in cell if any(c.get(p) != cell[p] for c in cells)}
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and all(isinstance(inner, dict) for inner in value):  # the steps of a pipeline
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{place}")
    else:
        yield path, str(value)
