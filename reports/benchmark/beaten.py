"""Rows of the benchmark that somebody's attack has lowered below AutoByz: by how much, on which tasks, who did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from robustfl.autobyz import Member

from ..board import Row, Section
from ..table_cell import TableCell
from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .data import Measured


@dataclass(frozen=True)
class Lowered:
    """One row of one table: its accuracy under AutoByz, under the attacks that came beside it, and under all of them.

    All are of the worst attack, chosen for every seed on the others.
    """

    task: str
    before: TableCell
    under: Mapping[str, TableCell]
    after: TableCell

    @property
    def lower(self) -> bool:
        """True if the attacks lowered it; a divergence is below any accuracy."""
        return _height(self.after) < _height(self.before)


def lowered(before: Measured, after: Measured, contestant: str) -> list[Lowered]:
    """A contestant's row without and with the attacks that ``after`` alone has: the mean over tasks, then each.

    Raises ``KeyError`` for a contestant that the boards do not have.
    """
    found = []
    for first, second in zip(_tables(before), _tables(after), strict=True):
        row, later = _row(before, first, contestant), _row(after, second, contestant)
        cells = dict(zip(after.board.attacks, later.cells, strict=True))
        earlier = dict(zip(before.board.attacks, row.cells, strict=True))
        new = {a: place for a, place in cells.items() if place.expected and not earlier.get(a, TableCell()).expected}
        found.append(Lowered(first.block, row.worst, new, later.worst))
    return found


def beaten_table(it: Measured) -> str:
    """Who lowered which row, as a table in Markdown; empty where nobody did."""
    entries = it.facts.get("beaten", [])
    if not entries:
        return ""
    heads = ["contestant", "attack", "by", "SA under it", "SA now"]
    lines = []
    for entry in entries:
        row = _row(it, it.table("sa"), entry["contestant"])
        open_to = it.board.autobyz.scope if it.board.autobyz else entry["scope"]
        label = Member(entry["attack"], "" if entry["scope"] == open_to else entry["scope"]).label
        place = row.cells[it.board.attacks.index(label)] if label in it.board.attacks else None
        told = [label, entry.get("by") or "–", "–" if place is None else place.text(), row.worst.text()]
        lines.append([*map(escape, [it.name(row), *told])])
    words = "Attacks beside the members of AutoByz that were run on single rows, and count in these:"
    return f"## Rows beaten by others\n\n{words}\n\n{table(heads, 'lllrr', lines)}"


def _tables(it: Measured) -> list[Section]:
    """The tables of SA: the mean over tasks first, where there are several."""
    return [s for s in it.board.sections if s.metric == "sa"]


def _row(it: Measured, section: Section, contestant: str) -> Row:
    search = it.facts["contestants"][contestant]
    return next(row for row in section.rows if it.search(row) == search)


def _height(place: TableCell) -> float:
    return -1.0 if place.count("diverged") else place.mean if place.mean is not None else 2.0
