"""The board on a terminal: rich tables that drop detail until they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .board import Board, Row, Section
from .captions import setting
from .cells import costs, header, note_mark, places, rank_text, remarks, state_counts, title
from .estimate import Estimate

MAX_REMARKS = 20
MIN_WIDTH = 72
"""Below so many columns even the names of defenses fold."""
_STYLES = {"diverged": "red", "failed": "bold red", "refused": "yellow"}


def terminal(board: Board) -> Iterator[RenderableType]:
    """The tables one after another, then what stands below them; print each with a rich console."""
    for section in board.sections:
        yield Text("\n" + title(board, section), style="bold")
        yield _Fitting(board, section)
    yield Text("\n" + board.caption, style="dim")
    if settings := setting(board):
        yield Text(f"Settings: {settings}.", style="dim")
    notes = remarks(board)
    for mark, text in notes[:MAX_REMARKS]:
        yield Text(f"[{mark}] {text}")
    if len(notes) > MAX_REMARKS:
        yield Text(f"… and {len(notes) - MAX_REMARKS} more in leaderboard.json")
    yield Text(f"Cells: {state_counts(board)}.", style="dim")


@dataclass(frozen=True)
class _Fitting:
    """A table with as much detail as the width allows: intervals go first, then costs, then attacks fold."""

    board: Board
    section: Section

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for intervals, with_costs in ((True, True), (False, True), (False, False)):
            table = self._table(intervals=intervals, with_costs=with_costs, fold=options.max_width < MIN_WIDTH)
            if Measurement.get(console, options.update(max_width=10_000), table).maximum <= options.max_width:
                break
        yield table

    def _table(self, *, intervals: bool, with_costs: bool, fold: bool) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
        names = header(self.board) if with_costs else header(self.board)[:-2]
        last_label = len(self.board.label_names)
        for i, name in enumerate(names):
            is_label = 0 < i <= last_label
            justify: Literal["left", "right"] = "left" if is_label else "right"
            table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=i <= last_label and not fold)
        for row in self.section.rows:
            table.add_row(*self._cells(row, intervals=intervals, with_costs=with_costs))
        return table

    def _cells(self, row: Row, *, intervals: bool, with_costs: bool) -> list[Text]:
        shown = [_place(e, intervals=intervals) for e in places(row)]
        shown[-1].stylize("bold green" if row.rank == 1 else "bold")
        ends = [Text(t, style="dim") for t in costs(row)] if with_costs else []
        return [Text(rank_text(row)), *map(Text, row.labels), *shown, *ends]


def _place(place: Estimate, *, intervals: bool) -> Text:
    text = Text(place.text(interval=intervals))
    if place.states:
        text.stylize(_STYLES[place.states[0][0]])
        text.append(f" [{','.join(note_mark(n) for n in place.notes)}]")
    return text
