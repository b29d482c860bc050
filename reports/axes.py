"""The cells of a table as boards count them: which labels say who competes, and which say what task is solved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from robustfl.autobyz import Asked

from .board import natural

NO_ATTACK = "none"
OF_ATTACKS = "cell.methods.attack."
"""How the columns begin in which attacks with equal labels differ (``frame``)."""
ATTACK_LABELS = ("f", "f_declared", "scope", "target")
"""Labels that only mean something under attack: an unattacked cell stands beside every value of them.

What the rule was told, ``f_declared``, means something without attack, too: there the place has a footnote.
"""
TOLD = "f_declared of its own"
"""The key under which a cell that stands beside another ``f_declared`` keeps what its rule was told."""

CONTESTANT = ("defense", "statistics_defense", "norm", "objective", "propagation")
"""Labels that say who competes, with ``ALWAYS`` shown; whatever else varies says which task is solved."""
ALWAYS = ("defense", "norm")
OWN = ("algorithm", "schedule")
"""Settings of training that belong to the contestants where each has its own, and to the task otherwise."""

Cell = Mapping[Hashable, Any]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Axes:
    """The roles of the labels that vary: of the contestants, each contestant's own, of the task."""

    contestant: tuple[str, ...]
    own: tuple[str, ...]
    task: tuple[str, ...]


def axes_of(cells: Sequence[Cell], labels: Sequence[str], *, compare: Sequence[str]) -> Axes:
    """Which of the labels make contestants and which make tasks.

    A label of ``OWN`` that every contestant has one value of within a task, and not all the same one, is no part of the
    task: learning rates tuned per norm do not keep norms apart.
    """
    varying = varied(cells, labels)
    known = (*CONTESTANT, *compare)
    contestant = [c for c in known if c in labels and (c in ALWAYS or c in varying)]
    contestant += [c for c in varying if c.startswith(tuple(f"cell.methods.{name}." for name in CONTESTANT))]
    task = [c for c in varying if c not in contestant]
    own = _own(cells, contestant, task)
    return Axes(tuple(dict.fromkeys(contestant)), own, tuple(c for c in task if c not in own))


def varied(cells: Sequence[Cell], labels: Sequence[str]) -> list[str]:
    """Those of the labels, beside attack and seed, that have several values; ``f_declared`` where it differs from f."""
    found = [c for c in labels if c not in ("attack", "seed") and len({text(cell.get(c)) for cell in cells}) > 1]
    if {"f", "f_declared"} <= set(found) and all(text(c["f"]) == text(c["f_declared"]) for c in cells):
        found.remove("f_declared")
    return found


def _own(cells: Sequence[Cell], contestant: Sequence[str], task: Sequence[str]) -> tuple[str, ...]:
    candidates = tuple(c for c in OWN if c in task)
    for names in dict.fromkeys([candidates, *((c,) for c in candidates)]):
        rest = [c for c in task if c not in names]
        if names and _tells(cells, [*rest, *contestant], names) and not _tells(cells, rest, names):
            return names
    return ()


def _tells(cells: Sequence[Cell], by: Sequence[str], names: Sequence[str]) -> bool:
    """True if the labels ``by`` determine the labels ``names``."""
    found: dict[Labels, Labels] = {}
    return all(found.setdefault(values_of(c, by), values_of(c, names)) == values_of(c, names) for c in cells)


def cells_of(table: pd.DataFrame, autobyz: Asked | None) -> list[dict[Hashable, Any]]:
    """The cells of a table as boards count them: attacks by the names of their columns, unattacked cells everywhere."""
    records = table.to_dict("records")
    return spread(_by_version(records if autobyz is None else autobyz.renamed(records)))


def _by_version(cells: Sequence[Cell]) -> list[dict[Hashable, Any]]:
    """The cells, attacks of one name and several versions named with what tells them apart: ``my-attack (my.py 3f…)``.

    They are columns of one table, so that the cells without attack stand beside each of them.
    """
    columns = sorted({str(n) for c in cells for n in c if str(n).startswith(OF_ATTACKS)})
    apart: dict[str, set[Labels]] = defaultdict(set)
    for cell in cells:
        apart[text(cell["attack"])].add(values_of(cell, columns))
    named = []
    for cell in cells:
        words = ", ".join(_in_words(c, text(cell.get(c))) for c in columns if text(cell.get(c)) != "–")
        attack = text(cell["attack"])
        rest = {n: v for n, v in cell.items() if n not in columns}
        named.append({**rest, "attack": f"{attack} ({words})"} if len(apart[attack]) > 1 else rest)
    return named


def _in_words(column: str, value: str) -> str:
    name = column.rpartition(".")[2]
    return value if name == "origin" else f"{name} {value}"


def spread(cells: list[dict[Hashable, Any]]) -> list[dict[Hashable, Any]]:
    """Put an unattacked cell beside every attacked setting of the labels that do not matter without an attack."""
    attacked = [c for c in cells if c["attack"] != NO_ATTACK]
    free = [
        label
        for label in ATTACK_LABELS
        if attacked and not {c.get(label) for c in attacked} & {c.get(label) for c in cells if c["attack"] == NO_ATTACK}
    ]
    if not free:
        return cells
    settings = {tuple(c.get(label) for label in free) for c in attacked}
    ordered = sorted(settings, key=lambda values: natural(" ".join(map(text, values))))

    def beside(cell: dict[Hashable, Any], values: tuple[Any, ...]) -> dict[Hashable, Any]:
        moved = cell | dict(zip(free, values, strict=True))
        told = cell.get("f_declared")
        return moved if text(moved.get("f_declared")) == text(told) else moved | {TOLD: told}

    return [
        placed for c in cells
        for placed in ([beside(c, values) for values in ordered] if c["attack"] == NO_ATTACK else [c])
    ]  # fmt: skip


def values_of(labels: Mapping[Any, Any], names: Sequence[str]) -> Labels:
    """The values of these labels as texts."""
    return tuple(text(labels.get(name)) for name in names)


def bare(column: str) -> str:
    """The name of a setting in the column's."""
    return column.removeprefix("cell.")


def absent(value: object) -> bool:
    """True for what a cell does not have."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def text(value: object) -> str:
    """A label as a text, a dash for what a cell does not have."""
    if absent(value) or value is pd.NA:
        return "–"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
