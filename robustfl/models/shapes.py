"""Checks of a model's input shape."""

from __future__ import annotations

from robustfl.errors import Refused


def require(model: str, shape: tuple[int, int, int], classes: int, *, least: int = 1) -> None:
    """Refuse images smaller than ``least`` on a side, and fewer than two classes."""
    channels, height, width = shape
    if channels < 1 or min(height, width) < least:
        raise Refused(
            f"model {model!r} needs images [C H W] of at least {least}×{least} pixels; this data set has {shape}"
        )
    if classes < 2:
        raise Refused(f"model {model!r} needs at least 2 classes; this data set has {classes}")
