"""AutoByz in a scenario: one value of the axis ``attack`` that stands for a cell per member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from robustfl.autobyz import NAME, Ensemble, named
from robustfl.errors import UsageError

from .cell import Cell
from .spec import Scenario, is_axis, specs_of

SCOPE = Cell.model_fields["scope"].default


def asked(scenario: Scenario) -> Ensemble | None:
    """The ensemble that a scenario's attacks name, or None.

    Raises ``UsageError`` for two versions of it and for a scope with several values, since members forge channels of
    their own.
    """
    attacks = scenario.cell.get("attack")
    listed = attacks if isinstance(attacks, list) else [attacks]
    found = {ensemble for option in listed for ensemble in _ensembles(option)}
    if len(found) > 1:
        raise UsageError(f"attack: {NAME} in {len(found)} versions; a scenario takes one")
    scope = scenario.cell.get("scope")
    if found and is_axis("scope", scope):
        raise UsageError(
            f"scope={scope!r}: beside attack={NAME!r}, whose members forge channels of their own, one value"
        )
    return next(iter(found), None)


def _ensembles(option: Any) -> list[Ensemble]:
    specs = (
        specs_of("attack", option) if isinstance(option, Mapping) else option if isinstance(option, list) else [option]
    )
    return [ensemble for spec in specs if (ensemble := named(spec)) is not None]


def members(settings: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The settings of every cell that these settings stand for, with the ensemble's spec where they name one."""
    ensemble = named(settings.get("attack"))
    if ensemble is None:
        yield dict(settings), ""
        return
    scope = settings.get("scope", SCOPE)
    for attack, channel in ensemble.by_cell(scope):
        yield {**settings, "attack": attack, "scope": channel}, ensemble.spec
