"""Golden cases: reading them, the numbers of a mode, comparing nested results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustfl.registry import KINDS, entries

_NONFINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


class NotThereYet(Exception):
    """The case is about a method or function that does not exist yet."""


@dataclass(frozen=True)
class Case:
    """One case of one file. ``inputs``, ``params`` and ``expected`` hold numbers, nested lists and nested dicts."""

    file: str
    name: str
    spec: str
    inputs: dict[str, Any]
    params: dict[str, Any]
    expected: dict[str, Any]
    tol: float

    @property
    def section(self) -> tuple[int, int]:
        """``(4, 17)`` for §4.17; the first section where the case names several."""
        found = re.search(r"(\d+)\.(\d+)", self.spec)
        if found is None:
            raise ValueError(f"{self.file}: case {self.name!r} names no section: {self.spec!r}")
        return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Mode:
    """In which numbers a case runs."""

    name: str
    dtype: torch.dtype
    device: str = "cpu"

    def tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def tolerance(self, case: Case) -> float:
        return case.tol if self.dtype == torch.float64 else max(case.tol, 1e-5)


MODES = [Mode("float64", torch.float64), Mode("float32", torch.float32)]
if torch.cuda.is_available():
    MODES += [Mode("cuda-float64", torch.float64, "cuda"), Mode("cuda-float32", torch.float32, "cuda")]


def read_folder(folder: Path) -> Iterator[Case]:
    """Every case of every ``*.json`` in ``folder``, by file name."""
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("format") != 1:
            raise ValueError(f"{path}: format {content.get('format')!r} is not 1")
        for raw in content["cases"]:
            parts = {key: _numbers(raw.get(key) or {}) for key in ("inputs", "params", "expected")}
            yield Case(path.stem, raw["name"], str(raw["spec"]), tol=float(raw.get("tol", 1e-10)), **parts)


def _numbers(value: Any) -> Any:
    """Non-finite numbers are strings in the files."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _NONFINITE.fullmatch(value) else value


def need(kind: str, *names: str) -> str:
    """The first of ``names`` that is registered as ``kind`` (``any`` kind); the case waits if none is."""
    known = {e.name for k in KINDS if kind in (k, "any") for e in entries(k)}
    for name in names:
        if name in known:
            return name
    raise NotThereYet(f"method {names[0]} is not there yet")


def undriven(case: Case) -> Any:
    """The method exists, but nobody has told the runner how to drive it."""
    raise NotImplementedError(f"{case.file}/{case.name} (§{case.spec}): its method is there now; extend its driver")


def compare(expected: Any, got: Any, tol: float, path: str = "") -> tuple[list[str], list[str]]:
    """The leaves that were compared and the complaints. A key of ``expected`` that ``got`` lacks is passed over."""
    if isinstance(expected, dict):
        compared, wrong = [], []
        for key, value in expected.items():
            if key in got:
                more, worse = compare(value, got[key], tol, f"{path}.{key}" if path else key)
                compared += more
                wrong += worse
        return compared, wrong
    if isinstance(got, (torch.Tensor, np.ndarray)):
        got = got.tolist()
    return [path], list(_differences(expected, got, tol, path))


def _differences(expected: Any, got: Any, tol: float, path: str) -> Iterator[str]:
    if isinstance(expected, list):
        if isinstance(got, (torch.Tensor, np.ndarray)):
            got = got.tolist()
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            yield f"{path}: {len(expected)} entries expected, got {got!r}"
            return
        for i, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from _differences(one, other, tol, f"{path}[{i}]")
    elif isinstance(expected, dict):
        yield from compare(expected, got, tol, path)[1]
    elif isinstance(expected, (int, float)):
        same = expected == got or (math.isnan(expected) and math.isnan(got))
        if not same and not (math.isfinite(expected) and abs(expected - got) <= tol + tol * abs(expected)):
            yield f"{path}: expected {expected!r}, got {got!r}"
    elif expected != got:
        yield f"{path}: expected {expected!r}, got {got!r}"
