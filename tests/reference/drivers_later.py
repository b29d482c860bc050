"""Cases of methods that come later: an expected failure by name until the method is registered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from golden_cases import Arithmetic, Case, require


def awaited(name: str) -> Callable[[Case, Arithmetic], dict[str, Any]]:
    """A driver that waits for the method ``name`` and, once it is there, asks for a driver that runs it."""
    return partial(_awaited, name)


def _awaited(name: str, case: Case, on: Arithmetic) -> dict[str, Any]:
    del on
    require(name)
    raise NotImplementedError(f"method {name!r} is there now: case {case} needs a driver that runs it")


# (section, beginning of the case's name) -> the name the method will have
_LATER = {
    ("1.3", "fedprox"): "fedprox",
    ("1.4", "scaffold"): "scaffold",
    ("1.5", "fedavgm"): "fedavgm",
    ("1.6", "fedadam"): "fedadam",
    ("1.7", "moon"): "moon",
    ("1.8", "fedsam"): "fedsam",
    ("1.9", "fedacg"): "fedacg",
    ("1.10", ""): "wsm",
    ("1.11", ""): "wsm",
    ("2.8", ""): "fedtan",
    ("2.12", ""): "hbn",
    ("2.13", "feature_norm"): "fedfn",
    ("2.14", ""): "fedwon",
    ("4.8", "bucketing"): "bucketing",
    ("4.12", "fltrust"): "fltrust",
    ("4.18", ""): "fedrbn",
    ("5.5", "dlr"): "apgd",
    ("5.5", "apgd"): "apgd",
    ("5.6", "square"): "square",
}
DRIVERS = {key: awaited(name) for key, name in _LATER.items()}
