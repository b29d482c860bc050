"""The rows an attack may look at: the rows of its view, or an error that names what is missing."""

from __future__ import annotations

import torch
from torch import Tensor

from robustfl.contracts import View
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
