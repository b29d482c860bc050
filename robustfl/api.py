"""The convenience constructors of the public surface; each is one call into the registry."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from robustfl.attacks.byzantine.sight import own_rows
from robustfl.autobyz import named
from robustfl.contracts import Attack, Evasion, Forged, Norm, Rehearsal, View
from robustfl.defenses.pipeline import Pipeline, parse_pipeline
from robustfl.defenses.stack import Rows, as_stack, check_f, check_generator
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.registry import create, describe
from robustfl.results import all_finite
from robustfl.torch_settings import float32_default

_HEAD = 1024  # columns
Stacked = TypeVar("Stacked", bound=Rows)


def attack(name: str, **params: Any) -> Attack:
    """The Byzantine attack ``name``. Raises ``UsageError`` for an unknown name or parameter."""
    if named(name) is not None:
        raise UsageError(f"{name} is a set of attacks that scenarios run in turn; `robustfl show autobyz` names them")
    return cast(Attack, create("attack", name, **params))


def evasion(name: str, **params: Any) -> Evasion:
    """The evasion attack ``name``; fractions such as ``eps="8/255"`` are read as numbers."""
    return cast(Evasion, create("evasion", name, **params))


def norm(name: str, **params: Any) -> Norm:
    """The normalization scheme ``name``."""
    return cast(Norm, create("norm", name, **params))


def defense(name: str, **params: Any) -> Pipeline:
    """The defense pipeline ``"step+...+aggregator"``; ``params`` go to its last part.

    Rows come as a tensor, an array or a list with one row (or one list of layers) per client, and so does the result.
    Rules that remember, such as centered clipping, are called with ``stateful``.

    >>> import torch
    >>> defense("trimmed-mean")(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.5000])
    """
    return parse_pipeline(name, **params)


@float32_default()
def forge(
    name: str | Attack,
    honest: Stacked,
    f: int,
    *,
    own: Stacked | None = None,
    defense: Pipeline | str | None = None,
    f_declared: int | None = None,
    generator: torch.Generator | None = None,
    **params: Any,
) -> Stacked:
    """The rows ``[f d]`` that ``f`` attackers send against the honest rows ``[h d]``, in the form of these.

    ``honest`` is a tensor, an array, or a list with one row (or one list of layers) per client. ``own [f d]`` are the
    rows the attackers would have sent honestly, by default the honest mean (data poisoners have no default: what they
    send depends on their data); ``defense`` is what attacks that know the server optimise against, a pipeline or its
    name, called with ``f_declared`` (default ``f``); other attacks take no notice of it. ``f=0`` gives no rows. Attacks
    that draw do so from ``generator``; without one every call draws the same. Warns (``UserWarning``) if they leave the
    honest mean where it is.

    >>> import numpy as np
    >>> forge("opt-foe", np.array([[0.0], [1.0], [2.0], [9.0]]), f=1, defense="krum").shape
    (1, 1)
    """
    f = check_f(f, "forge")
    draws = check_generator(generator, "forge", "forge")
    rows, form = as_stack(honest, "forge: honest")
    if getattr(honest, "ndim", 2) < 2:
        raise UsageError(f"forge: honest must be rows [h d], one for each honest client, not one row [{len(rows)}]")
    chosen = _chosen(name, params)
    if f == 0:
        return cast(Stacked, form.stack(rows.new_zeros((0, rows.shape[1]))))
    if not all_finite(rows):
        raise UsageError("forge: honest rows must be finite")
    if chosen.knowledge == "defense" and defense is None:
        raise UsageError(f"attack {chosen.name!r} optimises against the server; give defense='krum' or another rule")
    mine = None if own is None else as_stack(own, "forge: own")[0]
    if mine is not None and own_rows(View(n=len(rows) + f, f=f, own=mine), chosen.name).shape[1] != rows.shape[1]:
        raise UsageError(f"forge: own must be rows of {rows.shape[1]} numbers, not of {mine.shape[1]}")
    if chosen.sees_own and mine is None and not chosen.poisons_data:
        mine = rows.mean(0).expand(f, -1)
    rehearsal = _rehearsal(defense, f if f_declared is None else f_declared, rows.device)
    view = View(n=len(rows) + f, f=f, honest=rows, own=mine, aggregate=rehearsal).redacted(chosen)
    made = Forged.of(chosen.forge(view, generator=draws or stream(0, "forge", device=rows.device))).rows
    if chosen.name != "none" and mine is None and _stays(made, rows):
        warnings.warn(
            f"forge: {describe(chosen)} leaves the honest mean where it is ({len(rows)} honest rows, f = {f}), and "
            "attacks nothing", UserWarning, stacklevel=3,
        )  # fmt: skip
    return cast(Stacked, form.stack(made))


def _rehearsal(defense: Pipeline | str | None, f: int, device: torch.device) -> Rehearsal | None:
    """The server with its rule, as attackers rehearse it."""
    if defense is None:
        return None
    server = defense if callable(defense) else parse_pipeline(defense)

    def rehearse(stack: Tensor) -> Tensor:
        made: Tensor = server(stack, f=f, generator=stream(0, "rehearsal", device=device))
        return made

    return Rehearsal(rehearse, getattr(server, "isometric", False))


def _chosen(name: str | Attack, params: dict[str, Any]) -> Attack:
    if not isinstance(name, Attack):
        return attack(name, **params)
    if params:
        given = ", ".join(params)
        raise UsageError(f"forge: {describe(name)} has its parameters already; {given} would change nothing: name it")
    return name


def _stays(made: Tensor, honest: Tensor) -> bool:
    """True if the mean of rows is that of the honest ones, but for rounding, and the honest ones differ."""

    def lengths(made: Tensor, honest: Tensor) -> tuple[Tensor, Tensor]:
        mean = honest.mean(0)
        return torch.linalg.vector_norm(made.mean(0) - mean), torch.linalg.vector_norm(honest - mean)

    moved, spread = lengths(made[:, :_HEAD], honest[:, :_HEAD])
    if moved > 0.01 * spread > 0:  # most attacks move every column: one look at some of them
        return False
    moved, spread = lengths(made, honest)
    return bool((spread > 0) & (moved <= 1e-5 * spread))
