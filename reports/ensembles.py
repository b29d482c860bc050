"""AutoByz on a board: the column that is the worst of its members per seed, and which member that was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from robustfl.autobyz import TITLE, Asked
from robustfl.errors import some

from .estimate import Estimate, worst


def columns(attacks: Sequence[str], asked: Asked | None, none: str) -> tuple[str, ...]:
    """The attacks of a board with AutoByz before its members, which come in their own order."""
    if asked is None:
        return tuple(attacks)
    members = [label for label in asked.members if label in attacks]
    first = [a for a in attacks if a == none]
    return (*first, TITLE, *members, *(a for a in attacks if a not in members and a not in first))


def of_members(parts: Mapping[str, Estimate]) -> tuple[Estimate, tuple[tuple[str, int], ...], int]:
    """The worst of the members per seed, in how many seeds each was it, most often first, and of how many.

    A seed in which several are the worst, by the same accuracy or by divergence, counts for each of them. Members that
    are refused in every cell are no attacks on this row and do not count, unless all are; nor do members without
    effect.
    """
    tried = {name: part for name, part in parts.items() if part.expected}
    possible = {name: part for name, part in tried.items() if part.count("refused") < part.expected}
    counted = possible or tried
    if counted and all(part.idle for part in counted.values()):
        return replace(worst([replace(p, idle=False) for p in counted.values()]), idle=True), (), 0
    found = worst(list(counted.values()))
    if any(not part.expected for part in parts.values()):  # some member is not among the cells
        found = replace(found, bound=found.is_number)
    counts: Counter[str] = Counter()
    lowest = dict(found.values)
    for name, part in possible.items():
        own = part.values if part.is_number and not part.idle else ()
        counts[name] += len(found.diverged & part.diverged) + sum(lowest.get(seed) == value for seed, value in own)
    order = list(parts)
    members = tuple(sorted((+counts).items(), key=lambda item: (-item[1], order.index(item[0]))))
    return found, members, len(found.diverged) + len(lowest)


def member_text(members: Sequence[tuple[str, int]], seeds: int) -> str:
    """The worst member of a row, or all that were it equally often, with in how many of its ``seeds`` if not in all.

    >>> member_text([("alie", 3), ("sf", 2)], 5), member_text([("alie", 5)], 5)
    ('alie 3/5', 'alie')
    >>> member_text([("alie", 3), ("sf", 3), ("zero", 2)], 5)
    'alie, sf 3/5'
    """
    if not members:
        return "–"
    most = members[0][1]
    names = some([name for name, count in members if count == most], 2)
    return names if most == seeds else f"{names} {most}/{seeds}"


def words(asked: Asked, refused: Mapping[str, int]) -> str:
    """The words of a caption on the AutoByz column."""
    said = f"{TITLE} version {asked.ensemble.version}: per seed the worst of {', '.join(asked.members)}"
    said += (
        "; worst member: which it was, and in how many of the seeds; one with several worst members counts for each."
    )
    if refused:
        listed = ", ".join(f"{name} ({count} row{'s' if count > 1 else ''})" for name, count in refused.items())
        said += f" Refused members are no attacks on a row and do not count in it: {listed}."
    return said
