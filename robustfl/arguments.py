"""Checks of arguments that several public functions take. Each names the function, the argument and its value."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from robustfl.errors import UsageError, reason
from robustfl.parameters import python_numbers


def check_whole(value: Any, name: str, owner: str, *, least: int | None = None) -> int:
    """``value`` if it is an int, no ``bool``, and at least ``least``.

    >>> check_whole(3, "batch", "evaluate", least=1)
    3
    """
    value = python_numbers(value)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        least_words = "" if least is None else f" ≥ {least}"
        raise UsageError(f"{owner}: {name}={value!r:.60} must be a whole number{least_words}")
    return value


def check_flag(value: Any, name: str, owner: str) -> bool:
    """``value`` if it is a ``bool``."""
    value = python_numbers(value)
    if not isinstance(value, bool):
        raise UsageError(f"{owner}: {name}={value!r:.60} must be True or False")
    return value


def check_model(model: Any, owner: str) -> nn.Module:
    """``model`` if it is a module of torch's."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"{owner}: model is a {type(model).__name__}, not a torch.nn.Module")
    return model


def usable_device(device: str | torch.device, owner: str) -> torch.device:
    """The device, if torch knows it and can use it here."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        why = reason(error).partition("\n")[0]
        raise UsageError(f"{owner}: device={device!r} cannot be used here: {why}") from None
