"""Claims that records of a board make of themselves and nobody needs to train for: refusals, attacks without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from robustfl.errors import RobustflError
from robustfl.records import CellResult

from .cell import Cell
from .expand import refusal
from .noop_settings import no_effect

_SHOWN = 5


def false_claims(records: Iterable[CellResult]) -> list[str]:
    """The faults in what records say of cells that need not run to know better, the first ones in words.

    Boards leave out attacks that are refused and attacks without effect, so a record that says either of a strong one
    lifts its contestant. Cells of methods that are not here are passed over.
    """
    found = list(_false_claims(records))
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more like these"]


def _false_claims(records: Iterable[CellResult]) -> Iterator[str]:
    for record in records:
        try:
            cell = Cell.of(record.cell.get("cell", {}))
            reason, idle = refusal(cell), no_effect(cell)
        except RobustflError:
            continue
        who = f"cell {record.key[:12]}"
        if reason is not None and record.status != "refused":
            yield f"{who}: it says {record.status}, where such a cell is refused: {reason}"
        if idle is None and record.certificates.get("no_effect") is True:
            yield f"{who}: it says that its attack has no effect, which nothing in its settings says"


def unexplained(record: CellResult) -> bool:
    """True if a record says refused of a cell that nothing in its settings refuses; only running it can tell."""
    if record.status != "refused":
        return False
    try:
        return refusal(Cell.of(record.cell.get("cell", {}))) is None
    except RobustflError:
        return True
