"""Records as a table, one row per cell, and which of a cell's numbers count."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from robustfl.errors import UsageError, closest
from robustfl.origins import named_methods, origins
from robustfl.records import WORST_CLIENT, CellResult, Metrics, completed, labels_of

from .published.agreement import leaves
from .validation import LABELS, MEASURES

FACTS = (
    "key", "scenario", "status", "reason", "round", "sa", "loss", "samples", "ra_worst", "seconds",
    "seconds_training", "seconds_per_round", "peak_memory", "asr", "evaluation", "commit", "processor",
    "chance", WORST_CLIENT,
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
    by_client = WORST_CLIENT in table.columns and bool(table[WORST_CLIENT].notna().any())
    return ["sa", *([WORST_CLIENT] if by_client else []), *robust, *(["ra_worst"] if worst_too else [])]


def samples_of(cell: Mapping[Hashable, Any], metric: str) -> int | None:
    """The number of test samples behind a metric of one cell, if the record says it; fewer for RA with ``ra_limit``.

    With domains or ``tests = "own"`` that is the limit of every honest user, who has test images of its own; where
    users have unequally many, their mean is as uncertain as accuracy on ``equal_samples`` images.
    """
    samples, limit, equal = cell.get("samples"), cell.get("ra_limit"), cell.get("certificates.equal_samples")
    if metric == WORST_CLIENT or not isinstance(samples, (int, float)) or not samples > 0:
        return None
    samples = min(samples, equal) if isinstance(equal, (int, float)) and equal >= 1 else samples
    if metric != "sa" and isinstance(limit, (int, float)) and limit > 0:
        domains = cell.get("domains")
        own = (isinstance(domains, str) and domains) or cell.get("tests") == "own"
        users = cell["clients"] - cell["f"] if own else 1
        samples = min(samples, limit * users)
    return int(samples)


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
    return _distinguished(table, records)


def appended(table: pd.DataFrame, lines: Sequence[Mapping[Any, Any]]) -> pd.DataFrame:
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
        if (worst := metrics.groups.get("worst client")) is not None:
            row[WORST_CLIENT] = worst.get("sa")
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


def _distinguished(table: pd.DataFrame, records: Sequence[CellResult]) -> pd.DataFrame:
    """Add the settings in which cells with equal labels differ, so that no two experiments are averaged.

    Where one name stands for several codes, cells that differ in the seed as well count as equal: seeds of two versions
    of a method are no seeds of one.
    """
    labels = label_columns(table)
    if not labels or table.empty:
        return table
    texts = table[labels].astype(str)
    twins = texts.duplicated(keep=False)
    several = _several_codes(records)
    if not (twins.any() or several):
        return table
    lines = [{n: str([*v] if isinstance(v, tuple) else v) for n, v in leaves(r.cell, item=".{}")} for r in records]
    settings = pd.DataFrame(lines, index=table.index).fillna("–")
    found = _varying(texts[twins], settings)
    if several:
        seedless = texts.drop(columns="seed", errors="ignore")
        found |= {name for name in _varying(seedless, settings) if name.startswith("methods.")}
    return table.assign(**{f"cell.{name}": settings[name] for name in sorted(found)})


def _varying(texts: pd.DataFrame, settings: pd.DataFrame) -> set[str]:
    alike = texts.groupby([*texts.columns], sort=False, dropna=False).ngroup()
    counts = settings.loc[texts.index].groupby(alike).nunique()
    return set(counts.columns[(counts > 1).any()])


def _several_codes(records: Iterable[CellResult]) -> bool:
    """True if two cells use different versions of a method, or what two people have called alike."""
    known: dict[tuple[str, Any], Any] = {}
    for record in records:
        codes = [((setting, method["name"]), method.get("version")) for setting, method in named_methods(record.cell)]
        from_elsewhere = [(("origin", name), origin) for name, origin in origins(record.cell).items()]
        if any(known.setdefault(name, code) != code for name, code in (*codes, *from_elsewhere)):
            return True
    return False


STATISTICS = ("final", "tail", "selected", "validation")
"""Which numbers of a cell count."""
_VALIDATION = "certificates.selection.validation"
Counted = tuple[pd.DataFrame, str]
"""A table of cells with the numbers that count in ``sa``, ``ra_…`` and ``ra_worst``, and words on it."""


def counted(table: pd.DataFrame, statistic: str | None = None) -> Counted:
    """The table of cells (``frame``) with the numbers that count in ``sa``, ``ra_…`` and ``ra_worst``, and words on it.

    ``final`` is the last round, ``tail`` the mean over the evaluations of a cell's last ``tail`` rounds, ``selected``
    the round chosen on validation data, ``validation`` the accuracy on those data in that round, in ``sa`` alone;
    ``None`` is what each cell says: ``selected`` with ``select = "validation"``, ``final`` without. Of ``tail`` robust
    accuracy is ranked if every cell measured it in these rounds.
    Raises ``UsageError`` for another statistic, or for one of a selected round if some finished cell selected none.
    """
    if statistic is not None and statistic not in STATISTICS:
        raise UsageError(f"statistic {statistic!r}: {closest(statistic, STATISTICS)}")
    done = table["status"] == "done"
    selecting = _has(table, "group.selected.sa", done)
    if statistic == "validation":
        return _validation(table, done)
    if statistic == "tail":
        return _tail(table, done)
    if statistic == "selected":
        _require("selected", done, selecting)
    if statistic == "final" or not selecting.any():
        return table, "Numbers are of the last round." if selecting.any() else ""
    which = "" if selecting[done].all() else " of cells with select validation"
    words = f"Numbers{which} are of the round with the best accuracy on validation data."
    return _of_group(table, "selected", selecting), words


def _has(table: pd.DataFrame, column: str, done: pd.Series) -> pd.Series:
    """The finished cells that have a number in the column."""
    return done & (table[column].notna() if column in table else False)


def _require(statistic: str, done: pd.Series, selecting: pd.Series) -> None:
    if not selecting[done].all():
        raise UsageError(
            f"statistic {statistic!r}: {int((done & ~selecting).sum())} of {int(done.sum())} finished cells selected "
            "no round; run them with select = 'validation' (and validation and evaluate_every), or leave them out"
        )


def _validation(table: pd.DataFrame, done: pd.Series) -> Counted:
    """The validation accuracy of the selected rounds, which no test sample is behind."""
    _require("validation", done, _has(table, _VALIDATION, done))
    made = table.copy()
    for column, _ in _metrics(table):
        made[column] = float("nan")
    made["sa"] = table[_VALIDATION] if _VALIDATION in table else float("nan")
    made[["samples", "evaluation"]] = None
    trained = "at" in table and (table["at"].astype(str) != "none").any()
    which = " (robust accuracy of users that train adversarially)" if trained else ""
    return made, f"Numbers are the validation accuracy{which} of the round in which it is best; none is of test data."


def _tail(table: pd.DataFrame, done: pd.Series) -> Counted:
    """The mean over the last rounds; a cell without the setting has a tail of one."""
    made = _of_group(table, "tail", _has(table, "group.tail.sa", done))
    for column, _ in _metrics(table):
        if column != "sa" and (table.loc[done, column].notna() & made.loc[done, column].isna()).any():
            made[column] = float("nan")
    lengths = [1]
    if "tail" in table:  # a cell has no more rounds than it ran
        limits = [pd.to_numeric(table[c], errors="coerce") for c in ("tail", "stop", "rounds") if c in table]
        lengths = sorted({int(v) for v in pd.concat(limits, axis=1).min(axis=1)[table["tail"].notna()]})
    words = f"Numbers are means over the evaluations of the last {', '.join(map(str, lengths or [1]))} round(s)."
    return made, words


def _of_group(table: pd.DataFrame, group: str, rows: pd.Series) -> pd.DataFrame:
    """The table with the group's numbers in these rows."""
    made = table.copy()
    for column, name in _metrics(table):
        values = table[name] if (name := f"group.{group}.{name}") in table else float("nan")
        made[column] = table[column].where(~rows, values)
    return made


def _metrics(table: pd.DataFrame) -> list[tuple[str, str]]:
    """The columns with numbers, and how groups call them."""
    robust = [(c, c.removeprefix("ra_").removesuffix("()")) for c in robust_columns(table)]
    others = [(c, c) for c in ("ra_worst", "asr", WORST_CLIENT) if c in table]
    return [("sa", "sa"), *robust, *others]
