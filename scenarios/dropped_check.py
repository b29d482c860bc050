"""Check cells that the cheap mode of AutoByz left out, by running again the short first parts that decided it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robustfl.autobyz import Asked
from robustfl.records import CellResult, text_without

from .cell import Cell
from .expand import fingerprints, key_of, labels, resolve
from .halving import SHARE, hopeless, member_name
from .tuning_check import Run

RIGHTLY, WRONGLY, STRANGER = "rightly left out", "wrongly left out", "another cell"
_ROW_APART = ("attack", "scope", "seed")
Labels = Mapping[str, Any]


@dataclass
class Dropped:
    """The cells that a board says its cheap mode left out, with the cells beside which they were compared.

    ``run`` computes a cell from its settings, the fingerprint of its data and the certificates of the record whose
    device it shares. A short cell that several checks need runs once.
    """

    asked: Asked
    records: Sequence[CellResult]
    tolerance: float
    root: str | Path | None
    run: Run
    _known: dict[Cell, CellResult] = field(default_factory=dict)

    def check(self, key: str) -> tuple[str, str]:
        """The verdict on one of the cells, and why: it is right if its first part was no candidate for the worst.

        Members that went on run their first parts until one leaves it behind by the margin, in every ranked metric.
        Raises ``RobustflError`` where cells cannot be run here.
        """
        said = self.asked.dropped[key]
        beside = self._members_beside(said)
        if not beside:
            return WRONGLY, "no member of its row went on"
        cell = _cell_of(said, beside[0])
        if labels(cell) != dict(said) or key_of(resolve(cell, self._fingerprint(cell))) != key:
            return STRANGER, "its settings, as the other members of its row have them, have another key"
        margin = max(0.0, self.asked.ensemble.margin - self.tolerance)
        ensemble = replace(self.asked.ensemble, margin=margin)
        own = member_name(cell)
        early = {own: self._short(cell, beside[0])}
        for record in beside:
            rival = Cell.of(record.cell["cell"])
            early[member_name(rival)] = self._short(rival, record)
            if own in hopeless(early, ensemble):
                return RIGHTLY, ""
        words = ", ".join(f"{name.removesuffix(' both')} {_words(record)}" for name, record in early.items())
        return WRONGLY, f"after {early[own].cell['cell']['stop']} rounds it could still be the worst: {words}"

    def _members_beside(self, said: Labels) -> list[CellResult]:
        """One record of every member that went on in the row, the worst first: it is the likeliest to settle it."""
        members = self.asked.ensemble.by_cell(self.asked.scope)
        row = text_without(said, *_ROW_APART)
        found: dict[tuple[Any, Any], CellResult] = {}
        for record in self.records:
            who = record.labels["attack"], record.labels["scope"]
            if who in members and text_without(record.labels, *_ROW_APART) == row:
                kept = found.get(who)
                found[who] = record if kept is None else min(kept, record, key=lambda r: int(r.labels["seed"]))
        return sorted(found.values(), key=lambda r: (_height(r), r.key))

    def _short(self, cell: Cell, record: CellResult) -> CellResult:
        seed = self.asked.seed if self.asked.seed is not None else int(record.labels["seed"])
        first = {"seed": seed, "stop": math.ceil(cell.rounds / SHARE), "forgetting": False}
        short = Cell.of({**cell.model_dump(mode="json"), **first})
        if short not in self._known:
            self._known[short] = self.run(short, self._fingerprint(short), record.certificates)
        return self._known[short]

    def _fingerprint(self, cell: Cell) -> str:
        return fingerprints([cell], self.root)[cell]


def _cell_of(said: Labels, beside: CellResult) -> Cell:
    """The dropped cell: it differs from a cell beside it in its attack and its seed alone."""
    return Cell.of({**beside.cell["cell"], **{name: said[name] for name in _ROW_APART}})


def _height(record: CellResult) -> float:
    return record.metrics.sa if record.status == "done" and record.metrics is not None else -1.0


def _words(record: CellResult) -> str:
    if record.status != "done" or record.metrics is None:
        return record.status
    return " / ".join(f"{100 * value:.1f}" for value in (record.metrics.sa, *record.metrics.ra.values()))
