"""Checks of results where the engine receives them from methods: shape, dtype, device, finite entries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts import Method
from robustfl.errors import RobustflError
from robustfl.registry import origin_of

Methods = Method | Sequence[Method]


def received(made: Any, like: Tensor, methods: Methods, member: str, *shown: Tensor) -> Tensor:
    """Return what ``member`` of a method made, if it is a plain tensor of the form of ``like``.

    On the CPU its entries must be finite as well, where everything ``shown`` is finite and small enough for products;
    elsewhere looking at them would make the device wait. Raises ``RobustflError`` naming the method otherwise.
    """
    parts = (methods,) if isinstance(methods, Method) else tuple(methods)
    wanted = f"a tensor {tuple(like.shape)} of {like.dtype} on {like.device}"
    if not isinstance(made, Tensor):
        raise RobustflError(f"{names(parts)}: {member} returned {type(made).__name__}, not {wanted}")
    plain = made.layout == torch.strided and not made.requires_grad
    if not plain or (made.shape, made.dtype, made.device) != (like.shape, like.dtype, like.device):
        found = f"{tuple(made.shape)} of {made.dtype} on {made.device}"
        found += "" if made.layout == torch.strided else f", {made.layout}"
        found += ", which requires a gradient (return it with .detach())" if made.requires_grad else ""
        raise RobustflError(f"{names(parts)}: {member} returned a tensor {found}, not {wanted}")
    looked_at = shown and made.device.type == "cpu" and not any(map(_exempt, parts))
    if looked_at and not all_finite(made) and not any(map(_overflows, shown)):
        raise RobustflError(f"{names(parts)}: {member} returned entries that are not finite")
    return made


def pair(made: Any, words: str, method: Method, member: str) -> tuple[Any, Any]:
    """Return what a method made, if it is a pair, of what ``words`` say. Raises ``RobustflError`` otherwise."""
    if not isinstance(made, tuple) or len(made) != 2:
        raise RobustflError(f"{names(method)}: {member} returned {type(made).__name__}, not a pair ({words})")
    return made


@contextmanager
def unwritten(methods: Methods, member: str, *shown: Tensor | None) -> Iterator[None]:
    """Raise ``RobustflError`` naming the methods if, within, they write to the tensors they were ``shown``."""
    versions = [tensor._version for tensor in shown if tensor is not None]
    yield
    if versions != [tensor._version for tensor in shown if tensor is not None]:
        raise RobustflError(f"{names(methods)}: {member} wrote to what it was shown; it must work on a copy")


def names(methods: Methods) -> str:
    """The methods as messages name them: ``defense 'nnm+mine' (robustfl-mine 1.0)``."""
    parts = (methods,) if isinstance(methods, Method) else tuple(methods)
    origins = dict.fromkeys(origin for part in parts if (origin := origin_of(part)))
    return f"{parts[0].kind} {'+'.join(part.name for part in parts)!r}" + (
        f" ({', '.join(origins)})" if origins else ""
    )


def _overflows(shown: Tensor) -> bool:
    """True if some entry is not finite, or the squared length of a row beyond the largest number of its type."""
    if not shown.numel():
        return False
    longest = torch.linalg.vector_norm(shown, dim=-1, dtype=torch.float64).max()
    return not float(longest) <= math.sqrt(torch.finfo(shown.dtype).max)


def _exempt(method: Method | None) -> bool:
    """True if a method, or one that it wraps, sends what is not finite on purpose."""
    return method is not None and ("finite" in method.exempt or _exempt(getattr(method, "inner", None)))


def all_finite(made: Tensor) -> bool:
    """True if all entries are finite: a sum is so only if they are; the rare others are looked at."""
    return math.isfinite(float(made.sum())) or bool(torch.isfinite(made).all())
