"""The convenience constructors of the public surface; each is one call into the registry."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from robustfl.contracts import Attack, Evasion, Forged, Norm, Rehearsal, View
from robustfl.defenses.pipeline import Pipeline, parse_pipeline
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.registry import create


def attack(name: str, **params: Any) -> Attack:
    """The Byzantine attack ``name``. Raises ``UsageError`` for an unknown name or parameter."""
    return cast(Attack, create("attack", name, **params))


def evasion(name: str, **params: Any) -> Evasion:
    """The evasion attack ``name``; fractions such as ``eps="8/255"`` are read as numbers."""
    return cast(Evasion, create("evasion", name, **params))


def norm(name: str, **params: Any) -> Norm:
    """The normalization scheme ``name``."""
    return cast(Norm, create("norm", name, **params))


def defense(name: str, **params: Any) -> Pipeline:
    """The defense pipeline ``"step+...+aggregator"``; ``params`` go to its last part.

    >>> import torch
    >>> defense("trimmed-mean")(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.5000])
    """
    return parse_pipeline(name, **params)


def forge(
    name: str | Attack,
    honest: Tensor,
    f: int,
    *,
    own: Tensor | None = None,
    defense: Pipeline | None = None,
    f_declared: int | None = None,
    generator: torch.Generator | None = None,
    **params: Any,
) -> Tensor:
    """The rows ``[f d]`` that ``f`` attackers send against the honest rows ``[h d]``.

    ``own [f d]`` are the rows the attackers would have sent honestly, by default the honest mean (data poisoners
    have no default: what they send depends on their data); ``defense`` is what attacks that know the server optimise
    against, called with ``f_declared`` (default ``f``). ``f=0`` gives an empty ``[0 d]``.
    """
    if isinstance(f, bool) or not isinstance(f, int) or f < 0:
        raise UsageError(f"forge: f={f!r} must be an int ≥ 0")
    if honest.ndim != 2 or not len(honest) or not honest.is_floating_point():
        kind = f"{honest.dtype} of shape {tuple(honest.shape)}"
        raise UsageError(f"forge: honest must be floating-point rows [h d], at least one row, not {kind}")
    chosen = attack(name, **params) if isinstance(name, str) else name
    if f == 0:
        return honest.new_zeros((0, honest.shape[1]))
    if not _finite(honest):
        raise UsageError("forge: honest rows must be finite")
    if chosen.knowledge == "defense" and defense is None:
        raise UsageError(f"attack {chosen.name!r} optimises against the server; give defense=robustfl.defense(...)")
    if chosen.sees_own and own is None and not chosen.poisons_data:
        own = honest.mean(0).expand(f, -1)
    declared = f if f_declared is None else f_declared

    def rehearse(rows: Tensor) -> Tensor:
        assert defense is not None
        return defense(rows, f=declared, generator=stream(0, "rehearsal", device=honest.device))

    rehearsal = None if defense is None else Rehearsal(rehearse, getattr(defense, "isometric", False))
    view = View(
        n=honest.shape[0] + f,
        f=f,
        honest=honest,
        own=own,
        aggregate=rehearsal,
    ).redacted(chosen)
    return Forged.of(chosen.forge(view, generator=generator or stream(0, "forge", device=honest.device))).rows


def _finite(rows: Tensor) -> bool:
    """Whether all entries are finite: a sum is so only if they are, and costs one read; the rare others are looked at."""
    return math.isfinite(float(rows.sum())) or bool(torch.isfinite(rows).all())
