"""Which numbers of a cell a board ranks: those of the last round, of the last evaluations, or of a chosen round.

Of a chosen round also the validation accuracy that it was chosen by, which is what settings may be tuned on.
"""

from __future__ import annotations

import pandas as pd

from robustfl.errors import UsageError, closest

from .frame import robust_columns

STATISTICS = ("final", "tail", "selected", "validation")
_VALIDATION = "certificates.selection.validation"


def counted(table: pd.DataFrame, statistic: str | None = None) -> tuple[pd.DataFrame, str]:
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
    column = _VALIDATION if statistic == "validation" else "group.selected.sa"
    selecting = done & (table[column].notna() if column in table else False)
    if statistic in ("selected", "validation") and not selecting[done].all():
        raise UsageError(
            f"statistic {statistic!r}: {int((done & ~selecting).sum())} of {int(done.sum())} finished cells selected "
            "no round; run them with select = 'validation' (and validation and evaluate_every), or leave them out"
        )
    if statistic == "validation":
        return _validation(table), _validation_words(table)
    if statistic == "tail":
        return _tail(table, done), _tail_words(table)
    if statistic == "final" or not selecting.any():
        return table, "Numbers are of the last round." if selecting.any() else ""
    which = "" if selecting[done].all() else " of cells with select validation"
    words = f"Numbers{which} are of the round with the best accuracy on validation data."
    return _of_group(table, "selected", selecting), words


def _of_group(table: pd.DataFrame, group: str, rows: pd.Series) -> pd.DataFrame:
    """The table with the group's numbers in these rows."""
    made = table.copy()
    for column, name in _metrics(table):
        values = table[name] if (name := f"group.{group}.{name}") in table else float("nan")
        made[column] = table[column].where(~rows, values)
    return made


def _validation(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the validation accuracy of the selected rounds, which no test sample is behind."""
    made = table.copy()
    for column, _ in _metrics(table):
        made[column] = float("nan")
    made["sa"] = table[_VALIDATION] if _VALIDATION in table else float("nan")
    made[["samples", "evaluation"]] = None
    return made


def _validation_words(table: pd.DataFrame) -> str:
    trained = "at" in table and (table["at"].astype(str) != "none").any()
    which = " (robust accuracy of users that train adversarially)" if trained else ""
    return f"Numbers are the validation accuracy{which} of the round in which it is best; none is of test data."


def _tail(table: pd.DataFrame, done: pd.Series) -> pd.DataFrame:
    rows = done & (table["group.tail.sa"].notna() if "group.tail.sa" in table else False)
    made = _of_group(table, "tail", rows)
    for column, _ in _metrics(table):
        if column != "sa" and (table.loc[done, column].notna() & made.loc[done, column].isna()).any():
            made[column] = float("nan")
    return made


def _tail_words(table: pd.DataFrame) -> str:
    """The number of rounds the means are over, in words; a cell without the setting has a tail of one."""
    lengths = [1]
    if "tail" in table:  # a cell has no more rounds than it ran
        limits = [pd.to_numeric(table[c], errors="coerce") for c in ("tail", "stop", "rounds") if c in table]
        lengths = sorted({int(v) for v in pd.concat(limits, axis=1).min(axis=1)[table["tail"].notna()]})
    return f"Numbers are means over the evaluations of the last {', '.join(map(str, lengths or [1]))} round(s)."


def _metrics(table: pd.DataFrame) -> list[tuple[str, str]]:
    """The columns with numbers, and how groups call them."""
    robust = [(c, c.removeprefix("ra_").removesuffix("()")) for c in robust_columns(table)]
    others = [(c, c) for c in ("ra_worst", "asr") if c in table]
    return [("sa", "sa"), *robust, *others]
