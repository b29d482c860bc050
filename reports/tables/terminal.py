"""The board on a terminal: rich tables that drop detail until they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from robustfl.autobyz import TITLE

from ..axes import NO_ATTACK
from ..board import Board, Row, Section
from ..estimate import Estimate
from ..figures.layout import wrapped
from ..paired import words_below
from .columns import COSTS, costs, members, members_head, note_marks, rank_text, remarks, state_counts, title

MAX_REMARKS = 20
HARDEST = "hardest"
_STYLES = {"diverged": "red", "failed": "bold red", "refused": "yellow"}
_UNLIMITED = 100_000
_NARROW = 14
"""Where names have to be short they are broken after so many letters."""


def terminal(board: Board, *, full: str = "", whole: bool = False) -> Iterator[RenderableType]:
    """All tables, the mean over tasks first, then what stands below them; print each with a rich console.

    What does not fit is left out in the order of ``_details``, the same in all tables, and a line says so; ``full``
    says there where everything is (``"runs/x/report/leaderboard.csv"``). ``whole`` leaves nothing out.
    """
    yield _Tables(board, full, whole)
    yield Text("\n" + board.caption)
    yield Text(" ".join(board.notes), style="dim")
    marked = remarks(board)
    for mark, text in marked[:MAX_REMARKS]:
        yield Text(f"[{mark}] {text}")
    if len(marked) > MAX_REMARKS:
        yield Text(f"… and {len(marked) - MAX_REMARKS} more in leaderboard.json")
    yield Text(f"Cells: {state_counts(board)}.", style="dim")


@dataclass(frozen=True)
class _Detail:
    """The detail a table shows: its attacks (places), how many columns of costs, intervals, names on one line."""

    attacks: tuple[int, ...]
    costs: int = len(COSTS)
    spreads: bool = True
    worst_spread: bool = True
    broken: bool = False
    fold: bool = False


def _details(attacks: Sequence[int], least: int) -> Iterator[_Detail]:
    """From everything to the least, in the order in which detail goes.

    Peak memory, seconds per round, intervals of single attacks; long names are broken; then the mildest attacks one by
    one, the interval of the worst case, and at last names fold anywhere. ``attacks`` are in the order of ``by_harm``.
    """
    every = tuple(attacks)
    for left in range(len(COSTS), -1, -1):
        yield _Detail(every, left)
    yield _Detail(every, 0, spreads=False)
    for count in range(len(every), least - 1, -1):
        yield _Detail(every[:count], 0, spreads=False, broken=True)
    yield _Detail(every[:least], 0, spreads=False, worst_spread=False, broken=True)
    yield _Detail(every[:least], 0, spreads=False, worst_spread=False, broken=True, fold=True)


def _first(details: Sequence[_Detail], fits: Callable[[_Detail], bool]) -> _Detail | None:
    """The first of the details that fits, where each shows less than the one before it; ``None`` if none does."""
    low, high = 0, len(details)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(details[middle]) else (middle + 1, high)
    return details[low] if low < len(details) else None


@dataclass(frozen=True)
class _Tables:
    """All tables of a board with as much detail as the width allows."""

    board: Board
    full: str = ""
    whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=_UNLIMITED)
        order = by_harm(self.board, self.board.rows)
        least = 1 if order and self.board.attacks[order[0]] == NO_ATTACK else 0

        def fits(detail: _Detail) -> bool:
            tables = (_table(self.board, s, detail) for s in self.board.sections)
            return all(Measurement.get(console, wide, t).maximum <= options.max_width for t in tables)

        details = [d for d in _details(order, least) if not self.whole or d == _Detail(order)]
        # The first attack that goes brings a column with the hardest one's name: from there on tables may be wider.
        every = [d for d in details if len(d.attacks) == len(order)]
        detail = _first(every, fits) or _first(details[len(every) :], fits) or details[-1]
        claims = [words_below(section) for section in self.board.sections]
        once = len(set(claims)) == 1
        for section, claim in zip(self.board.sections, claims, strict=True):
            yield Text("\n" + title(self.board, section), style="bold")
            yield from console.render(_table(self.board, section, detail), wide if self.whole else options)
            if claim and not once:
                yield Text(claim, style="dim")
        if once and claims[0]:
            yield Text("\n" + claims[0], style="dim")
        if words := self._left_out(detail):
            yield Text("\n" + words, style="dim")

    def _left_out(self, detail: _Detail) -> str:
        board = self.board
        gone = list(reversed(COSTS[detail.costs :]))
        if not detail.spreads and any(e.spread() for r in board.rows for e in r.cells):
            gone.append("intervals or seeds of single attacks")
        missing = [board.attacks[i] for i in sorted(set(range(len(board.attacks))) - set(detail.attacks))]
        if missing:
            gone.append(
                f"{len(missing)} of {len(board.attacks)} attacks, the mildest first, which the worst case counts: "
                f"{', '.join(missing)}"
            )
        if not gone:
            return ""
        return f"Left out for lack of width: {'; '.join(gone)}.{f' All of it: {self.full}.' if self.full else ''}"


def _table(board: Board, section: Section, detail: _Detail) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    kept = sorted(detail.attacks)
    some_left_out = len(kept) < len(board.attacks)

    def add(name: str, justify: Literal["left", "right"]) -> None:
        heading = wrapped(name, 8) if detail.broken else name
        table.add_column(Text(heading), justify=justify, overflow="fold", no_wrap=not detail.fold)

    for name in ("#", *board.label_names):
        add(name, "right" if name == "#" else "left")
    for name in (*(board.attacks[i] for i in kept), "worst case", *COSTS[: detail.costs]):
        add(name, "right")
    hardest = board.autobyz is None and some_left_out
    for name in (*members_head(board), *((HARDEST,) if hardest else ())):
        add(name, "left")
    for row in section.rows:
        labels = [Text(wrapped(v, _NARROW) if detail.broken else v) for v in row.labels]
        worst = _place(row.worst, spread=detail.worst_spread)
        worst.stylize("bold green" if row.may_be_best else "bold")
        shown = [*(_place(row.cells[i], spread=detail.spreads) for i in kept), worst]
        ends = [Text(t, style="dim") for t in costs(row)[: detail.costs]]
        named = [*members(board, row), *([_hardest(board, row)] if hardest else [])]
        table.add_row(Text(rank_text(row)), *labels, *shown, *ends, *map(Text, named))
    return table


def _hardest(board: Board, row: Row) -> str:
    """The attack that is hardest on a row, in the mean over seeds."""
    known = _known(board, row)
    return board.attacks[min(known, key=known.__getitem__)] if known else "–"


def by_harm(board: Board, rows: Sequence[Row]) -> tuple[int, ...]:
    """The places of the attacks: no attack first, AutoByz, those that make most rows' worst case, the lowest means.

    A place without a number counts as harm: it is what a reader should not miss.
    """
    worst: Counter[int] = Counter()
    means: dict[int, list[float]] = {i: [] for i in range(len(board.attacks))}
    for row in rows:
        known = _known(board, row)
        for i, value in known.items():
            means[i].append(value)
        if known:
            worst[min(known, key=known.__getitem__)] += 1

    def harm(i: int) -> tuple[bool, bool, int, float, int]:
        mean = sum(means[i]) / len(means[i]) if means[i] else 1.0
        return board.attacks[i] != NO_ATTACK, board.attacks[i] != TITLE, -worst[i], mean, i

    return tuple(sorted(range(len(board.attacks)), key=harm))


def _known(board: Board, row: Row) -> dict[int, float]:
    """The row's values under attacks that had an effect, as far as there are some."""
    values = {
        i: _value(e) for i, e in enumerate(row.cells) if board.attacks[i] not in (NO_ATTACK, TITLE) and not e.idle
    }
    return {i: v for i, v in values.items() if v is not None}


def _value(place: Estimate) -> float | None:
    return 0.0 if place.states and place.states[0][0] in ("diverged", "failed") else place.mean


def _place(place: Estimate, *, spread: bool) -> Text:
    text = Text(place.text(spread=spread))
    if place.states:
        text.stylize(_STYLES[place.states[0][0]])
    elif place.idle:
        text.stylize("dim")
    if place.notes:
        text.append(f" [{note_marks(place)}]")
    return text
