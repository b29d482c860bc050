"""At the door: what people hand to a defense becomes a stack ``[n d]``, or a clear error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.errors import UsageError

Rows = Tensor | np.ndarray[Any, Any] | Sequence[Any]
_COMPUTED = {torch.float32, torch.float64}
# A row longer than this has no squared distances in float64 and is treated like one with infinite entries.
LONGEST = 1e150


def as_stack(X: Rows, owner: str) -> tuple[Tensor, torch.Size, torch.dtype]:
    """``(stack [n d], shape of a row, dtype to return)``; half precision is computed in float32."""
    stacked = _stacked(X, owner)
    if stacked.ndim == 0 or stacked.shape[0] == 0:
        raise UsageError(f"{owner}: no rows; give a stack [n d] with n ≥ 1")
    if not stacked.dtype.is_floating_point:
        raise UsageError(f"{owner}: rows have dtype {stacked.dtype}; floating-point rows are needed")
    compute = stacked.dtype if stacked.dtype in _COMPUTED else torch.float32
    flat = stacked.detach().reshape(stacked.shape[0], -1) if stacked.numel() else stacked.new_empty((len(stacked), 0))
    return flat.to(compute), stacked.shape[1:], stacked.dtype


def _stacked(X: Rows, owner: str) -> Tensor:
    if isinstance(X, Tensor):
        return X
    if isinstance(X, np.ndarray):
        return _from_numpy(X, owner)
    if not isinstance(X, (list, tuple)):
        raise UsageError(f"{owner}: rows must be a tensor, an array or a list of them, not {type(X).__name__}")
    if not X:
        raise UsageError(f"{owner}: no rows; give at least one")
    rows = [row if isinstance(row, Tensor) else _from_numpy(_as_array(row, owner), owner) for row in X]
    for what in ("shape", "dtype", "device"):
        found = [getattr(row, what) for row in rows]
        for i, one in enumerate(found):
            if one != found[0]:
                shown = [tuple(v) if what == "shape" else v for v in (one, found[0])]
                raise UsageError(f"{owner}: rows are ragged: row {i} has {what} {shown[0]}, row 0 has {shown[1]}")
    return torch.stack(rows)


def _as_array(row: Any, owner: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(row)
    except ValueError as error:
        raise UsageError(f"{owner}: rows are ragged: {error}") from error


def _from_numpy(array: np.ndarray[Any, Any], owner: str) -> Tensor:
    if array.dtype.kind != "f":
        raise UsageError(f"{owner}: rows have dtype {array.dtype}; floating-point rows are needed")
    # A copy: torch shares memory with numpy, and read-only or byte-swapped arrays cannot be shared.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def as_weights(weights: Tensor | Sequence[float] | None, n: int, owner: str) -> Tensor | None:
    """Sample weights as float64 ``[n]``: finite, not negative, not all zero."""
    if weights is None:
        return None
    given = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if given.shape != (n,):
        raise UsageError(f"{owner}: weights have shape {tuple(given.shape)}; this stack needs ({n},)")
    if not bool(torch.isfinite(given).all()) or bool((given < 0).any()) or not float(given.sum()) > 0:
        raise UsageError(f"{owner}: weights={given.tolist()} must be finite, ≥ 0 and not all zero")
    return given


def check_f(f: Any, owner: str) -> int:
    """``f`` if it is an int ≥ 0 (``bool`` is none)."""
    if isinstance(f, bool) or not isinstance(f, int) or f < 0:
        raise UsageError(f"{owner}: f={f!r} must be an int ≥ 0")
    return f


def finite_rows(X: Tensor) -> Tensor:
    """Boolean ``[n]`` on the CPU: which rows of ``X [n d]`` have a length of at most ``LONGEST``."""
    # One fast read: a sum or a norm is finite only if every entry is. The rare others are looked at closely.
    probe = torch.linalg.vector_norm(X, dim=1) if X.dtype == torch.float64 else X.sum(dim=1)
    # In float64, because the bound itself is infinite in float32.
    good = probe.cpu().double().abs() <= LONGEST
    for i in (~good).nonzero().flatten().tolist():
        length = torch.linalg.vector_norm(X[i], dtype=torch.float64)
        good[i] = bool(length <= LONGEST)
    return good
