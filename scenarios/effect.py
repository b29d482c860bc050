"""Attacks that leave the honest mean where it is, as far as that is known before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .spec import Cell


def no_effect(cell: Cell) -> str | None:
    """Why the attack of a cell leaves the honest mean as it is, or None.

    Nobody attacks, or the attack's certificate has strength 0. A strength that an attack searches while it runs is in
    no certificate; the run then measures what it moved.
    """
    attack = cell.methods.attack
    if not (attack.forges or attack.poisons_data):
        return None
    settings = cell.settings
    n, f = settings.participants, settings.attackers
    if cell.f == 0 or f == 0:
        return f"f = {cell.f}: nobody attacks, though the attack is {cell.attack}; give f, such as --set f=3"
    if f is None or not attack.strength or attack.certificate(n, f).get(attack.strength) != 0:
        return None
    return (
        f"{cell.attack} has no effect with n = {n} and f = {f}: its {attack.strength} is 0, so the attackers send the "
        "honest mean"
    )


def effect_warnings(cells: Iterable[Cell]) -> list[str]:
    """One line for every reason why attacks of these cells have no effect, with the number of cells."""
    counts = Counter(reason for cell in cells if (reason := no_effect(cell)) is not None)
    return [f"{reason} ({n} cell{'s' if n > 1 else ''}); they count in no worst case" for reason, n in counts.items()]
