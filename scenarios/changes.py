"""Changes of the benchmark's protocol that a run refuses: they would do nothing, or leave nothing to choose by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robustfl.errors import UsageError

from .spec import Cell, Scenario, is_axis


def refuse_changes(
    settings: Sequence[str], scenario: Scenario, *, named: Sequence[str], searched: str, tuning: Mapping[str, Any]
) -> None:
    """Raise ``UsageError`` for ``settings`` of a tier under which its run would not be what its board says.

    ``named`` are the settings that names of contestants give, ``searched`` is the one that the search tries, and
    ``scenario`` the tier with the settings on top.
    """
    for setting in settings:
        name = setting.partition("=")[0].strip().partition(".")[0]
        if name in named:
            wanted = "[/".join(each.upper() for each in named) + "]" * (len(named) - 1)
            raise UsageError(
                f"--set {setting}: every contestant brings its own {name}; name those that shall run with "
                f"--contestant {wanted}"
            )
        if name == searched:
            raise UsageError(
                f"--set {setting}: the search tries values of {name} and chooses one for every contestant; "
                f"`robustfl grid bench/TIER` runs a tier's cells without a search, with any {name}"
            )
    if any(share == 0 for share in _values(scenario, "validation")):
        raise UsageError(
            "validation=0: configurations are chosen by accuracy on the clients' validation data, and there would be "
            "none; give a share above 0"
        )
    if tuning["seed"] in _values(scenario, "seed"):
        raise UsageError(
            f"seed={tuning['seed']} is the seed of tuning, and no final run has that; take others for --set seed"
        )


def _values(scenario: Scenario, name: str) -> list[Any]:
    """The values that a setting has in a tier."""
    value = scenario.cell.get(name, Cell.model_fields[name].default)
    return list(value) if is_axis(name, value) else [value]
