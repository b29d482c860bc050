"""The board on a terminal: rich tables that drop detail until they fit."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from robustfl.autobyz import TITLE

from .board import Board, Row, Section
from .columns import COSTS, INTERVALS, Formatted, columns, printed, remarks, state_counts, title
from .figures.layout import wrapped
from .grouping import NO_ATTACK
from .paired import compare

MAX_REMARKS = 20
HARDEST = "hardest"
_STYLES = {"diverged": "red", "failed": "bold red", "refused": "yellow", "no effect": "dim"}
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
    for fold in (False, True):
        yield _Detail(every[:least], 0, spreads=False, worst_spread=False, broken=True, fold=fold)


@dataclass(frozen=True)
class _Tables:
    """All tables of a board with as much detail as the width allows."""

    board: Board
    full: str = ""
    whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=_UNLIMITED)
        detail = self._fitting(console, options)
        claims = [compare(section).claims for section in self.board.sections]
        once = len(set(claims)) == 1
        for section, claim in zip(self.board.sections, claims, strict=True):
            yield Text("\n" + title(self.board, section), style="bold")
            yield from console.render(_table(self.board, section, detail), wide if self.whole else options)
            if claim and not once:
                yield Text(claim, style="dim")
        for words in (claims[0] if once else "", self._left_out(detail)):
            if words:
                yield Text("\n" + words, style="dim")

    def _fitting(self, console: Console, options: ConsoleOptions) -> _Detail:
        """The most detail that fits the width; all of it in a ``whole`` table."""
        board = self.board
        chosen = printed(board)
        order = [i for i in by_harm(board, board.rows) if board.attacks[i] in chosen]
        if self.whole:
            return _Detail(tuple(order))
        wide = options.update(max_width=_UNLIMITED)

        def fits(detail: _Detail) -> bool:
            tables = (_table(self.board, s, detail) for s in self.board.sections)
            return all(Measurement.get(console, wide, t).maximum <= options.max_width for t in tables)

        details = [*_details(order, 1 if order and board.attacks[order[0]] == NO_ATTACK else 0)]
        # The first attack that goes brings a column with the hardest one's name: from there on tables may be wider.
        every = [d for d in details if len(d.attacks) == len(order)]
        for some in (every, details[len(every) :]):
            if (first := bisect_left(some, True, key=fits)) < len(some):
                return some[first]
        return details[-1]

    def _left_out(self, detail: _Detail) -> str:
        board = self.board
        chosen = printed(board)
        gone = [cost for cost in reversed(COSTS[detail.costs :]) if cost in chosen]
        missing = [a for i, a in enumerate(board.attacks) if i not in detail.attacks and a in chosen]
        words = left_out(board, gone, detail.spreads, missing)
        return f"{words}.{f' All of it: {self.full}.' if self.full else ''}" if words else ""


def _table(board: Board, section: Section, detail: _Detail) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    shown: list[list[Text]] = []

    def add(name: str, cells: list[Text], *, right: bool) -> None:
        heading = Text(wrapped(name, 8) if detail.broken else name)
        side = "right" if right else "left"
        table.add_column(heading, justify=side, overflow="fold", no_wrap=not detail.fold)  # type: ignore[arg-type]
        shown.append(cells)

    for column in columns(board, section, spreads=detail.spreads, worst_spread=detail.worst_spread):
        if column.kind == "attack" and column.attack not in detail.attacks:
            continue
        if column.kind == "cost" and COSTS.index(column.name) >= detail.costs:
            continue
        add(column.head, [_styled(cell, column.kind, detail) for cell in column.cells], right=column.right)
    if board.autobyz is None and len(detail.attacks) < sum(a in printed(board) for a in board.attacks):
        known = [_known(board, row) for row in section.rows]
        add(HARDEST, [Text(board.attacks[min(k, key=k.__getitem__)] if k else "–") for k in known], right=False)
    for line in zip(*shown, strict=True):
        table.add_row(*line)
    return table


def _styled(cell: Formatted, kind: str, detail: _Detail) -> Text:
    text = Text(wrapped(cell.text, _NARROW) if kind == "label" and detail.broken else cell.text)
    text.stylize(_STYLES.get(cell.state, "dim" if kind == "cost" else ""))
    if cell.marks:
        text.append(f" [{cell.marks}]")
    if kind == "worst":
        text.stylize("bold green" if cell.best else "bold")
    return text


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


def left_out(board: Board, costs: Sequence[str], spreads: bool, attacks: Sequence[str]) -> str:
    """The words for what tables have no room for: these costs and attacks, and spreads if they are not there."""
    gone = [*costs]
    if not spreads and any(place.spread() for row in board.rows for place in row.cells):
        gone.append(INTERVALS)
    if attacks:
        words = f"{len(attacks)} of {len(board.attacks)} attacks, the mildest first, which the worst case counts"
        gone.append(f"{words}: {', '.join(attacks)}")
    return f"Left out for lack of width: {'; '.join(gone)}" if gone else ""


def _known(board: Board, row: Row) -> dict[int, float]:
    """The row's values under attacks that had an effect, as far as there are some; 0 where no training ended."""
    found: dict[int, float] = {}
    for i, (attack, place) in enumerate(zip(board.attacks, row.cells, strict=True)):
        value = 0.0 if place.states and place.states[0][0] in ("diverged", "failed") else place.mean
        if attack not in (NO_ATTACK, TITLE) and not place.idle and value is not None:
            found[i] = value
    return found
