"""The numbers by which a benchmark's contestants chose their configurations, checked by training some of them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.records import CellResult
from robustfl.reports.published import Board
from robustfl.reports.store import RERUN

from .bench import Contestant, tuning_cells, validated
from .cell import Cell
from .expand import fingerprints, key_of, labels, resolve
from .protocol import WHO, protocol_of

Run = Callable[..., CellResult]
"""Runs a cell of a board again: ``run(cell, fingerprint, certificates, scenario="")``."""


@dataclass(frozen=True)
class Trial:
    """A training of a contestant's search: its cell, and the validation accuracy that the board gives it."""

    cell: Cell
    said: float | None

    @property
    def labels(self) -> dict[str, Any]:
        """Its cell's, with a mark that it is of the tuning."""
        return {**labels(self.cell), "tuning": True}

    def check(self, tolerance: float, root: str | Path | None, run: Run) -> tuple[str, str, str]:
        """Its key, the verdict, and in what it differs. Raises ``RobustflError`` where it cannot be run here."""
        fingerprint = fingerprints([self.cell], root)[self.cell]
        key = key_of(resolve(self.cell, fingerprint))
        record, told = run(self.cell, fingerprint, {}), f"validation accuracy in the search {_words(self.said)}"
        if record.status in RERUN:
            return key, "differs", f"{told} → failed: {str(record.reason).partition(chr(10))[0]}"
        found = validated(record)
        if self.said == found:
            return key, "identical", ""
        words = f"{told} → {_words(found)}"
        near = self.said is not None and found is not None and abs(self.said - found) <= tolerance + 1e-9
        return key, "within tolerance" if near else "differs", words


def trials_of(board: Board) -> list[Trial]:
    """Every training of the searches of a board that follows the protocol; none of a board that does not say so."""
    facts = (board.protocol or {}).get("benchmark")
    if facts is None:
        return []
    rules = protocol_of(facts["version"])
    tier = rules.tier(facts["tier"])
    chosen = [contestant_of(name, entry) for name, entry in facts["contestants"].items()]
    cells = tuning_cells(tier, tier.scenario(facts["changed"]), chosen, rules)
    return [
        Trial(cell, tried["validation"][attack])
        for name, entry in facts["contestants"].items()
        for tried, own in zip(entry["search"], cells[name], strict=True)
        for attack, cell in own.items()
    ]


def contestant_of(name: str, entry: Mapping[str, Any]) -> Contestant:
    """The contestant that a board names with its search."""
    who = [setting for setting in WHO if setting in entry["search"][0]]
    return Contestant(tuple(zip(who, name.split(" · "), strict=True)))


def _words(score: float | None) -> str:
    return "none" if score is None else f"{score:.4f}"
