"""The cells of a table as boards count them: which labels say who competes, and which say what task is solved."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from robustfl.autobyz import Asked

NO_ATTACK = "none"
OF_ATTACKS = "cell.methods.attack."
"""How the columns begin in which attacks with equal labels differ (``frame``)."""
ATTACK_LABELS = ("f", "f_declared", "scope", "target")
"""Labels that only mean something under attack: an unattacked cell stands in the row of every value of them.

What the rule was given, ``f_declared``, means something without attack, too: there the place has a footnote.
"""
DECLARED = "f_declared of its own"
"""The column in which a cell in the row of another ``f_declared`` keeps its own."""

CONTESTANT = ("defense", "statistics_defense", "norm", "objective", "propagation")
"""Labels that say who competes, with ``ALWAYS`` shown; whatever else varies says which task is solved."""
ALWAYS = ("defense", "norm")
OWN = ("algorithm", "schedule")
"""Settings of training that belong to the contestants where each has its own, and to the task otherwise."""

Cell = Mapping[Hashable, Any]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Grouping:
    """The roles of the labels that vary: of the contestants, each contestant's own, of the task."""

    contestant: tuple[str, ...]
    own: tuple[str, ...]
    task: tuple[str, ...]


def grouping_of(texts: pd.DataFrame, *, compare: Sequence[str] = ()) -> Grouping:
    """The labels that make contestants and those that make tasks; ``texts`` holds all labels of the cells.

    A label of ``OWN`` that every contestant has one value of within a task, and not all the same one, is no part of the
    task: learning rates tuned per norm do not keep norms apart.
    """
    varying = varied(texts)
    contestant = [c for c in (*CONTESTANT, *compare) if c in texts and (c in ALWAYS or c in varying)]
    contestant += [c for c in varying if c.startswith(tuple(f"cell.methods.{name}." for name in CONTESTANT))]
    task = [c for c in varying if c not in contestant]
    candidates = tuple(c for c in OWN if c in task)
    own: Labels = ()
    for names in dict.fromkeys([candidates, *((c,) for c in candidates)]):
        rest = [c for c in task if c not in names]
        if names and _determine(texts, [*rest, *contestant], names) and not _determine(texts, rest, names):
            own = names
            break
    return Grouping(tuple(dict.fromkeys(contestant)), own, tuple(c for c in task if c not in own))


def varied(texts: pd.DataFrame) -> list[str]:
    """The labels, without attack and seed, that have several values; ``f_declared`` where it differs from f."""
    found = [str(c) for c in texts if c not in ("attack", "seed") and texts[c].nunique() > 1]
    if {"f", "f_declared"} <= set(found) and (texts["f"] == texts["f_declared"]).all():
        found.remove("f_declared")
    return found


def _determine(texts: pd.DataFrame, by: Sequence[str], names: Sequence[str]) -> bool:
    """True if the labels ``by`` determine the labels ``names``."""
    distinct = texts[[*by, *names]].drop_duplicates()
    return not distinct.duplicated([*by]).any() if by else len(distinct) < 2


def cells_of(table: pd.DataFrame, autobyz: Asked | None = None) -> pd.DataFrame:
    """The cells of a table as boards count them: attacks by the names of their columns, unattacked cells everywhere."""
    if autobyz is not None:
        table = pd.DataFrame(autobyz.renamed(table.to_dict("records")), columns=table.columns)
    return spread(_by_version(table))


def _by_version(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells, attacks of one name and several versions named with what differs: ``my-attack (my.py 3f…)``.

    They are columns of one table, so that the cells without attack stand in the row of each of them.
    """
    columns = sorted(str(c) for c in cells if str(c).startswith(OF_ATTACKS))
    if not columns:
        return cells
    texts, attacks = texts_of(cells, columns), cells["attack"].map(text)
    several = texts.assign(attack=attacks).drop_duplicates().groupby("attack").size() > 1

    def named(attack: str, values: Sequence[str]) -> str:
        names = [c.rpartition(".")[2] for c in columns]
        words = [v if n == "origin" else f"{n} {v}" for n, v in zip(names, values, strict=True) if v != "–"]
        return f"{attack} ({', '.join(words)})" if several[attack] else attack

    attack = [named(a, v) for a, v in zip(attacks, texts.itertuples(index=False), strict=True)]
    return cells.drop(columns=columns).assign(attack=attack)


def spread(cells: pd.DataFrame) -> pd.DataFrame:
    """Put an unattacked cell in the row of every attacked setting of labels that do not matter without an attack."""
    calm = cells["attack"] == NO_ATTACK
    attacked, unattacked = cells[~calm], cells[calm]

    def values(part: pd.DataFrame, label: str) -> set[str]:
        return set(part[label].map(text))

    known = [label for label in ATTACK_LABELS if label in cells and len(attacked)]
    free = [label for label in known if not values(attacked, label) & values(unattacked, label)]
    if not free or unattacked.empty:
        return cells
    settings = attacked[free].drop_duplicates()
    moved = unattacked.drop(columns=free).merge(settings, how="cross")
    if "f_declared" in free:
        own = unattacked["f_declared"].repeat(len(settings)).to_numpy()
        moved[DECLARED] = [o if text(o) != text(now) else None for o, now in zip(own, moved["f_declared"], strict=True)]
    return pd.concat([moved, attacked], ignore_index=True)


def texts_of(cells: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    """These labels of the cells as texts, a column each; a dash for what a cell does not have."""
    return pd.DataFrame({c: cells[c].map(text) if c in cells else "–" for c in labels}, index=cells.index)


def label_tuples(texts: pd.DataFrame, names: Sequence[str]) -> list[Labels]:
    """The values of these labels, a tuple for each cell."""
    return [*zip(*(texts[name] for name in names), strict=True)] if names else [()] * len(texts)


def values_of(labels: Mapping[Any, Any], names: Sequence[str]) -> Labels:
    return tuple(text(labels.get(name)) for name in names)


def bare(column: str) -> str:
    """The name of a setting in the column's."""
    return column.removeprefix("cell.")


def absent(value: object) -> bool:
    """True for what a cell does not have."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def text(value: object) -> str:
    """A label as a text, a dash for what a cell does not have."""
    if absent(value):
        return "–"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def heterogeneity(partition: str) -> tuple[str, float] | None:
    """The parameter of a partition that says how alike clients are, as ``("γ", 0.5)``.

    >>> heterogeneity("gamma(gamma=0.5)"), heterogeneity("dirichlet(alpha=0.3)"), heterogeneity("iid")
    (('γ', 0.5), ('α', 0.3), None)
    """
    match = re.fullmatch(r"(\w+)\((?:.*,\s*)?(gamma|alpha)=([0-9.eE+-]+).*\)", partition)
    try:
        return match and ({"gamma": "γ", "alpha": "α"}[match[2]], float(match[3]))
    except ValueError:
        return None
