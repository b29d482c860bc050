"""Rows that attacks see, and forged rows of statistics."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from robustfl.contracts import Attack, Forged, Rehearsal, View
from robustfl.errors import UsageError
from robustfl.kernels import mean_and_std


def honest_rows(view: View, attack: str) -> Tensor:
    """The honest rows ``[h d]``, ``h ≥ 1``; raises ``UsageError`` if the view does not hold them."""
    return _rows(view.honest, attack, "the honest rows: a view with honest [h d], h ≥ 1,")


def own_rows(view: View, attack: str) -> Tensor:
    """The rows ``[f d]`` the attackers would have sent honestly; raises ``UsageError`` if the view lacks them."""
    own = _rows(view.own, attack, "the attackers' own rows: own [f d]")
    if own.shape[0] != view.f:
        raise UsageError(f"attack {attack!r}: own has {own.shape[0]} rows; there are f={view.f} attackers")
    return own


def _rows(rows: Tensor | None, attack: str, what: str) -> Tensor:
    if rows is None:
        raise UsageError(f"attack {attack!r} needs {what}")
    if rows.ndim != 2 or rows.shape[0] == 0 or not rows.is_floating_point():
        raise UsageError(f"attack {attack!r} needs {what}, not {rows.dtype} of shape {tuple(rows.shape)}")
    return rows


def alike(vector: Tensor, f: int) -> Tensor:
    """The same ``vector [d]`` sent by all ``f`` attackers, ``[f d]``, without copying it."""
    return vector.expand(f, -1)


def centre(honest: Tensor) -> Tensor:
    """The honest mean ``ḡ [d]``."""
    return honest.mean(0)


def centre_and_spread(honest: Tensor, ddof: int) -> tuple[Tensor, Tensor]:
    """The honest mean ``ḡ [d]`` and every coordinate's standard deviation ``s [d]``; one honest row has ``s = 0``."""
    if honest.shape[0] == 1:
        return honest[0], honest.new_zeros(honest.shape[1])
    return mean_and_std(honest, ddof)


def random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Signs -1 and 1 ``[d]``, drawn in float32 whatever the rows are, so that precision does not change the draw."""
    drawn = torch.rand(len(like), generator=generator, device=generator.device).to(like.device)
    return torch.where(drawn < 0.5, -1.0, 1.0).to(like)


def unit(vector: Tensor) -> Tensor:
    """``vector / ‖vector‖``; zero stays zero."""
    norm: Tensor = torch.linalg.vector_norm(vector)
    return vector / norm.clamp(min=torch.finfo(vector.dtype).tiny)


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
