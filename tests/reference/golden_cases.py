"""Golden files: numbers computed without any code of this project, and how ours are compared with them.

A file is ``{"format": 1, "cases": [...]}``; a case has ``name``, ``spec`` (the section it belongs to), ``inputs``,
``params``, ``expected``, ``tol`` (absolute and relative) and perhaps a ``note``. Numbers that are not finite are
written as strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

OURS = Path(__file__).parent / "golden"
DEFAULT_TOL = 1e-10
_NOT_FINITE = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
# Sets of clients: the order in which they are listed means nothing.
_SETS = {"neighbours", "selected", "subset", "kept"}


@dataclass(frozen=True)
class Case:
    """One case of a golden file."""

    file: str
    name: str
    spec: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    expected: Mapping[str, Any]
    tol: float

    def __str__(self) -> str:
        return f"{self.file}-{self.name}"


@dataclass(frozen=True)
class Arithmetic:
    """The numbers a case is computed in."""

    dtype: torch.dtype
    device: str = "cpu"

    def __str__(self) -> str:
        return str(self.dtype).removeprefix("torch.") + ("" if self.device == "cpu" else f"-{self.device}")

    def tensor(self, value: Any) -> torch.Tensor:
        """Nested lists of numbers as a tensor."""
        return torch.tensor(value, dtype=self.dtype, device=self.device)

    def integers(self, value: Any) -> torch.Tensor:
        """Nested lists of labels or indices as a tensor."""
        return torch.tensor(value, dtype=torch.int64, device=self.device)

    def tolerance(self, case: Case) -> float:
        """The case's own in float64, at least 1e-5 in float32."""
        return case.tol if self.dtype == torch.float64 else max(case.tol, 1e-5)


def load(folder: Path) -> list[Case]:
    """All cases of all ``*.json`` files of ``folder``; raises ``FileNotFoundError`` where there is none."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.json files")
    return [case for file in files for case in _cases(file)]


def _cases(file: Path) -> Iterator[Case]:
    for raw in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        parts = {name: _numbers(raw[name]) for name in ("inputs", "params", "expected")}
        spec = str(raw["spec"]).removeprefix("§")
        yield Case(file=file.stem, name=raw["name"], spec=spec, tol=float(raw.get("tol", DEFAULT_TOL)), **parts)


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    if isinstance(value, str) and value.lower() in _NOT_FINITE:
        return float(value)
    return value


def compare(found: Any, expected: Any, tol: float, where: str = "") -> list[str]:
    """How ``found`` differs from ``expected``, in words; empty if nowhere by more than ``tol + tol·|expected|``.

    Of mappings the keys they share are compared.
    """
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            return [f"{where}: {type(found).__name__} instead of a mapping"]
        shared = [key for key in expected if key in found]
        return [line for key in shared for line in compare(found[key], expected[key], tol, f"{where}.{key}".strip("."))]
    found = _plain(found)
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            size = len(found) if isinstance(found, list) else "no list"
            return [f"{where}: {size} entries instead of {len(expected)}"]
        if where.rpartition(".")[2] in _SETS:
            found, expected = _as_sets(found), _as_sets(expected)
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for i, (a, b) in pairs for line in compare(a, b, tol, f"{where}[{i}]")]
    return [] if _close(found, expected, tol) else [f"{where}: {found!r} instead of {expected!r}"]


def answered(found: Any, expected: Any, where: str = "") -> set[str]:
    """The names of the expected keys that ``found`` has an answer for."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        inner = [answered(found[k], expected[k], f"{where}.{k}".strip(".")) for k in expected if k in found]
        return set().union(*inner)
    if isinstance(expected, list) and expected and isinstance(expected[0], Mapping) and isinstance(found, list):
        return set().union(*(answered(a, b, where) for a, b in zip(found, expected, strict=True)))
    return {where}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _as_sets(value: list[Any]) -> list[Any]:
    return [_as_sets(v) for v in value] if value and isinstance(value[0], list) else sorted(value)


def _close(found: Any, expected: Any, tol: float) -> bool:
    if not isinstance(found, (int, float)) or not isinstance(expected, (int, float)):
        return bool(found == expected)
    if not math.isfinite(expected):
        return found == expected or (math.isnan(expected) and math.isnan(found))
    return abs(found - expected) <= tol + tol * abs(expected)
