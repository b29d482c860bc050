"""The threat model of the pipeline released with Hong et al. for Digits."""

from __future__ import annotations

from typing import NamedTuple

from robustfl.errors import UsageError


class Box(NamedTuple):
    """Where pixels may go, and how long a unit of ε is in pixels."""

    low: float
    high: float
    scale: float


def box(owner: str, legacy_digits_clip: bool, norm: str) -> Box:
    """The pixel range, or what is left of it when images are normalized to ``u = 2x - 1`` first and ``u`` is clipped to
    [0, 1]: everything darker than mid-grey jumps to mid-grey, and ε, measured in ``u``, is half as long in pixels.
    """
    if not legacy_digits_clip:
        return Box(0.0, 1.0, 1.0)
    if norm != "linf":
        raise UsageError(
            f"{owner}: legacy_digits_clip repeats attacks in the L∞ ball; norm={norm!r} has no counterpart"
        )
    return Box(0.5, 1.0, 0.5)
