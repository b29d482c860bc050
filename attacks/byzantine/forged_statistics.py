"""Attacks on the statistics channel: running means and variances sent beside the update."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from robustfl.contracts import Attack, Forged, Rehearsal, View
from robustfl.errors import UsageError

from .sight import centre

Target = Literal["mean", "var", "both"]


def forge_statistics(attack: Attack, view: View, *, target: Target = "mean", generator: torch.Generator) -> Tensor:
    """The statistics rows ``[f s]`` the attackers send, of an attack that keeps nothing (``forged_statistics``)."""
    return forged_statistics(attack, view, target=target, generator=generator).rows


def forged_statistics(attack: Attack, view: View, *, target: Target = "mean", generator: torch.Generator) -> Forged:
    """The statistics rows ``[f s]`` the attackers send: ``attack`` on the entries of ``target``, honest elsewhere.

    ``view`` is one of the statistics channel and ``view.variance [s]`` marks the variances. Entries outside the target
    are the honest average, or the attackers' own values where the attack does not see the honest rows; of a round in
    which the attack is off (``Attack.on``) all entries are the attackers' own. Variances are cut at 0, since a negative
    one would give the attacker away; NaN and infinity are sent as they are. An attack that knows the defense searches
    among rows that already obey these rules; how far they move the server is the distance from ``view.origin``, over
    all entries of the merged statistics alike.
    """
    if target not in ("mean", "var", "both"):
        raise UsageError(f"target={target!r} must be 'mean', 'var' or 'both'")
    if view.variance is None:
        raise UsageError("forge_statistics: the view must mark its variances (variance [s])")
    variance = view.variance
    kept = None if target == "both" or not attack.on(view.round) else variance == (target == "mean")
    honest = None if kept is None else _unattacked(attack, view)

    def valid(rows: Tensor) -> Tensor:
        if kept is not None and honest is not None:
            rows = torch.where(kept, honest, rows)
        return torch.where(variance & (rows < 0), 0.0, rows)

    if view.aggregate is not None and view.honest is not None:
        aggregate, h = view.aggregate, view.honest.shape[0]
        judged = Rehearsal(lambda stack: aggregate(torch.cat([stack[:h], valid(stack[h:])])), origin=view.origin)
        view = dataclasses.replace(view, aggregate=judged)
    made = Forged.of(attack.forge(view, generator=generator))
    return Forged(valid(made.rows), made.state)


def _unattacked(attack: Attack, view: View) -> Tensor:
    """The values of the entries that the attackers leave honest, ``[s]`` or ``[f s]``."""
    if view.honest is not None:
        return centre(view.honest)
    if view.own is not None:
        return view.own
    raise UsageError(f"attack {attack.name!r} on statistics needs the honest rows or the attackers' own rows")
