"""The board on a terminal: rich tables that drop detail until they fit."""

from __future__ import annotations

from collections import Counter
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
from .paired import words_below
from .ranking import NO_ATTACK

MAX_REMARKS = 20
HARDEST = "hardest"
_STYLES = {"diverged": "red", "failed": "bold red", "refused": "yellow"}
_UNLIMITED = 100_000


def terminal(board: Board, *, full: str = "", whole: bool = False) -> Iterator[RenderableType]:
    """The tables one after another, then what stands below them; print each with a rich console.

    Where not all attacks fit, the mildest are left out and a line under the table names them; ``full`` says there where
    all are (``"runs/x/report/leaderboard.csv"``). ``whole`` leaves none out, however wide the table gets.
    """
    for section in board.sections:
        yield Text("\n" + title(board, section), style="bold")
        yield _Fitting(board, section, full, whole)
        if claims := words_below(section):
            yield Text(claims, style="dim")
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
    """A table with as much detail as the width allows: intervals go first, then costs, then the mildest attacks.

    No attack and the worst case stay, then with the attack that is hardest on the row. Names fold only where even these
    columns do not fit.
    """

    board: Board
    section: Section
    full: str = ""
    whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def fits(table: Table) -> bool:
            wide = options.update(max_width=_UNLIMITED)
            return Measurement.get(console, wide, table).maximum <= options.max_width

        everything = tuple(range(len(self.board.attacks)))
        for intervals, with_costs in ((True, True), (False, True), (False, False)):
            table = self._table(everything, intervals=intervals, with_costs=with_costs)
            if fits(table):
                yield table
                return
        if self.whole:
            yield from console.render(table, options.update(max_width=_UNLIMITED))
            return
        order = by_harm(self.board, self.section)
        least = 1 if self.board.attacks[order[0]] == NO_ATTACK else 0
        low, high = least, len(order) - 1  # a table of `low` attacks is shown even if it does not fit
        while low < high:
            middle = (low + high + 1) // 2
            if fits(self._table(order[:middle], intervals=False, with_costs=False)):
                low = middle
            else:
                high = middle - 1
        table = self._table(order[:low], intervals=False, with_costs=False)
        yield table if fits(table) else self._table(order[:low], intervals=False, with_costs=False, fold=True)
        yield self._left_out(order[low:])

    def _left_out(self, attacks: tuple[int, ...]) -> Text:
        names = ", ".join(self.board.attacks[i] for i in sorted(attacks))
        where = f" All of them: {self.full}." if self.full else ""
        words = f"{len(attacks)} of {len(self.board.attacks)} columns left out for lack of width, the mildest first"
        return Text(f"{words}; the worst case counts them: {names}.{where}", style="dim")

    def _table(
        self, attacks: tuple[int, ...], *, intervals: bool, with_costs: bool, fold: bool = False
    ) -> Table:  # fmt: skip
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
        kept = sorted(attacks)
        last_label = len(self.board.label_names)
        names = header(self.board)
        first, end = last_label + 1, last_label + 1 + len(self.board.attacks)
        some_left_out = len(kept) < len(self.board.attacks)
        ends = names[end : None if with_costs else -2] + ([HARDEST] if some_left_out else [])
        names = [*names[:first], *(names[first + i] for i in kept), *ends]
        for i, name in enumerate(names):
            is_label = 0 < i <= last_label or name == HARDEST
            justify: Literal["left", "right"] = "left" if is_label else "right"
            table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=not fold)
        for row in self.section.rows:
            hardest = [Text(self._hardest(row))] if some_left_out else []
            table.add_row(*self._cells(row, kept, intervals=intervals, with_costs=with_costs), *hardest)
        return table

    def _hardest(self, row: Row) -> str:
        """The attack that is hardest on a row, in the mean over seeds."""
        known = _known(self.board, row)
        return self.board.attacks[min(known, key=lambda i: (known[i], i))] if known else "–"

    def _cells(self, row: Row, kept: list[int], *, intervals: bool, with_costs: bool) -> list[Text]:
        found = places(row)
        shown = [_place(e, intervals=intervals) for e in [*(found[i] for i in kept), found[-1]]]
        shown[-1].stylize("bold green" if row.rank == 1 else "bold")
        ends = [Text(t, style="dim") for t in costs(row)] if with_costs else []
        return [Text(rank_text(row)), *map(Text, row.labels), *shown, *ends]


def by_harm(board: Board, section: Section) -> tuple[int, ...]:
    """The places of the attacks: no attack first, then those that make most rows' worst case, then the lowest means.

    A place without a number counts as harm: it is what a reader should not miss.
    """
    worst: Counter[int] = Counter()
    means: dict[int, list[float]] = {i: [] for i in range(len(board.attacks))}
    for row in section.rows:
        known = _known(board, row)
        for i, value in known.items():
            means[i].append(value)
        if known:
            worst[min(known, key=lambda i: (known[i], i))] += 1

    def harm(i: int) -> tuple[bool, int, float, int]:
        mean = sum(means[i]) / len(means[i]) if means[i] else 1.0
        return board.attacks[i] != NO_ATTACK, -worst[i], mean, i

    return tuple(sorted(range(len(board.attacks)), key=harm))


def _known(board: Board, row: Row) -> dict[int, float]:
    """The row's values under attacks, as far as there are some."""
    values = {i: _value(e) for i, e in enumerate(row.cells) if board.attacks[i] != NO_ATTACK}
    return {i: v for i, v in values.items() if v is not None}


def _value(place: Estimate) -> float | None:
    return 0.0 if place.states and place.states[0][0] in ("diverged", "failed") else place.mean


def _place(place: Estimate, *, intervals: bool) -> Text:
    text = Text(place.text(interval=intervals))
    if place.states:
        text.stylize(_STYLES[place.states[0][0]])
        text.append(f" [{','.join(note_mark(n) for n in place.notes)}]")
    return text
