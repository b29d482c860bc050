"""The rules of the benchmark, from ``protocol.toml``: its versions, its tiers, and which changes it takes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from robustfl.autobyz import NAME as AUTOBYZ
from robustfl.errors import UsageError, closest

from .cell import Cell
from .spec import Scenario, name_of

WHO = ("defense", "norm", "algorithm", "objective", "propagation")
"""The settings that make a contestant; the last two where a tier varies them."""
NAMED = WHO[:3]
"""Those of them that a wish for contestants names."""
SEARCHED = "schedule"
"""The setting of which every contestant tries values."""

_NEW_CELLS = 3  # the version of the protocol since which tiers have the cells that they have today


@dataclass(frozen=True)
class Tier:
    """One tier: its name, what it is about, the settings with which contestants are tuned, the version of AutoByz.

    ``preset`` has its cells, ``statistic`` says which accuracy of a training counts; ``near`` is the number of seeds of
    rows that the preset's seeds do not tell from the first, 0 for no more than these.
    """

    name: str
    title: str
    tuning: Mapping[str, Any]
    autobyz: int
    preset: str
    statistic: str = "final"
    near: int = 0

    def scenario(self, settings: Sequence[str] = ()) -> Scenario:
        """The tier's preset, with ``settings`` such as ``"rounds=30"`` on top, which make it another experiment.

        Boards list them as what they changed: each may be given once. Raises ``UsageError`` otherwise.
        """
        given: dict[str, str] = {}
        for setting in settings:
            name = name_of(setting)
            if name.partition(".")[0] not in Cell.model_fields:
                raise UsageError(f"--set {name}: the tier has no such setting; {closest(name, Cell.model_fields)}")
            if name in given:
                raise UsageError(f"--set {name} is given twice, as {given[name]!r} and {setting!r}")
            given[name] = setting
        made = Scenario.load(f"bench/{self.preset}", settings=settings)
        counted = {} if "attack" in given else {"attack": ["none", f"{AUTOBYZ}(version={self.autobyz})"]}
        return made.model_copy(update={"cell": {**made.cell, **counted}})


@dataclass(frozen=True)
class Protocol:
    """The rules of one version: budget, learning rates, the rules' own parameters, tiers."""

    version: int
    budget: int
    rates: tuple[float, ...]
    coarse: tuple[float, ...]
    own: Mapping[str, Mapping[str, tuple[Any, ...]]]
    tiers: Mapping[str, Tier]

    def tier(self, name: str) -> Tier:
        """One tier. Raises ``UsageError`` naming the nearest."""
        if name not in self.tiers:
            raise UsageError(f"bench: no tier {name!r}; {closest(name, self.tiers)}")
        return self.tiers[name]


def protocol() -> Protocol:
    """The latest version of the protocol, by which tiers run."""
    return _protocols()[max(_protocols())]


def protocol_of(version: object) -> Protocol:
    """The protocol of one version. Raises ``UsageError`` for a version there is not."""
    known = _protocols()
    if type(version) is not int or version not in known:
        raise UsageError(f"protocol version {version!r} is not known here; known: {', '.join(map(str, known))}")
    return known[version]


@cache
def _protocols() -> Mapping[int, Protocol]:
    found = tomllib.loads(Path(__file__).with_name("protocol.toml").read_text(encoding="utf-8"))
    own = {rule: {name: tuple(values) for name, values in given.items()} for rule, given in found["own"].items()}
    made = {}
    for version, autobyz in found["autobyz"].items():
        number, rates, coarse = int(version), tuple(found["rates"]), tuple(found["coarse"])
        tiers = {
            name: _tier(name, entry, number, autobyz)
            for name, entry in found["tiers"].items()
            if number >= entry.get("since", 1)
        }
        made[number] = Protocol(number, found["budget"], rates, coarse, own, tiers)
    return made


def _tier(name: str, entry: Mapping[str, Any], version: int, autobyz: int) -> Tier:
    if version < _NEW_CELLS:
        return Tier(name, entry["title"], entry["tuning"], autobyz, f"{name}-2")
    statistic, near = entry.get("statistic", "final"), entry.get("near", 0)
    return Tier(name, entry["title"], entry["tuning"], autobyz, name, statistic, near)


def scenario_to_run(tier: Tier, settings: Sequence[str] = ()) -> Scenario:
    """The tier with ``settings`` on top, to tune and to run.

    Raises ``UsageError`` for those that the contestants or their search set, for tuning without validation data, and
    for final runs on the seed of tuning.
    """
    scenario = tier.scenario(settings)
    for setting in settings:
        name = name_of(setting).partition(".")[0]
        if name in NAMED:
            wanted = "[/".join(each.upper() for each in NAMED) + "]" * (len(NAMED) - 1)
            raise UsageError(
                f"--set {setting}: every contestant brings its own {name}; name those that shall run with "
                f"--contestant {wanted}"
            )
        if name == SEARCHED:
            raise UsageError(
                f"--set {setting}: the search tries values of {name} and chooses one for every contestant; "
                f"`robustfl grid bench/TIER` runs a tier's cells without a search, with any {name}"
            )
    if any(share == 0 for share in scenario.values("validation")):
        raise UsageError(
            "validation=0: configurations are chosen by accuracy on the clients' validation data, and there would be "
            "none; give a share above 0"
        )
    if tier.tuning["seed"] in scenario.values("seed"):
        raise UsageError(
            f"seed={tier.tuning['seed']} is the seed of tuning, and no final run has that; take others for --set seed"
        )
    return scenario
