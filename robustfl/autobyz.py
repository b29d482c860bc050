"""AutoByz: a fixed, versioned set of training-time attacks, of which the worst per seed counts. No torch here.

In a scenario ``attack = "autobyz"`` stands for its members, each an ordinary cell; boards show their worst case as one
attack. The members are data, in ``autobyz.toml``, chosen by a study.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from robustfl.errors import UsageError

NAME = "autobyz"
TITLE = "AutoByz"
"""The heading of its column."""
_SPEC = re.compile(rf"{NAME}(?:\((.*)\))?", re.DOTALL)


@dataclass(frozen=True)
class Member:
    """One attack of an ensemble, the only channel it forges (empty: what the cell's ``scope`` says), and its reason.

    One that ``poisons`` data forges no channel: its attackers train honestly on wrong data. One whose ``updates`` alone
    tell it from another member is none where attackers forge statistics alone.

    >>> Member("alie", "statistics").label
    'alie [statistics]'
    """

    attack: str
    scope: str = ""
    reason: str = ""
    poisons: bool = False
    updates: bool = False

    @property
    def label(self) -> str:
        """Its name on boards."""
        return f"{self.attack} [{self.scope}]" if self.scope else self.attack


@dataclass(frozen=True)
class Ensemble:
    """One version of AutoByz."""

    version: int
    members: tuple[Member, ...]

    @property
    def spec(self) -> str:
        """Its name in a scenario.

        >>> Ensemble(1, ()).spec
        'autobyz(version=1)'
        """
        return f"{NAME}(version={self.version})"

    def within(self, scope: str) -> tuple[Member, ...]:
        """The members where attackers may forge ``scope`` only: each attack that forges at all once, on that channel.

        >>> both = Ensemble(1, (Member("alie"), Member("alie", "update"), Member("label-flip", poisons=True)))
        >>> [m.label for m in both.within("both")], [m.label for m in both.within("statistics")]
        (['alie', 'alie [update]', 'label-flip'], ['alie'])
        """
        if scope == "both":
            return self.members
        open_to = [m for m in self.members if not m.poisons and not (m.updates and scope == "statistics")]
        return tuple({m.attack: Member(m.attack, reason=m.reason) for m in open_to}.values())

    def by_cell(self, scope: str) -> dict[tuple[str, str], Member]:
        """The members ``within`` a scope, by the attack and the scope of their cells."""
        return {(member.attack, member.scope or scope): member for member in self.within(scope)}


@cache
def ensembles() -> Mapping[int, Ensemble]:
    """All versions of AutoByz."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    made = (Ensemble(e["version"], tuple(Member(**member) for member in e["member"])) for e in found["ensemble"])
    return {ensemble.version: ensemble for ensemble in made}


def latest() -> Ensemble:
    """The newest version of AutoByz."""
    return ensembles()[max(ensembles())]


def ensemble_of(version: object) -> Ensemble:
    """One version of AutoByz. Raises ``UsageError`` for a version there is not."""
    if type(version) is not int or version not in ensembles():
        raise UsageError(f"{NAME}: version={version!r} is not known here; known: {', '.join(map(str, ensembles()))}")
    return ensembles()[version]


def named(spec: object) -> Ensemble | None:
    """The ensemble that an attack's spec names, ``autobyz`` (the latest) or ``autobyz(version=1)``; None for an attack.

    Raises ``UsageError`` for another parameter and for a version there is not.

    >>> named("alie"), named("autobyz(version=1)").version
    (None, 1)
    """
    match = _SPEC.fullmatch(spec.strip()) if isinstance(spec, str) else None
    if match is None:
        return None
    inside = (match[1] or "").strip()
    if not inside:
        return latest()
    version = re.fullmatch(r"version\s*=\s*(\d{1,9})", inside)
    if version is None:
        raise UsageError(f"attack={spec!r}: {NAME} takes version, a whole number, and nothing else: {NAME}(version=1)")
    return ensemble_of(int(version[1]))


@dataclass(frozen=True)
class Asked:
    """The order to count an ensemble as AutoByz, and the channels of its attackers.

    ``others`` are attacks, with what they forge, that were run on single rows beside its members.
    """

    ensemble: Ensemble
    scope: str = "both"
    others: tuple[tuple[str, str], ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """The labels of the members."""
        return tuple(member.label for member in self.ensemble.within(self.scope))

    def shown(self, names: Mapping[str, str]) -> Asked:
        """The same with attacks under these names."""
        members = tuple(replace(m, attack=names.get(m.attack, m.attack)) for m in self.ensemble.members)
        others = tuple((names.get(attack, attack), scope) for attack, scope in self.others)
        return replace(self, ensemble=replace(self.ensemble, members=members), others=others)

    def renamed(self, cells: Sequence[Mapping[Hashable, Any]]) -> list[dict[Hashable, Any]]:
        """The cells, with the channel of a member that forges its own one in the attack's name, and no other."""
        own = {(m.attack, m.scope): m.label for m in self.ensemble.within(self.scope) if m.scope}
        own |= {(a, s): Member(a, s).label for a, s in self.others if s != self.scope}
        named = []
        for cell in cells:
            label = own.get((str(cell.get("attack")), str(cell.get("scope"))))
            named.append(dict(cell) if label is None else {**cell, "attack": label, "scope": self.scope})
        return named


def asked_of(description: Mapping[str, Any]) -> Asked | None:
    """Read off a store's description, or a published board's protocol, what counts as AutoByz; None if nothing does.

    Raises ``UsageError`` for a version that is not known here.
    """
    found = description.get("autobyz")
    if not isinstance(found, Mapping):
        return None
    facts = description.get("benchmark")
    beaten = facts.get("beaten") or () if isinstance(facts, Mapping) else ()
    others = tuple((str(one["attack"]), str(one["scope"])) for one in beaten)
    return Asked(ensemble_of(found.get("version")), str(found.get("scope", "both")), others)
