"""At the door: what people hand to a defense becomes a stack ``[n d]``, or a clear error; and back."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.errors import UsageError, reason

Rows = Tensor | np.ndarray[Any, Any] | Sequence[Any]
# A row longer than this has no squared distances in float64 and is treated like one with infinite entries.
LONGEST = 1e150


@dataclass(frozen=True)
class Part:
    """A row that is one array, or one layer of a row that is a list of them: what it takes to write it again."""

    kind: type
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    stored: np.dtype[Any] | None = None

    def written(self, values: Tensor, *leading: int) -> Any:
        """``values`` in this shape, behind ``leading`` axes, as the tensor, array or nested list it was."""
        made = values.to(self.dtype).reshape((*leading, *self.shape))
        if self.kind is Tensor:
            return made
        array = made.cpu().numpy()
        return array.astype(self.stored, copy=False) if self.kind is np.ndarray else array.tolist()


@dataclass(frozen=True)
class Form:
    """The form of rows as handed over. ``layers`` and ``rows`` are the list types around them, if there are any."""

    parts: tuple[Part, ...]
    layers: type[list[Any]] | type[tuple[Any, ...]] | None
    rows: type[list[Any]] | type[tuple[Any, ...]] | None

    def row(self, vector: Tensor) -> Any:
        """A vector ``[d]`` in the form of one row."""
        if self.layers is None:
            return self.parts[0].written(vector)
        pieces = torch.split(vector, [part.shape.numel() for part in self.parts])
        return self.layers(part.written(piece) for part, piece in zip(self.parts, pieces, strict=True))

    def stack(self, matrix: Tensor) -> Any:
        """Vectors ``[k d]`` in the form of the whole stack."""
        if self.rows is None:
            return self.parts[0].written(matrix, len(matrix))
        return self.rows(self.row(vector) for vector in matrix)


def as_stack(X: Rows, owner: str) -> tuple[Tensor, Form]:
    """The stack ``[n d]`` with the form it came in; half precision is computed in float32.

    ``X`` is a tensor or array ``[n …]``, or a list with one entry per client: a tensor, an array, or a list of them
    (the layers of a model), alike for all clients in number, shape, dtype and device.
    """
    if isinstance(X, (Tensor, np.ndarray)):
        whole, part = _part(X, owner)
        if whole.ndim == 0 or len(whole) == 0:
            raise UsageError(f"{owner}: no rows; give a stack [n d] with n ≥ 1")
        part = Part(part.kind, whole.shape[1:], part.dtype, part.device, part.stored)
        flat = whole.reshape(len(whole), part.shape.numel())
        return flat.to(_computed((part,))), Form((part,), None, None)
    if not isinstance(X, (list, tuple)):
        raise UsageError(f"{owner}: rows must be a tensor, an array or a list of them, not {type(X).__name__}")
    if not X:
        raise UsageError(f"{owner}: no rows; give at least one")
    layered = _is_layered(X[0])
    read = [[_part(layer, owner) for layer in (row if layered else (row,))] for row in X]
    first = tuple(part for _, part in read[0])
    for i, row in enumerate(read):
        _check_alike(i, tuple(part for _, part in row), first, owner, layered=layered)
    computed = _computed(first)
    flat = torch.stack([torch.cat([values.reshape(-1).to(computed) for values, _ in row]) for row in read])
    return flat, Form(first, _container(X[0]) if layered else None, _container(X))


def _container(values: Sequence[Any]) -> type[list[Any]] | type[tuple[Any, ...]]:
    return tuple if isinstance(values, tuple) else list


def _is_layered(row: Any) -> bool:
    """True if a row is a list of layers, rather than of numbers."""
    return isinstance(row, (list, tuple)) and any(isinstance(layer, (Tensor, np.ndarray)) for layer in row)


def _computed(parts: Sequence[Part]) -> torch.dtype:
    return torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32


def _check_alike(i: int, row: tuple[Part, ...], first: tuple[Part, ...], owner: str, *, layered: bool) -> None:
    """Refuse row ``i`` unless it has the parts of the first row."""
    if len(row) != len(first):
        raise UsageError(f"{owner}: rows are ragged: row {i} has {len(row)} layers, row 0 has {len(first)}")
    for k, (mine, wanted) in enumerate(zip(row, first, strict=True)):
        place = f"layer {k} of row {i}" if layered else f"row {i}"
        for what, here, there in (
            ("shape", tuple(mine.shape), tuple(wanted.shape)),
            ("dtype", mine.dtype, wanted.dtype),
            ("device", mine.device, first[0].device),
        ):
            if here != there:
                ragged = "ragged, of unequal lengths" if what == "shape" and mine.kind is list else "ragged"
                raise UsageError(f"{owner}: rows are {ragged}: {place} has {what} {here}, row 0 has {there}")


def _part(value: Any, owner: str) -> tuple[Tensor, Part]:
    """One tensor, array or nested list of numbers, with its description. Arrays are copied."""
    if isinstance(value, Tensor):
        if not value.dtype.is_floating_point:
            raise UsageError(f"{owner}: rows have dtype {value.dtype}; {_FLOATING}")
        if value.layout != torch.strided:
            raise UsageError(f"{owner}: rows have the layout {value.layout}; dense ones (x.to_dense()) are needed")
        return value.detach(), Part(Tensor, value.shape, value.dtype, value.device)
    try:
        array = np.asarray(value)
        if array.dtype.kind in "iuO" and _is_plain(value):
            array = np.asarray(value, dtype=np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        if isinstance(error, ValueError) and _is_plain(value):
            raise UsageError(f"{owner}: rows are ragged: a row holds lists of unequal lengths") from error
        raise UsageError(f"{owner}: rows are ragged: {reason(error)}") from error
    if array.dtype == object and not isinstance(value, (list, tuple)):
        raise UsageError(
            f"{owner}: a row is a {type(value).__name__}; a tensor, an array or a list of layers is needed, such as "
            "list(x.values()) of a dictionary of tensors or list(model.parameters())"
        )
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise UsageError(f"{owner}: rows have dtype {array.dtype}; {_FLOATING}")
    # A copy: torch shares memory with numpy, and read-only or byte-swapped arrays cannot be shared.
    values = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    kind = np.ndarray if isinstance(value, (np.ndarray, np.generic)) else list
    return values, Part(kind, values.shape, values.dtype, values.device, array.dtype)


def _is_plain(value: Any) -> bool:
    """True for a Python number, and for nested lists of such."""
    return all(map(_is_plain, value)) if isinstance(value, (list, tuple)) else type(value) in (int, float)


_FLOATING = "floating-point rows of at most 64 bits are needed (counters, as of batch norm, are no part of an update)"


def as_weights(weights: Rows | None, n: int, owner: str) -> Tensor | None:
    """Sample weights as float64 ``[n]``: finite, not negative, not all zero."""
    if weights is None:
        return None
    given = _numbers(weights, f"{owner}: weights", torch.float64)
    if given.shape != (n,):
        raise UsageError(f"{owner}: weights have shape {tuple(given.shape)}; this stack needs ({n},)")
    if not bool(torch.isfinite(given).all()) or bool((given < 0).any()) or not float(given.sum()) > 0:
        raise UsageError(f"{owner}: weights={given.tolist()} must be finite, ≥ 0 and not all zero")
    return given


def _numbers(values: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=dtype).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{name}={values!r:.60} must be a list of numbers, one for each row") from None


def as_clients(clients: Sequence[int] | Tensor | None, n: int, owner: str) -> Tensor | None:
    """Client numbers as int64 ``[n]`` on the CPU, each there once."""
    if clients is None:
        return None
    given = _numbers(clients, f"{owner}: clients")
    if given.shape != (n,) or given.dtype.is_floating_point or len(set(given.tolist())) != n:
        raise UsageError(f"{owner}: clients={given.tolist()} must be {n} different whole numbers, one for each row")
    return given.long()


def check_f(f: Any, owner: str) -> int:
    """``f`` as an int ≥ 0, from whatever Python takes as an index but ``bool``."""
    if isinstance(f, (bool, np.bool_)) or not hasattr(f, "__index__"):
        raise UsageError(f"{owner}: f={f!r} must be an int ≥ 0")
    try:
        whole = operator.index(f)
    except TypeError:  # arrays and tensors of another kind
        whole = -1
    if whole < 0:
        raise UsageError(f"{owner}: f={f!r} must be an int ≥ 0")
    return whole


def check_generator(generator: Any, owner: str, use: str) -> torch.Generator | None:
    """``generator`` if it is one of torch's, or None."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    raise UsageError(
        f"{owner}: generator={generator!r:.60} must be a torch.Generator; give "
        f"generator=robustfl.randomness.stream(seed, {use!r})"
    )


def finite_rows(X: Tensor) -> Tensor:
    """Boolean ``[n]`` on the CPU: which rows of ``X [n d]`` have a length of at most ``LONGEST``."""
    # One fast read: a sum or a norm is finite only if every entry is. The rare others are looked at closely.
    probe = torch.linalg.vector_norm(X, dim=1) if X.dtype == torch.float64 else X.sum(dim=1)
    # In float64, because the bound itself is infinite in float32.
    good = probe.cpu().double().abs() <= LONGEST
    for i in [i for i, fine in enumerate(good.tolist()) if not fine]:
        length = torch.linalg.vector_norm(X[i], dtype=torch.float64)
        good[i] = bool(length <= LONGEST)
    return good
