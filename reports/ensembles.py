"""AutoByz on a board: the column that is the worst of its members per seed, and which member that was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from robustfl.autobyz import TITLE, Asked

from .estimate import DROPPED, Estimate, worst


def with_dropped(table: pd.DataFrame, asked: Asked | None) -> pd.DataFrame:
    """The table of cells with those that the cheap mode left out, with status ``dropped``."""
    if asked is None:
        return table
    have = set(table["key"])
    lines = [
        {**labels, "key": key, "status": DROPPED} for key, labels in sorted(asked.dropped.items()) if key not in have
    ]
    return pd.DataFrame([*table.to_dict("records"), *lines], columns=list(table.columns)) if lines else table


def columns(attacks: Sequence[str], asked: Asked | None, none: str) -> tuple[str, ...]:
    """The attacks of a board with AutoByz before its members, which come in their own order."""
    if asked is None:
        return tuple(attacks)
    members = [label for label in asked.members if label in attacks]
    first = [a for a in attacks if a == none]
    return (*first, TITLE, *members, *(a for a in attacks if a not in members and a not in first))


def of_members(parts: Mapping[str, Estimate]) -> tuple[Estimate, tuple[tuple[str, int], ...]]:
    """The worst of the members per seed, and how often each was it, most often first.

    Members that are refused in every cell are no attacks on this row and do not count, unless all are; nor do members
    without effect, and those that the cheap mode dropped.
    """
    tried = {name: part for name, part in parts.items() if part.expected and not part.dropped}
    possible = {name: part for name, part in tried.items() if part.count("refused") < part.expected}
    counted = possible or tried
    if counted and all(part.idle for part in counted.values()):
        return replace(worst([replace(p, idle=False) for p in counted.values()]), idle=True), ()
    found = worst(list(counted.values()))
    if any(not part.expected for part in parts.values()):  # some member is not among the cells
        found = replace(found, bound=found.is_number)
    counts: Counter[str] = Counter()
    often = sorted(possible, key=lambda name: -len(possible[name].diverged))
    for seed in found.diverged:
        counts[next(name for name in often if seed in possible[name].diverged)] += 1
    for seed, value in found.values:
        counts[next(n for n, p in possible.items() if _counts(p) and dict(p.values)[seed] == value)] += 1
    order = list(parts)
    return found, tuple(sorted(counts.items(), key=lambda item: (-item[1], order.index(item[0]))))


def _counts(part: Estimate) -> bool:
    return part.is_number and not part.idle


def member_text(members: Sequence[tuple[str, int]]) -> str:
    """The worst member of a row, with how many of its seeds where it was not all.

    >>> member_text([("alie", 3), ("sf", 2)]), member_text([("alie", 5)])
    ('alie 3/5', 'alie')
    """
    if not members:
        return "–"
    name, count = members[0]
    total = sum(n for _, n in members)
    return name if count == total else f"{name} {count}/{total}"


def words(asked: Asked, refused: Mapping[str, int], *, dropped: bool) -> str:
    """The words of a caption on the AutoByz column; of the cheap mode where it ``dropped`` some member."""
    said = f"{TITLE} version {asked.ensemble.version}: per seed the worst of {', '.join(asked.members)}"
    said += "; worst member: which it was, and in how many of the seeds."
    if refused:
        listed = ", ".join(f"{name} ({count} row{'s' if count > 1 else ''})" for name, count in refused.items())
        said += f" Refused members are no attacks on a row and do not count in it: {listed}."
    return f"{said} {asked.cheap}".rstrip() if dropped else said
